"""Attainment and replica-hours of each rule, on the same day of arrivals and the same engines."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from flyball_engine.contract import Limits, Metric
from flyball_lab.benches.figures import Figures, Tables
from flyball_lab.benches.interrupted import InterruptedPart
from flyball_lab.benches.law.plays import FixedSetpoint, LoadCase, keeps
from flyball_lab.benches.options import Options
from flyball_lab.benches.scaling.load import Arrivals, Day
from flyball_lab.benches.scaling.replica_fleet import CHOICES, ReplicaFleet
from flyball_lab.benches.scaling.rules import (
    PERIOD,
    Constant,
    Flyball,
    QueueDepth,
    Saturation,
    ScalingRule,
    SloPressure,
    bounds,
)
from flyball_lab.pages.figures import Column, FigureTable, table
from flyball_lab.simulator.presets import PRESETS
from flyball_lab.simulator.requests import Request
from flyball_operator.api.v1alpha1 import Mode
from flyball_operator.tuning.spec import Envelope, LatencyObjective, Span, TuningSpec

PRESET: Final = PRESETS["l4-8b"]
#: Objectives in seconds: to the first token, and per output token.
TTFT: Final = 3.0
TPOT: Final = 0.15
#: The share of TPOT that a step may take: the law's margin.
STEP_SHARE: Final = 0.92
SEED: Final = 2
DAY: Final = Day()
#: Replicas at the start: the night's.
FIRST: Final = 1
#: What is asked of Flyball's rule: of the requests, and of the replica-hours of the best peer that attains as much.
ASKED: Final = (0.99, 0.85)
ATTAINED: Final = "attained"
HOURS: Final = "replica-hours"
LARGEST: Final = "most replicas"
CHANGES: Final = "changes"
FLYBALL: Final = "Flyball, spec.scaling"
#: What engines can do at all: more of them than any load needs.
LARGEST_FLEET: Final = 8
CONSTANT: Final = f"always {LARGEST_FLEET}"


def tuning(speed: float) -> TuningSpec:
    """The service."""
    objectives = (
        LatencyObjective("first-token", Metric.TIME_TO_FIRST_TOKEN, TTFT, 0.01),
        LatencyObjective("per-token", Metric.TIME_PER_OUTPUT_TOKEN, TPOT, 0.01),
    )
    sizes = PRESET.sizes
    envelope = Envelope(Span(4, sizes.max_num_seqs), Span(128, sizes.max_num_batched_tokens))
    return TuningSpec(Mode.AUTO, envelope, objectives, scaling=bounds(speed))


#: Free places in each queue that WVA's rule keeps in its second setting. Its default is 3.
SPARE_QUEUE: Final = 4.0
#: By name, for a day that passes so many times as fast. A peer's first setting is the usual one.
RULES: Final[Mapping[str, Callable[[float], ScalingRule]]] = {
    FLYBALL: lambda speed: Flyball(tuning(speed)),
    "HPA, 1 waiting per pod": lambda speed: QueueDepth(1.0, speed=speed),
    "HPA, 0.2 waiting per pod": lambda speed: QueueDepth(0.2, speed=speed),
    "llm-d SLO law, 0.55/0.40": lambda speed: SloPressure(TTFT, TPOT, speed=speed),
    "llm-d SLO law, 0.80/0.60": lambda speed: SloPressure(TTFT, TPOT, up=0.80, down=0.60, speed=speed),
    "WVA saturation, spare 0.10/3": lambda _: Saturation(),
    "WVA saturation, spare 0.10/4": lambda _: Saturation(spare_queue=SPARE_QUEUE),
    CONSTANT: lambda _: Constant(LARGEST_FLEET),
}


@dataclass(frozen=True)
class Run:
    """What came of a day."""

    attained: float
    hours: float
    most: int
    changes: int

    def figures(self) -> dict[str, float]:
        """By column."""
        return {ATTAINED: self.attained, HOURS: self.hours, LARGEST: self.most, CHANGES: self.changes}


def play(
    rule: ScalingRule,
    *,
    day: Arrivals = DAY,
    seed: int = SEED,
    seconds: float = math.inf,
    choices: int = CHOICES,
    begin: int = FIRST,
) -> Run:
    """A day under a rule, and on until all is answered; what comes after `seconds` is left out.

    Replicas start the faster, the faster the day passes. `choices`: of the router. `begin`: with so many replicas.
    """
    seconds = min(seconds, day.seconds)
    requests = [one for one in day.requests(seed) if one.arrival < seconds]
    case = LoadCase(name="day", preset=PRESET, phases=(), mean_context=day.context, seconds=seconds)
    fixed = FixedSetpoint(budget=STEP_SHARE * TPOT, deadline=TTFT).setpoint(case)
    limits = Limits(max_num_active_seqs=PRESET.sizes.max_num_seqs)
    setpoint = fixed.model_copy(update={"shed": None, "limits": limits})
    first = rule.number if isinstance(rule, Constant) else begin
    preset = replace(PRESET, start_seconds=PRESET.start_seconds / day.speed)
    fleet = ReplicaFleet(preset, setpoint, first=first, seed=seed, choices=choices)
    most, changes, done, oldest = first, 0, 0, 0
    for turn in range(1, int(seconds / PERIOD) + 1):
        now = turn * PERIOD
        while done < len(requests) and requests[done].arrival <= now:
            fleet.submit(requests[done])
            done += 1
        fleet.run(now)
        while oldest < done and requests[oldest].arrival < now - 300.0:
            oldest += 1
        before = fleet.wanted
        fleet.scale(rule.replicas(fleet, requests[oldest:done]))
        changes += fleet.wanted != before
        most = max(most, fleet.wanted)
    cost = fleet.cost
    fleet.run(seconds + 300.0)
    return Run(_attained(requests), cost / 3600.0, most, changes)


def _attained(requests: list[Request]) -> float:
    return sum(keeps(one, ttft=TTFT, tpot=TPOT) for one in requests) / len(requests)


def measure(options: Options) -> dict[str, dict[str, float]]:  # noqa: ARG001 - the day is always the same
    """Figures by rule. Ctrl-C keeps those that are measured."""
    return compared(DAY)


def compared(day: Arrivals, *, begin: int = FIRST) -> dict[str, dict[str, float]]:
    """The same of any load, begun with so many replicas."""
    figures: dict[str, dict[str, float]] = {}
    for name, rule in RULES.items():
        try:
            figures[name] = play(rule(day.speed), day=day, begin=begin).figures()
        except KeyboardInterrupt:
            raise InterruptedPart(figures) from None
        print(f"  {name}: {figures[name]}", file=sys.stderr, flush=True)
    return figures


def tables(figures: Figures) -> Tables:
    """A row for each rule, and what is asked."""
    return {"": rows(figures), "asked": table(("asked", "got"), list(asked(figures).items()))}


def rows(figures: Figures) -> FigureTable:
    """A row for each rule."""
    columns = (
        "rule",
        Column(title="requests that keep both objectives, %", decimals=2),
        Column(title=HOURS, decimals=2),
        Column(title=LARGEST, digits=2),
        Column(title="changes of the number", digits=3),
    )
    made = [(name, 100 * one[ATTAINED], one[HOURS], one[LARGEST], one[CHANGES]) for name, one in figures.items()]
    return table(columns, made)


def asked(figures: Figures) -> dict[str, str]:
    """What is asked of Flyball's rule, and what it got."""
    attained, share = ASKED
    mine = figures[FLYBALL]
    # What no number of replicas up to the most attains is not asked for.
    feasible = max(one[ATTAINED] for one in figures.values())
    alike = attained * feasible
    peers = {name: one for name, one in figures.items() if name not in (FLYBALL, CONSTANT)}
    enough = {name: one for name, one in peers.items() if one[ATTAINED] >= min(alike, mine[ATTAINED])}
    got = mine[ATTAINED] / feasible
    missed = "" if got >= attained else ": missed"
    said = {f"{attained:.0%} of the requests that the largest fleet keeps".replace("%", " %"): f"{got:.4f}{missed}"}
    best = min(enough, key=lambda name: enough[name][HOURS], default=None)
    if best is None:
        return said | {f"{share} of the replica-hours of the best peer that attains as much": "no peer attains as much"}
    ratio = mine[HOURS] / enough[best][HOURS]
    missed = "" if ratio <= share else ": missed"
    return said | {
        f"{share} of the replica-hours of the best peer that attains as much": f"{ratio:.2f} ({best}){missed}"
    }
