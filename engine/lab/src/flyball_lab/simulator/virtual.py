"""A run in virtual time: requests arrive, things happen, and the core says what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from random import Random

from flyball_engine.batching.batch_metrics import BatchCounts, batch_counts
from flyball_engine.batching.outcomes import LedgerCounts
from flyball_engine.batching.step_statistics import step_sums
from flyball_engine.contract import Setpoint, StepSums
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.core_config import CoreConfig, Speculation
from flyball_lab.simulator.plant import USUAL, Disturbances, Plant, StepTimes
from flyball_lab.simulator.presets import EnginePreset
from flyball_lab.simulator.requests import Request

#: Something that is done to a core at a time.
Act = Callable[[Core], None]


@dataclass(frozen=True)
class TimedAct:
    """`act` happens at `at` seconds."""

    at: float
    act: Act


def retune(at: float, setpoint: Setpoint) -> TimedAct:
    """A setpoint arrives: its limits hold from the next step on, its objectives and its deadline at once."""

    def act(core: Core) -> None:
        core.follow(setpoint)
        core.apply(setpoint)

    return TimedAct(at, act)


def slow_down(at: float, factor: float) -> TimedAct:
    """Steps take so many times as long from now on."""

    def act(core: Core) -> None:
        core.plant.slow_down = factor

    return TimedAct(at, act)


def crash(at: float, *, start_seconds: float) -> TimedAct:
    """The engine dies and is back after `start_seconds`."""
    return TimedAct(at, lambda core: core.crash(at, start_seconds=start_seconds))


@dataclass(frozen=True)
class SimulationResult:
    """What came of a run: every request with its times and its fate, and the counters an engine would show."""

    requests: Sequence[Request]
    counts: LedgerCounts
    steps: tuple[StepSums, ...]
    batches: BatchCounts
    preemptions: int
    seconds: float


def build(
    preset: EnginePreset,
    *,
    seed: int = 1,
    disturbances: Disturbances = USUAL,
    plant: Callable[[StepTimes, Random, Disturbances], Plant] = Plant,
    speculation: Speculation | None = None,
    sums: MutableSequence[float] | None = None,
    batch_sums: MutableSequence[float] | None = None,
) -> Core:
    """A core of a preset, started at its sizes, on its `plant`; sums as for `Core`."""
    random = Random(seed)
    config = CoreConfig(sizes=preset.sizes, kv_tokens=preset.kv_tokens, speculation=speculation)
    return Core(config, plant(preset.step_times, random, disturbances), random, sums=sums, batch_sums=batch_sums)


def run(core: Core, requests: Sequence[Request], *, until: float, events: Iterable[TimedAct] = ()) -> SimulationResult:
    """Drive a core from where it stands to `until`; requests in order of arrival. At one time events come first."""
    acts = sorted(events, key=lambda event: event.at)
    done = 0
    for request in requests:
        while done < len(acts) and acts[done].at <= min(request.arrival, until):
            _perform(core, acts[done])
            done += 1
        if request.arrival > until:
            break
        core.run(request.arrival)
        core.submit([request])
    for event in acts[done:]:
        if event.at <= until:
            _perform(core, event)
    core.run(until)
    return SimulationResult(
        requests,
        core.ledger.collect(),
        step_sums(core.statistics.sums),
        batch_counts(core.batches.sums),
        core.scheduler.preemptions,
        until,
    )


def _perform(core: Core, event: TimedAct) -> None:
    core.run(event.at)
    event.act(core)
