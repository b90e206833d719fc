"""What the operator costs on a real API server: memory, start, requests while nothing happens, and edits.

The local cluster runs etcd, API server, controllers and scheduler. kwok plays the nodes, so pods are Ready without
engines. The operator is a process of its own.

No service is governed: played engines do not answer, and each push that fails would be a write. So these figures are
the reconciler's. What the tuner holds in memory and writes for governed engines is not in them: see `hack/bench tick`.
"""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flyball_engine.figures import figure
from flyball_lab.benches.figures import Figures, Tables
from flyball_lab.benches.interrupted import InterruptedPart
from flyball_lab.benches.options import Options
from flyball_lab.benches.reconcile.operator import AuditLog, RunningOperator, account, kubectl, operator
from flyball_lab.harness.manifests import Object, good
from flyball_lab.pages.figures import table
from flyball_lab.quantiles import quantile
from flyball_lab.repository import ROOT
from flyball_operator.kube.api import KubeApi, Unfenced, connected
from flyball_operator.kube.configuration import kubeconfig
from flyball_operator.kube.resources import DEPLOYMENTS, INFERENCE_SERVICES

NAMESPACE: Final = "flyball-bench"
#: Pods of each service, and those that a node of kwok's takes. Each node writes its Lease every ten seconds, so there
#: are few nodes.
PODS: Final = 5
PODS_OF_A_NODE: Final = 1000
#: Edits that are measured, and seconds between two of them.
EDITS: Final = 200
EDIT_SECONDS: Final = 0.5
#: Seconds without a change before an idle time begins, and how long it is watched. The operator lists everything each
#: 300 s, 10 % more or less: one of these lists is in it, seldom two. So reads of an hour are known by order only.
SETTLE_SECONDS: Final = 90.0
IDLE_SECONDS: Final = 360.0
#: Until all pods are there, on two cores.
LONGEST_SECONDS: Final = 3600.0
#: Between two looks at what is waited for. To list a thousand services, or to tell of their conditions, takes processor
#: from what is waited for.
_READY_LOOK_SECONDS: Final = 10.0
_START_LOOK_SECONDS: Final = 1.0
_PARALLEL: Final = 16
_MEMORY: Final = "memory MiB"
_LARGEST: Final = "largest memory MiB"
_START: Final = "cold start s"
_EDIT: Final = "edit to write s"
_READS: Final = "reads of an idle hour"
_WRITES: Final = "writes of an idle hour"
#: Rows of the page, the figures that they show, and what is asked of 1000 services at most.
ROWS: Final = (
    ("memory, MiB", _MEMORY, 300.0),
    ("memory, the most, MiB", _LARGEST, None),
    ("seconds from its start until all services are looked at", _START, 20.0),
    ("seconds from an edit to the write of its Deployment, p50", f"{_EDIT} p50", None),
    ("the same, p95", f"{_EDIT} p95", 1.0),
    ("writes of an idle hour, but Leases", _WRITES, 0.0),
    ("reads of an idle hour", _READS, None),
)
ASKED_OF: Final = 1000


def measure(options: Options) -> dict[str, dict[str, float]]:
    """Figures by number of services. Ctrl-C keeps those that are measured."""
    figures: dict[str, dict[str, float]] = {}
    for services in options.services:
        try:
            with _cluster(services):
                figures[_title(services)] = asyncio.run(_measured(services))
        except KeyboardInterrupt:
            raise InterruptedPart(figures) from None
    return figures


def tables(figures: Figures) -> Tables:
    """A column for each number of services, and what is asked of a thousand."""
    counted = figures.get(_title(ASKED_OF), {})
    rows = [
        (shown, "" if most is None else f"{most:g}", *(_against(one, key, most, counted) for one in figures.values()))
        for shown, key, most in ROWS
    ]
    return {"": table(("", f"asked of {ASKED_OF} services, at most", *figures), rows)}


