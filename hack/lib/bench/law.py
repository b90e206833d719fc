"""The law against limits that never move: requests per second that keep every objective, in the simulator.

The oracle of a scenario is the best of a grid of fixed limits, found in hindsight by trying all of it. Beside it stand
what vLLM starts with and a small C, which a person would set by hand. Every policy meets the same requests. The plant
costs what the law's model lacks (presets). Either nobody stands before the queue, or everybody has the same gate; that
of fixed limits predicts by the plant's own coefficients, that of the law by what it has learnt.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Final

from bench.closed_loop import Brain, fixed, gated
from bench.plays import keeps, known_model
from flyball_engine.contract import Limits, Metric, Setpoint
from flyball_engine.simulator.lengths import SHAPES
from flyball_engine.simulator.presets import PRESETS
from flyball_engine.simulator.requests import Fate, Request
from flyball_engine.simulator.virtual import Event, build, retune, run, slow_down
from flyball_engine.simulator.workload import Phase, workload
from flyball_operator.api.v1alpha1 import Mode
from flyball_operator.governor.spec import Envelope, Objective, Span, TuningSpec

SEEDS: Final = (1, 2, 3)
#: The first requests find an engine that knows nothing; they count.
PHASE_SECONDS: Final = 60.0
#: Seconds after the last arrival in which answers may still come in time.
AFTERWARDS: Final = 60.0
SEQS: Final = (8, 16, 32, 64, 128, 192, 256)
TOKENS: Final = (256, 512, 1024, 2048, 4096, 8192)
#: A grid for the impatient; limits by hand are in it.
COARSE: Final = ((32, 256), (512, 2048, 8192))
#: vLLM's defaults, by version and front end, and the small C of a person's hand.
BY_HAND: Final = ((256, 2048), (256, 8192), (256, 512))
TICKS: Final = (1.0, 5.0, 15.0)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A preset, phases of requests per second, and objectives in seconds.

    `context`: tokens that a decode reads in the mean. `slow` slows the plant down half-way.
    """

    name: str
    preset: str
    phases: tuple[tuple[float, str], ...]
    ttft: float
    tpot: float
    context: int = 1200
    burst: int = 1
    slow: float = 1.0

    @property
    def seconds(self) -> float:
        """Of arrivals."""
        return PHASE_SECONDS * len(self.phases)

    @property
    def tuning(self) -> TuningSpec:
        """What the law may use, and must hold: 99 % of the requests, for each objective."""
        sizes = PRESETS[self.preset].sizes
        envelope = Envelope(Span(4, sizes.max_num_seqs), Span(128, sizes.max_num_batched_tokens))
        objectives = (
            Objective("first-token", Metric.TIME_TO_FIRST_TOKEN, self.ttft, 0.01),
            Objective("per-token", Metric.TIME_PER_OUTPUT_TOKEN, self.tpot, 0.01),
        )
        return TuningSpec(Mode.AUTO, envelope, objectives)

    def requests(self, seed: int) -> list[Request]:
        """The same for every policy."""
        phases = [
            Phase(seconds=PHASE_SECONDS, rate=rate, shape=SHAPES[shape], burst=self.burst)
            for rate, shape in self.phases
        ]
        return workload(phases, Random(seed))

    def events(self) -> list[Event]:
        """What befalls the engine."""
        return [] if self.slow == 1.0 else [slow_down(self.seconds / 2, self.slow)]

    def setpoint(self, limits: Limits, *, gate: bool) -> Setpoint:
        """Fixed limits, with a gate that knows the plant's coefficients but for what no model knows."""
        if not gate:
            return fixed(limits, self.tuning)
        return gated(limits, self.tuning, known_model(PRESETS[self.preset], self.context))

    def good(self, request: Request) -> bool:
        """Whether it kept both objectives."""
        return keeps(request, ttft=self.ttft, tpot=self.tpot)


def _steady(rate: float, shape: str, phases: int = 3) -> tuple[tuple[float, str], ...]:
    return ((rate, shape),) * phases


#: Rates are shares of what the engine carries at its best, found by `hack/bench engine --part gate`.
SCENARIOS: Final = (
    Scenario(name="h100 chat", preset="h100-8b", phases=_steady(12, "conversation"), ttft=0.5, tpot=0.030),
    Scenario(
        name="h100 load steps",
        preset="h100-8b",
        phases=tuple((rate, "conversation") for rate in (8, 20, 26, 12, 22, 8)),
        ttft=0.5,
        tpot=0.030,
    ),
    Scenario(name="h100 code in bursts", preset="h100-8b", phases=_steady(8, "code"), ttft=0.5, tpot=0.030, burst=6),
    Scenario(
        name="h100 retrieval", preset="h100-8b", phases=_steady(0.45, "retrieval"), ttft=4.0, tpot=0.060, context=25_000
    ),
    Scenario(
        name="h100 mix shift",
        preset="h100-8b",
        phases=(*_steady(11, "conversation", 2), *_steady(8, "code", 2)),
        ttft=0.5,
        tpot=0.030,
    ),
    Scenario(
        name="h100 40 % slower half-way",
        preset="h100-8b",
        phases=_steady(9, "conversation", 4),
        ttft=0.5,
        tpot=0.030,
        slow=1.4,
    ),
    Scenario(name="a100 chat", preset="a100-8b", phases=_steady(4.5, "conversation"), ttft=1.0, tpot=0.050),
    Scenario(name="a100 code", preset="a100-8b", phases=_steady(3, "code"), ttft=1.0, tpot=0.050),
    Scenario(
        name="a100 long chats", preset="a100-8b", phases=_steady(0.5, "long-chat"), ttft=3.0, tpot=0.060, context=10_000
    ),
    Scenario(name="b200 chat", preset="b200-8b", phases=_steady(24, "conversation"), ttft=0.5, tpot=0.020),
)


