"""`flyball replay` over a real Prometheus: what it says the law would have done is what the law did."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from flyball_lab.harness.engines import serving
from flyball_lab.harness.plant import PlantPhase
from flyball_lab.harness.prometheus import Prometheus, ScrapeTarget, prometheus
from flyball_lab.harness.tuners import Thinking, TunerEnvironment, inference_service, thinking, until
from flyball_operator.cli import past
from flyball_operator.cli.entry import main
from flyball_operator.cli.replayed import Replay
from flyball_operator.cli.time_range import TimeRange, rfc3339
from flyball_operator.prometheus.client import PrometheusClient
from flyball_operator.prometheus.reader import PrometheusReader
from flyball_operator.tuning import status_codec
from flyball_operator.tuning.estimate.step_time import Fit
from flyball_operator.tuning.metrics import TunerMetrics
from flyball_operator.tuning.observe.signals import Attainment, Identity, Observation, PodOutcomes, Unobserved
from flyball_operator.tuning.state import Decision
from support.past import manifest

STEP = 0.5
#: A scrape may take as long as the interval between two; what is older is all there.
SETTLED_SECONDS = 1.5


class Noted(TunerMetrics):
    """Metrics that keep each decision."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.decisions: list[Decision] = []

    def decided(self, namespace: str, service: str, decision: Decision, fit: Fit | None) -> None:
        super().decided(namespace, service, decision, fit)
        self.decisions.append(decision)


@dataclass
class Settled:
    """The live reader, each tick a step later, as soon as Prometheus holds all that was scraped until then."""

    reader: PrometheusReader
    began: float = field(default_factory=lambda: float(math.ceil(time.time())))
    ticks: int = 0
    thinking: Thinking | None = None

    @property
    def at(self) -> float:
        """The time that is decided for."""
        return self.began + (self.ticks - 1) * STEP

    async def read(self, pods: Mapping[Identity, int]) -> Mapping[Identity, Observation]:
        assert self.thinking is not None
        # A tuner that is busy misses a tick.
        tuners = self.thinking.tuner._tuners.values()
        await until("it is done with the tick before", lambda: not any(tuner.lock.locked() for tuner in tuners))
        self.ticks += 1
        await until("all of it is scraped", lambda: time.time() >= self.at + SETTLED_SECONDS)
        return await asyncio.to_thread(self.reader.read_at, self.at, pods)

    async def attainment(self) -> Mapping[Identity, Attainment | Unobserved] | Unobserved:
        return await self.reader.attainment()

    async def pod_outcomes(self, windows: Mapping[Identity, int]) -> Mapping[Identity, PodOutcomes | Unobserved]:
        return await self.reader.pod_outcomes(windows)


#: By turns chats with long prompts, and more chats than are carried: no limits suit both.
SHIFTING = [[PlantPhase(12, 5, 120, 40), PlantPhase(12, 0.8, 1500, 16)], [PlantPhase(12, 20, 240, 40)]] * 30


@dataclass(frozen=True)
class Lived:
    """What a live tuner decided, when, and how to ask for it again."""

    decisions: list[Decision]
    arguments: tuple[str, ...]
    span: TimeRange
    url: str


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[[TunerEnvironment], Prometheus]]:
    with contextlib.ExitStack() as stack:

        def run(world: TunerEnvironment) -> Prometheus:
            pods = world.engines["uid-1"]
            targets = [ScrapeTarget(f"{pod.ip}:{pod.port}", "uid-1", pod=pod.name) for pod in pods]
            return stack.enter_context(prometheus(tmp_path, targets))

        yield run


async def live(world: TunerEnvironment, running: Prometheus, folder: Path) -> Lived:
    """A live tuner tunes an engine, from a cold start through loads that shift."""
    noted: list[Noted] = []

    def metrics(registry: CollectorRegistry) -> TunerMetrics:
        noted.append(Noted(registry))
        return noted[-1]

    with closing(PrometheusReader(PrometheusClient(running.url, timeout=5.0), timeout=5.0)) as reader:
        settled = Settled(reader)
        async with thinking(world, settled, tick=STEP, wall=lambda: settled.at, metrics=metrics) as at_work:
            settled.thinking = at_work
            await until("the model is learnt", lambda: "ModelLearned" in world.reasons())
            await until("retuned", lambda: "Retuned" in world.reasons())
            await until("every load has come once", lambda: settled.ticks * STEP >= 40.0, patience=120.0)
    decisions = noted[0].decisions
    first, last = decisions[0].at, decisions[-1].at
    path = folder / "chat.yaml"
    # As it was applied: with what status holds now, the replay might know the answer.
    path.write_text(yaml.safe_dump(manifest(inference_service())))
    times = ("--from", rfc3339(first), "--to", rfc3339(last), "--step", "500ms")
    span = TimeRange(round(1000 * first), round(1000 * last), round(1000 * STEP))
    return Lived(decisions, ("replay", "-f", str(path), "--prometheus", running.url, *times), span, running.url)


async def test_a_replay_decides_as_the_live_loop_did(
    tmp_path: Path, running: Callable[[TunerEnvironment], Prometheus], capsys: pytest.CaptureFixture[str]
) -> None:
    world = TunerEnvironment()
    # Of several engines one would have the first change alone for a while, and the decisions of that while be undone.
    pods = [world.engine("chat-0")]
    world.serve(inference_service(), *pods)
    async with serving(*pods):
        pods[0].load(SHIFTING, seed=0)
        lived = await live(world, running(world), tmp_path)
    # To the last digit of each prediction.
    assert await asyncio.to_thread(_replayed, lived) == lived.decisions

    recorded = tmp_path / "past.jsonl"
    said = await asyncio.to_thread(_said, (*lived.arguments, "-o", "json", "--record", str(recorded)), capsys)
    again = await asyncio.to_thread(_said, ("replay", "--recorded", str(recorded), "-o", "json"), capsys)
    assert said == again, "byte for byte"
    document = json.loads(said)
    assert [_as_live(tick) for tick in document["ticks"]] == [_shown(decision) for decision in lived.decisions]
    # The engines followed the live tuner, which is what the replay decided: but for the time that took.
    summary = document["summary"]
    assert summary["engines_ran_the_same_ticks"] > summary["engines_ran_known_ticks"] / 2
    # The last tick may be the one that changed them, which no scrape had shown by then; a scrape may be late as well.
    told = {(one.limits.max_num_active_seqs, one.limits.max_num_scheduled_tokens) for one in pods[0].engine.history}
    *_, ran = (
        tick["ran"] for tick in document["ticks"] if tick["ran"] and tick["ran"]["max_num_active_seqs"] is not None
    )
    assert (ran["max_num_active_seqs"][0], ran["max_num_scheduled_tokens"][0]) in told


def _replayed(lived: Lived) -> list[Decision]:
    with closing(past.asked(lived.url, lived.span, manifest(inference_service()), record=None)) as observed:
        replay = Replay(observed.service, resume=False)
        return [replay.tick(observation, ran, at) for at, observation, ran in observed.ticks()]


def _said(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def _as_live(tick: Mapping[str, Any]) -> tuple[object, ...]:
    return tick["time"], tick["hold"], tick["trigger"], tick["setpoint"]


def _shown(decision: Decision) -> tuple[object, ...]:
    hold = None if decision.hold is None else decision.hold.value
    setpoint = status_codec.setpoint_status(decision.policy).model_dump(exclude_none=True)
    return rfc3339(decision.at), hold, decision.trigger, setpoint