def _against(values: Mapping[str, float], key: str, most: float | None, counted: Mapping[str, float]) -> str:
    missed = values is counted and most is not None and values[key] > most
    return figure(values[key]) + (": missed" if missed else "")


def _title(services: int) -> str:
    return f"{services} {'service' if services == 1 else 'services'} of {PODS} pods"


@contextmanager
def _cluster(services: int) -> Iterator[None]:
    """The local cluster with nodes enough, and the CRD and an empty namespace in it. The cluster is left running."""
    # Edits ask for a pod more of each service.
    nodes = math.ceil(services * (PODS + 1) / PODS_OF_A_NODE)
    wanted = ("--fake-nodes", str(nodes), "--fake-node-pods", str(PODS_OF_A_NODE))
    subprocess.run([ROOT / "hack/cluster", "up", *wanted], check=True, stdout=sys.stderr)
    said = subprocess.run([ROOT / "hack/cluster", "env"], check=True, stdout=subprocess.PIPE, text=True).stdout
    given = dict(line.removeprefix("export ").split("=", 1) for line in said.splitlines())
    os.environ |= given | {"PATH": f"{given['PATH'].removesuffix('$PATH')}{os.environ['PATH']}"}
    kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=15m")
    kubectl("create", "namespace", NAMESPACE)
    try:
        yield
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")


async def _measured(services: int) -> dict[str, float]:
    configuration, _ = await kubeconfig(None)
    with tempfile.TemporaryDirectory() as folder, account(NAMESPACE, Path(folder)):
        async with connected(configuration, "flyball-bench", Unfenced(), instance="bench") as api:
            _tell(f"making {services} services")
            await _together(
                services, lambda number: api.create(INFERENCE_SERVICES, NAMESPACE, service(number), within=60.0)
            )
            with operator(NAMESPACE, Path(folder)) as first:
                await _until(lambda: _all_ready(api, services), first, "pods are Ready", _READY_LOOK_SECONDS)
            _tell("the operator starts anew")
            with operator(NAMESPACE, Path(folder)) as running:
                start = await _until(
                    lambda: _looked_at(running, services), running, "services are looked at", _START_LOOK_SECONDS
                )
                _tell(f"looked at {start:.1f} s after its start")
                await _hold(running, SETTLE_SECONDS, "until it settles")
                log = AuditLog(Path(os.environ["FLYBALL_AUDIT_LOG"]), NAMESPACE)
                await _hold(running, IDLE_SECONDS, "idle")
                reads, writes = log.requests()
                _tell(f"idle: reads {dict(reads.most_common(5))}, writes {dict(writes.most_common(5))}")
                memory, largest = running.memory(), running.memory("VmHWM")
                _tell(f"memory: {memory:.0f} MiB, the most {largest:.0f} MiB")
                edits = await _edits(api, services)
    hour = 3600.0 / IDLE_SECONDS
    return {
        "services": float(services),
        _MEMORY: memory,
        _LARGEST: largest,
        _START: start,
        f"{_EDIT} p50": quantile(edits, 0.5),
        f"{_EDIT} p95": quantile(edits, 0.95),
        "edits": float(len(edits)),
        _WRITES: writes.total() * hour,
        _READS: reads.total() * hour,
    }


async def _together(count: int, work: Callable[[int], Awaitable[Any]]) -> None:
    """Some at a time."""
    gate = asyncio.Semaphore(_PARALLEL)

    async def one(number: int) -> None:
        async with gate:
            await work(number)

    await asyncio.gather(*map(one, range(count)))


def _name(number: int) -> str:
    return f"chat-{number:04}"


def service(number: int) -> Object:
    """One of those that are made, ungoverned. kwok's nodes play its pods."""
    pod_template = {
        "nodeSelector": {"type": "kwok"},
        "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
    }
    return good(
        _name(number),
        spec__replicas=PODS,
        spec__podTemplate=pod_template,
        spec__engine__governed=False,
        spec__tuning__mode="Disabled",
    )