@dataclass(frozen=True)
class Policy:
    """Fixed limits, or the law at a tick of so many seconds."""

    name: str
    limits: tuple[int, int] | None = None
    tick: float | None = None


def policies(seqs: Sequence[int] = SEQS, tokens: Sequence[int] = TOKENS) -> tuple[Policy, ...]:
    """The law at every tick, and a grid of fixed limits."""
    law = (Policy(f"the law, every {tick:g} s", tick=tick) for tick in TICKS)
    return (*law, *(Policy(f"{most}/{step}", (most, step)) for most in seqs for step in tokens))


@dataclass(frozen=True)
class _Job:
    scenario: Scenario
    policy: Policy
    seed: int
    gate: bool


@dataclass(frozen=True)
class Outcome:
    """Requests per second that kept every objective, their share of those let in, and the law's changes a minute."""

    goodput: float
    kept: float
    changes: float


def play(scenario: Scenario, policy: Policy, seed: int, *, gate: bool) -> Outcome:
    """One run."""
    tuning, until = scenario.tuning, scenario.seconds + AFTERWARDS
    core, requests = build(PRESETS[scenario.preset], seed=seed), scenario.requests(seed)
    changes = 0.0
    if policy.limits is not None:
        seqs, tokens = policy.limits
        limits = Limits(max_num_active_seqs=seqs, max_num_scheduled_tokens=tokens)
        told = retune(0.0, scenario.setpoint(limits, gate=gate))
        run(core, requests, until=until, events=[told, *scenario.events()])
    elif policy.tick is not None:
        brain = Brain(tuning, tick=policy.tick, gated=gate)
        run(core, requests, until=until, events=[*scenario.events(), *brain.events(until)])
        changes = 60.0 * brain.changes / until
    good = sum(map(scenario.good, requests))
    let_in = sum(request.fate is not Fate.SHED for request in requests)
    return Outcome(good / scenario.seconds, good / max(1, let_in), changes)


def compare(*, gate: bool, quick: bool) -> dict[str, dict[str, float]]:
    """By scenario: goodput of the law and of limits by hand over the oracle's, means of the seeds.

    `quick`: one seed, and an oracle of six limits instead of 42.
    """
    tried, seeds = (policies(*COARSE), SEEDS[:1]) if quick else (policies(), SEEDS)
    jobs = [_Job(scenario, policy, seed, gate) for scenario in SCENARIOS for policy in tried for seed in seeds]
    figures: dict[str, dict[str, float]] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        outcomes = dict(zip(jobs, _told(pool.map(_play, jobs, chunksize=4), len(jobs)), strict=True))
    for scenario in SCENARIOS:
        by_policy = {policy: [outcomes[_Job(scenario, policy, seed, gate)] for seed in seeds] for policy in tried}
        figures[scenario.name] = _figures(by_policy)
    return figures | _summary(figures)


def _play(job: _Job) -> Outcome:
    return play(job.scenario, job.policy, job.seed, gate=job.gate)


def _told(outcomes: Iterable[Outcome], total: int) -> Iterable[Outcome]:
    for number, outcome in enumerate(outcomes, start=1):
        if number % 100 == 0:
            print(f"  {number} of {total} runs", file=sys.stderr, flush=True)
        yield outcome


def _figures(by_policy: Mapping[Policy, Sequence[Outcome]]) -> dict[str, float]:
    mean = {policy: statistics.fmean(one.goodput for one in found) for policy, found in by_policy.items()}
    oracle = max((policy for policy in mean if policy.limits is not None), key=mean.__getitem__)
    figures = {f"oracle {oracle.name}, goodput": mean[oracle]}
    for policy, goodput in mean.items():
        if policy.tick is not None:
            figures[f"{policy.name}, over the oracle"] = goodput / mean[oracle]
            figures[f"{policy.name}, kept of those let in"] = min(one.kept for one in by_policy[policy])
            figures[f"{policy.name}, changes a minute"] = max(one.changes for one in by_policy[policy])
        elif policy.limits in BY_HAND:
            figures[f"{policy.name} over the oracle"] = goodput / mean[oracle]
    return figures


def _summary(figures: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Worst scenario and geometric mean."""
    kinds = [key for key in next(iter(figures.values())) if key.endswith("over the oracle")]
    found = {kind: [values[kind] for values in figures.values()] for kind in kinds}
    return {
        "worst": {kind: min(values) for kind, values in found.items()},
        "geometric mean": {kind: statistics.geometric_mean(values) for kind, values in found.items()},
    }
