"""A service with all that dashboards look at: engines under load, a tuner, the operator's exporter, and Prometheus.

Engines are simulated ones, processes of their own, with the plugin's own exporter. The tuner decides for a clock that
runs faster than time, so that what needs a minute of load is there after a part of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

import httpx

from flyball_engine.contract import Env
from flyball_engine.signing import Signer
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.prometheus import ADDRESS, ScrapeJob, ScrapeTarget, prometheus
from flyball_lab.harness.prometheus_api import PrometheusApi
from flyball_lab.harness.tuners import TunerEnvironment, inference_service, thinking
from flyball_lab.harness.waiting import eventually
from flyball_lab.tools.metrics import operator_metrics
from flyball_operator.api import names
from flyball_operator.api.desire import Desire, read_desire
from flyball_operator.app import service_metrics
from flyball_operator.app.telemetry import Health, TelemetryServer
from flyball_operator.prometheus.client import PrometheusClient
from flyball_operator.prometheus.reader import PrometheusReader
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.tuning.metrics import TunerMetrics
from flyball_operator.tuning.ports import EnginePod

#: Of the service and its namespace, as `inference_service` has them.
UID: Final = "uid-1"
#: So many times as fast runs the clock that the tuner decides for.
FASTER: Final = 4.0
#: Seconds between ticks; Prometheus scrapes as often.
TICK: Final = 0.5
#: First tokens within a second, tokens within 60 ms; what cannot be in time is refused.
_OBJECTIVES: Final = [
    {"name": "first-token", "metric": "TimeToFirstToken", "threshold": "1s", "target": "95"},
    {"name": "per-token", "metric": "TimePerOutputToken", "threshold": "60ms", "target": "95"},
]


#: What the reconciler says of pods that serve.
_RECONCILED: Final = [
    {"type": kind, "status": "True", "reason": reason, "message": ""}
    for kind, reason in (("Accepted", "Accepted"), ("Available", "EndpointsReady"), ("Ready", "Serving"))
]


@dataclass(frozen=True)
class Traffic:
    """Requests that arrive at random: so many in a second, of so many tokens. A simulated token has four characters."""

    rate: float
    prompt: int
    output: int


@dataclass
class _Surroundings(TunerEnvironment):
    """With pods that are processes."""

    running: list[EnginePod] = field(default_factory=list)

    def pods(self, service_uid: str) -> Sequence[EnginePod]:
        return self.running if service_uid == UID else []


class ObservedService:
    """The service, while it runs."""

    def __init__(self, world: TunerEnvironment, api: PrometheusApi, addresses: Sequence[str]) -> None:
        self.world = world
        self.prometheus = api
        self._addresses = addresses
        self._random = random.Random(1)

    @asynccontextmanager
    async def load(self, *traffic: Traffic) -> AsyncIterator[None]:
        """Requests for the time of a block, to the pods by turns."""
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
            tasks = [asyncio.create_task(self._arrivals(client, one)) for one in traffic]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                for ended in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(ended, Exception):
                        raise ended

    async def _arrivals(self, client: httpx.AsyncClient, traffic: Traffic) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._random.expovariate(traffic.rate))
                group.create_task(self._request(client, traffic))

    async def _request(self, client: httpx.AsyncClient, traffic: Traffic) -> None:
        # Half of each prompt is the same for all that are so long, and may be in the prefix cache.
        half = "four" * (traffic.prompt // 2)
        messages = [{"role": "system", "content": half}, {"role": "user", "content": half}]
        body = {"messages": messages, "max_tokens": traffic.output}
        # On a busy machine a connection may end as it is used again: one request less.
        with suppress(httpx.TransportError):
            await client.post(f"{self._random.choice(self._addresses)}/v1/chat/completions", json=body)

    def desires(self) -> list[Desire]:
        """The service as the operator's cache has it."""
        shown = [one.model_dump(by_alias=True, mode="json", exclude_none=True) for one in self.world.all()]
        for one in shown:
            # The tuner writes conditions of its own, and here no reconciler is.
            one["status"]["conditions"] = [*one["status"].get("conditions", ()), *_RECONCILED]
        return [read_desire({"apiVersion": names.API_VERSION, "kind": names.KIND, **one}) for one in shown]


@asynccontextmanager
async def observed_service(folder: Path, *, pods: int = 2) -> AsyncIterator[ObservedService]:
    """Run it, with the files of Prometheus and logs in a folder."""
    world = _Surroundings()
    world.serve(inference_service(objectives=_OBJECTIVES, tuning={"overload": "Shed"}))
    with ExitStack() as stack:
        hosts = [f"127.0.{random.randrange(1, 250)}.{number + 1}" for number in range(pods)]
        api_port, exporter_port = free_port(), free_port()
        for number, host in enumerate(hosts):
            stack.enter_context(_engine(world, folder, host, api_port, number))
            world.running.append(
                EnginePod(f"chat-{number}", f"pod-{number}", host, True, f"c-{number}", 0, "team", world.port)
            )
        for host in hosts:
            eventually(partial(_answers, f"http://{host}:{api_port}/health"), expecting="the engine serves")
        targets = [ScrapeTarget(f"{pod.ip}:{world.port}", UID, pod=pod.name) for pod in world.running]
        exporters = ScrapeJob("operator", [{ADDRESS: f"127.0.0.1:{exporter_port}"}], honor_labels=True)
        scraper = stack.enter_context(prometheus(folder, targets, jobs=[exporters]))
        client = PrometheusClient(scraper.url, timeout=2.0)
        reader = stack.enter_context(closing(PrometheusReader(client, timeout=2.0, least_window=3)))
        made = ObservedService(world, PrometheusApi(scraper.url), [f"http://{host}:{api_port}" for host in hosts])
        metrics = Metrics()
        _export(metrics, made)
        exporter = TelemetryServer(metrics, Health(lambda: ()), exporter_port)
        await exporter.start()
        began = time.time()
        try:
            async with thinking(
                world,
                reader,
                tick=TICK,
                wall=lambda: began + FASTER * (time.time() - began),
                metrics=lambda _: TunerMetrics(metrics.registry),
            ):
                yield made
        finally:
            await exporter.stop()


def _export(metrics: Metrics, service: ObservedService) -> None:
    """As the operator does, under the names and labels that its sources give them."""
    labels = {one.name: one.labels for one in operator_metrics()}
    for name, values in (
        ("flyball_operator_condition", service_metrics.conditions),
        ("flyball_operator_objective_target_ratio", service_metrics.targets),
    ):
        metrics.watch_each(name, name, labels[name], lambda values=values: values(service.desires()))  # type: ignore[misc]


def _answers(url: str) -> bool:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return bool(answer.status == HTTPStatus.OK)


@contextmanager
def _engine(world: TunerEnvironment, folder: Path, host: str, port: int, number: int) -> Iterator[None]:
    """A simulated engine behind both its ports; answers after a while."""
    environment = os.environ | {
        Env.SERVICE_UID: UID,
        Env.PUBLIC_KEY: Signer(world.key).public_pem,
        Env.CONTROL_PORT: str(world.port),
    }
    command = [sys.executable, "-m", "flyball_lab.simulator", "serve", "--preset=cpu-small", "--start-seconds=0"]
    command += [f"--host={host}", f"--port={port}", f"--seed={number}"]
    with (folder / f"engine-{number}.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)