async def _all_ready(api: KubeApi, services: int) -> tuple[int, bool]:
    found, _ = await api.list(INFERENCE_SERVICES, NAMESPACE, within=60.0)
    ready = sum(1 for one in found if (one.get("status") or {}).get("readyReplicas") == PODS)
    return ready, ready == services


async def _looked_at(running: RunningOperator, services: int) -> tuple[int, bool]:
    """The reconciler has looked at all, and none waits for it."""
    with suppress(OSError):
        seen, waiting = await asyncio.to_thread(
            running.figures, "flyball_operator_services_by_template", "flyball_operator_queue_depth"
        )
        return int(seen), seen == services and waiting == 0
    return 0, False


async def _until(
    look: Callable[[], Awaitable[tuple[int, bool]]], running: RunningOperator, expecting: str, every: float
) -> float:
    """Seconds from the operator's start until it is so, looked at `every` so many seconds.

    Raises `RuntimeError` where it ends, or takes for ever.
    """
    told = time.monotonic()
    while True:
        number, done = await look()
        now = time.monotonic()
        if done:
            return now - running.began
        _alive(running)
        if now - running.began > LONGEST_SECONDS:
            raise RuntimeError(f"{expecting}: {number} after {LONGEST_SECONDS:g} s")
        if now - told > 15.0:
            _tell(f"{expecting}: {number}")
            told = now
        await asyncio.sleep(every)


async def _hold(running: RunningOperator, seconds: float, what: str) -> None:
    _tell(f"{what}: {seconds:g} s")
    await asyncio.sleep(seconds)
    _alive(running)


def _alive(running: RunningOperator) -> None:
    if running.process.poll() is not None:
        raise RuntimeError(f"the operator ended with {running.process.returncode}")


@dataclass(frozen=True)
class _Edit:
    """So many replicas are asked for; when the request was sent, and whether the write was seen."""

    replicas: int
    sent: float = field(default_factory=time.monotonic)
    written: asyncio.Event = field(default_factory=asyncio.Event)


async def _edits(api: KubeApi, services: int) -> list[float]:
    """Seconds from an edit's request until the watch of Deployments shows its write."""
    _tell(f"{EDITS} edits")
    _, version = await api.list(DEPLOYMENTS, NAMESPACE, metadata_only=True, within=60.0)
    edits: dict[str, _Edit] = {}
    took: list[float] = []

    async def see() -> None:
        # Until it is cancelled: a busy API server takes its time for each edit, too.
        seconds = int(LONGEST_SECONDS)
        async for event in api.watch(DEPLOYMENTS, namespace=NAMESPACE, selector="", version=version, seconds=seconds):
            found: Object = event["object"]
            edit = edits.get(found["metadata"]["name"])
            if edit is not None and found["spec"]["replicas"] == edit.replicas and not edit.written.is_set():
                took.append(time.monotonic() - edit.sent)
                edit.written.set()

    seeing = asyncio.create_task(see())
    for number in range(EDITS):
        # Of a prime number, so that one comes again only once all others have come.
        name = _name(number * 7919 % services)
        if (before := edits.get(name)) is not None:
            await before.written.wait()
        replicas = PODS if before is not None and before.replicas > PODS else PODS + 1
        edits[name] = _Edit(replicas)
        patch = [{"op": "replace", "path": "/spec/replicas", "value": replicas}]
        await api.json_patch(INFERENCE_SERVICES, NAMESPACE, name, patch)
        await asyncio.sleep(EDIT_SECONDS)
    all_written = asyncio.gather(*(edit.written.wait() for edit in edits.values()))
    try:
        async with asyncio.timeout(SETTLE_SECONDS):
            await all_written
    except TimeoutError:
        missing = sum(not edit.written.is_set() for edit in edits.values())
        raise RuntimeError(f"{missing} of {EDITS} edits were not written within {SETTLE_SECONDS:g} s") from None
    finally:
        seeing.cancel()
    return took


def _tell(words: str) -> None:
    print(f"  {words}", file=sys.stderr, flush=True)
