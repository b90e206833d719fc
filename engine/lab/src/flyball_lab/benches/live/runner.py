"""One run on the real engine: the load from its clients, and whoever decides on the limits meanwhile.

Every run writes under an epoch of its own, the tuner's and the bench's alike, so that none can act on another's engine.
Prometheus scrapes the engine in all runs: it costs all of them the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from flyball_engine.contract import Generation, Metric, MetricName, ObjectiveSpec, Setpoint, Shed, StepBudget
from flyball_lab.benches.engine.engines import WarmEngines
from flyball_lab.benches.engine.load import Ask, Load, RequestResult, SentLoad, closed, open_loop
from flyball_lab.benches.law.setpoints import GATE_MARGIN
from flyball_lab.benches.live.calibration import Calibration
from flyball_lab.benches.live.goodput import ClientRecord, LiveRun, Objectives
from flyball_lab.benches.live.governed import NAME, LoopbackEnvironment, service
from flyball_lab.benches.live.load import PlannedRequest
from flyball_lab.benches.live.other_load import OtherLoad
from flyball_lab.benches.live.variants import Variant
from flyball_lab.harness.engine import SERVICE
from flyball_lab.harness.prometheus import ScrapeTarget, prometheus
from flyball_lab.harness.recordings import RecordingReader
from flyball_lab.harness.tuners import thinking
from flyball_lab.harness.waiting import eventually
from flyball_operator.api.v1alpha1 import TuningStatus
from flyball_operator.prometheus.client import PrometheusClient
from flyball_operator.prometheus.reader import TIMEOUT, PrometheusReader
from flyball_operator.tuning.observe.signals import Observation, Signals, Unobserved
from flyball_operator.tuning.policy import NO_BUDGET, model_spec
from flyball_operator.tuning.status_codec import step_model_of

#: Seconds between scrapes, and between decisions: the operator's default, and the scrape interval it asks for.
SCRAPE: Final = "5s"
TICK: Final = 5.0
DRAIN_SECONDS: Final = 60.0
#: In which a whole window without a request must come by.
IDLE_SECONDS: Final = 90.0
#: The service as Prometheus' target labels name it.
IDENTITY: Final = ("team", SERVICE)


@dataclass
class Runner:
    """The engines, a Prometheus that scrapes the governed one, and how often someone has written to it."""

    engines: WarmEngines
    prometheus: str
    epoch: int

    def play(
        self,
        variant: Variant,
        arrivals: Sequence[PlannedRequest],
        calibration: Calibration,
        *,
        seconds: float,
        gate: bool,
        tuning: TuningStatus,
    ) -> tuple[LiveRun, LoopbackEnvironment | None]:
        """One variant under one load, and what the tuner had around it.

        `tuning`: what the tuner knows when it begins, and by whose model a gate before limits that never move predicts.
        """
        self.epoch += 1
        objectives = calibration.objectives
        asks = [Ask(self.engines.prompts.of(one.prompt), one.output, one.at) for one in arrivals]
        longest = max((one.output for one in arrivals), default=1)
        # What is not answered by then was not in time.
        patience = seconds - max((one.at for one in arrivals), default=0.0)
        patience += objectives.ttft + longest * objectives.tpot
        url = (self.engines.stock if variant.stock else self.engines.governed.server).url
        load = open_loop(url, asks, patience=patience)
        world = None
        before = self._counted()
        servers, clients = (self.engines.governed.server, self.engines.stock), self.engines.clients
        other_load = OtherLoad([clients.session, *(server.process.pid for server in servers)])
        if variant.governed:
            world = self._world(objectives, gate=gate, tuning=tuning)
            sent = asyncio.run(self._governed(world, load))
        else:
            if not variant.stock:
                self._hold(variant, objectives, gate=gate, tuning=tuning)
            sent = clients.send(load)
        others = other_load.share()
        self._drain(variant)
        after = self._counted()
        played = LiveRun(
            seconds=seconds,
            seen=tuple(_seen(*one) for one in zip(arrivals, sent.results, strict=True)),
            counted=None if variant.stock else (after[0] - before[0], after[1] - before[1]),
            others=others,
            held=() if world is None else tuple(world.held),
            decisions=() if world is None else world.decisions,
        )
        return played, world

    def _world(self, objectives: Objectives, *, gate: bool, tuning: TuningStatus) -> LoopbackEnvironment:
        server = self.engines.governed.server
        world = LoopbackEnvironment(epoch=self.epoch, key=server.signer.key)
        world.port = httpx.URL(server.control_url).port or 0
        world.serve(service(objectives, sheds=gate, tuning=tuning))
        return world

    async def _governed(self, world: LoopbackEnvironment, load: Load) -> SentLoad:
        with closing(PrometheusReader(PrometheusClient(self.prometheus, timeout=TIMEOUT))) as reader:
            # A Prometheus that has just begun knows no window yet, and what is in another variant's is not our doing.
            async with asyncio.timeout(IDLE_SECONDS):
                while not _idle((await reader.read({IDENTITY: 1}))[IDENTITY]):  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(1.0)
            world.began = time.monotonic()
            recorded = RecordingReader(reader, IDENTITY)
            world.steps = recorded.steps
            async with thinking(world, recorded, tick=TICK):
                return await self.engines.clients.send_beside(load)

    def _hold(self, variant: Variant, objectives: Objectives, *, gate: bool, tuning: TuningStatus) -> None:
        assert variant.limits is not None
        step, shed = None, None
        if gate and (model := step_model_of(tuning.model)) is not None:
            step = StepBudget(seconds=NO_BUDGET, model=model_spec(model))
            shed = Shed(ttft_deadline_seconds=objectives.ttft, margin=GATE_MARGIN)
        wanted = Setpoint(
            service=SERVICE,
            epoch=self.epoch,
            generation=1,
            limits=variant.limits,
            step=step,
            shed=shed,
            objectives=_contract(objectives),
        )
        answer = self.engines.governed.control.put(wanted)
        if not answer.confirmed(Generation(epoch=self.epoch, generation=1)):
            raise RuntimeError(f"{variant.name} was not confirmed: {answer}")

    def _drain(self, variant: Variant) -> None:
        """Wait until nothing runs: what clients left behind must not meet the next variant."""
        unfinished = self._stock_unfinished if variant.stock else self._unfinished
        eventually(lambda: unfinished() == 0, expecting="an engine with nothing to do", within=DRAIN_SECONDS)

    def _unfinished(self) -> int:
        return sum(core.running + core.waiting for core in self.engines.governed.control.read().cores)

    def _stock_unfinished(self) -> float:
        """By vLLM's own gauges, which only a step brings up to date."""
        url = self.engines.stock.url
        self.engines.clients.send(closed(url, [Ask(self.engines.prompts.of(8), 1)], streams=1))
        text = httpx.get(f"{url}/metrics", timeout=30, trust_env=False).text
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        families = (family for family in text_string_to_metric_families(text) if family.name in names)
        return sum(sample.value for family in families for sample in family.samples)

    def _counted(self) -> tuple[int, int]:
        """Requests that kept all objectives, and all, since the engine's start and whatever objectives there were."""
        name = MetricName.ALL_OBJECTIVES_REQUESTS.removesuffix("_total")
        values = {"met": 0.0, "violated": 0.0}
        for family in text_string_to_metric_families(self.engines.governed.control.metrics()):
            if family.name == name:
                for sample in family.samples:
                    if sample.name.endswith("_total"):
                        values[sample.labels["outcome"]] += sample.value
        return int(values["met"]), int(sum(values.values()))


