"""Faults of a cluster on which Flyball runs. Each lasts a while, ends by itself and leaves all as it was."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from support.cluster import Object, kubectl, patch
from support.live import RESOURCE, Flyball, Service
from support.node import kill_container, kill_process, on_node, sandbox_pid
from support.stepped_clock import step_clocks

#: How long a fault lasts that ends by itself: longer than a Lease and a window (15 s each), and shorter than a node's
#: grace (50 s) by what a kubelet may be behind: it renews its Lease each 10 s, and a busy machine may take as long. A
#: node that is NotReady has no endpoints.
FAULT_SECONDS = 30.0
#: Until a fault is felt or its end is, on a busy machine.
FELT_SECONDS = 300.0
#: Seconds that clocks are stepped: four times what a Lease lasts.
STEP = 60
#: Limits that are asked for by turns.
_SEQS = itertools.cycle((8, 24, 48, 16))
_STEPS = itertools.cycle((STEP, -STEP))

Fault = Callable[[Service, Flyball], None]


def engine_is_killed(chat: Service, flyball: Flyball) -> None:
    kill_process(chat.pod(), container="engine", named="EngineCore")
    chat.expect_condition("Available", "False", within=FELT_SECONDS)


def operator_is_killed(chat: Service, flyball: Flyball) -> None:
    """The one that leads."""
    epoch = chat.obeyed_epoch()
    leader = eventually(flyball.leader, expecting="a leader")
    (pod,) = (pod for pod in flyball.operator_pods() if pod["metadata"]["name"] == leader)
    kill_container(pod, container="operator")
    eventually(lambda: chat.obeyed_epoch() > epoch, expecting="another leader's setpoint", within=FELT_SECONDS)


def api_server_is_restarted(chat: Service, flyball: Flyball) -> None:
    _cluster("restart", "kube-apiserver")


def api_server_hangs(chat: Service, flyball: Flyball) -> None:
    _cluster("pause", "kube-apiserver")
    try:
        time.sleep(FAULT_SECONDS)
    finally:
        _cluster("resume", "kube-apiserver")


def prometheus_is_away(chat: Service, flyball: Flyball) -> None:
    kubectl("scale", "deployment", "prometheus", "-n", "monitoring", "--replicas=0")
    try:
        chat.expect_condition("MetricsAvailable", "False", within=FELT_SECONDS)
    finally:
        kubectl("scale", "deployment", "prometheus", "-n", "monitoring", "--replicas=1")


def operators_hear_nobody(chat: Service, flyball: Flyball) -> None:
    """The networks of their pods drop everything, both ways."""
    with _cut(flyball.operator_pods()):
        time.sleep(FAULT_SECONDS)


def etcd_is_full(chat: Service, flyball: Flyball) -> None:
    """The API server takes no write, Leases included, and answers reads."""
    _alarm("ACTIVATE")
    try:
        time.sleep(FAULT_SECONDS)
    finally:
        _alarm("DEACTIVATE")


def clocks_are_stepped(chat: Service, flyball: Flyball) -> None:
    """Those of the operators, ahead or behind by turns, and back again.

    Engines refuse setpoints meanwhile whose tokens have expired by their own clock; afterwards they take them.
    """
    step_clocks(flyball, next(_STEPS))
    try:
        time.sleep(FAULT_SECONDS)
    finally:
        step_clocks(flyball, 0)
    limits_are_pinned(chat, flyball)


def limits_are_pinned(chat: Service, flyball: Flyball) -> None:
    """An edit that must reach the engine; it is taken back afterwards."""
    seqs = next(_SEQS)
    bounds = {"maxNumActiveSeqs": {"min": seqs, "max": seqs}}
    patch(RESOURCE, chat.name, {"spec": {"tuning": {"bounds": bounds}}}, namespace=chat.namespace)
    try:
        expecting = f"{seqs} requests at once"
        eventually(lambda: chat.effective()["max_num_active_seqs"] == seqs, expecting=expecting, within=FELT_SECONDS)
    finally:
        patch(RESOURCE, chat.name, {"spec": {"tuning": {"bounds": None}}}, namespace=chat.namespace)


FAULTS: Sequence[Fault] = (
    engine_is_killed,
    operator_is_killed,
    api_server_is_restarted,
    api_server_hangs,
    prometheus_is_away,
    operators_hear_nobody,
    etcd_is_full,
    clocks_are_stepped,
)


def _cluster(*arguments: str) -> None:
    subprocess.run([ROOT / "hack/cluster", *arguments], check=True, timeout=FELT_SECONDS, capture_output=True)


@contextmanager
def _cut(pods: Sequence[Object]) -> Iterator[None]:
    # By the pod's sandbox: its network outlives its containers.
    inside = [("nsenter", "-t", str(sandbox_pid(pod)), "-n", "nft") for pod in pods]
    chains = "; ".join(
        f"chain {hook} {{ type filter hook {hook} priority 0; policy drop; }}" for hook in ("input", "output")
    )
    try:
        for one in inside:
            on_node(*one, f"table inet soak {{ {chains}; }}")
        yield
    finally:
        for one in inside:
            with suppress(AssertionError):  # the first may have failed
                on_node(*one, "delete table inet soak")


def _alarm(action: str) -> None:
    """Raise or end etcd's own alarm of a full disk, by its gateway."""
    pki = "/var/lib/flyball-cluster/pki"
    on_node(
        "curl", "--fail", "--silent", "--show-error", "--cacert", f"{pki}/ca.crt",
        "--cert", f"{pki}/apiserver-etcd.crt", "--key", f"{pki}/apiserver-etcd.key",
        "--data", json.dumps({"action": action, "memberID": "0", "alarm": "NOSPACE"}),
        "https://127.0.0.1:2379/v3/maintenance/alarm",
    )  # fmt: skip