@contextmanager
def runner(engines: WarmEngines) -> Iterator[Runner]:
    """Engines and clients apart, and Prometheus with the clients."""
    with engines.apart(), TemporaryDirectory(prefix="flyball-live-") as folder:
        control = engines.governed.server.control_url.removeprefix("http://")
        with prometheus(Path(folder), [ScrapeTarget(control, SERVICE, pod=NAME)], scrape=SCRAPE) as running:
            accepted = engines.governed.control.read().accepted
            yield Runner(engines, running.url, accepted.epoch if accepted is not None else 0)


def _idle(observation: Observation) -> bool:
    """Whether a whole window is known, and nothing arrived in it."""
    if not isinstance(observation, Signals) or isinstance(observation.load, Unobserved):
        return False
    return observation.load.arrivals + observation.load.running <= 0


def _contract(objectives: Objectives) -> tuple[ObjectiveSpec, ...]:
    return (
        ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=objectives.ttft),
        ObjectiveSpec(metric=Metric.TIME_PER_OUTPUT_TOKEN, threshold_seconds=objectives.tpot),
    )


def _seen(arrival: PlannedRequest, result: RequestResult) -> ClientRecord:
    return ClientRecord(arrival.at, arrival.phase, arrival.output, result.status, result.first, result.ended)
