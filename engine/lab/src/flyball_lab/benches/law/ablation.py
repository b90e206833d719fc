"""What each constant of the law buys: goodput with it switched off, and moved by half up and down, over that as it is.

Every run is the law at its 5 s, where all wait and where the late are refused, on all scenarios and, for one seed, on
thirty made at random or, with --quick, on a few. A difference up to `NOISE` is not counted. Where a constant changes no
call to an engine, its run is the one as it is, and is not simulated again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Final

from flyball_engine.figures import percent
from flyball_lab.benches.figures import Tables
from flyball_lab.benches.interrupted import InterruptedPart
from flyball_lab.benches.law.comparison import Figures
from flyball_lab.benches.law.contenders import RunFigures, play, the_law
from flyball_lab.benches.law.kept import Kept
from flyball_lab.benches.law.random_scenarios import random_scenarios
from flyball_lab.benches.law.recorded_service import RecordedService
from flyball_lab.benches.law.runs import finish
from flyball_lab.benches.law.scenarios import SCENARIOS, Scenario, scenario
from flyball_lab.benches.options import Options
from flyball_lab.harness.manifests import Object
from flyball_lab.pages.figures import Cell, Column, table
from flyball_operator.tuning.tunables import TUNABLES, Tunables

TICK: Final = 5.0
#: Stands for all of them.
ALL: Final = "all"
#: Share of goodput up to which a difference is taken for noise.
NOISE: Final = 0.01
#: Keys of the figures.
MEAN: Final = "goodput over that as it is, mean"
BEST: Final = "best"
BEYOND: Final = f"runs that differ by more than {percent(NOISE)}"
MOVED: Final = (0.5, 1.5)
#: Scenarios of --quick: bursts, steps beyond capacity, long prompts, a change of mix and a start without a model.
QUICK: Final = (
    "h100 load steps",
    "h100 code in bursts",
    "h100 retrieval",
    "h100 mix shift",
    "h100 bursts before a model",
)
#: An engine that half-way becomes too slow for its load: what notices a change of the engine earns nothing elsewhere.
SLOWED: Final = replace(scenario("h100 mix shift"), name="h100 mix shift, 40 % slower half-way", slow=1.4)
#: Answers that no objective for whole ones allows, and then short ones: an engine that refuses must find out.
LONG_ANSWERS_END: Final = replace(
    scenario("h100 whole answers"),
    name="h100 long answers end",
    phases=((1.0, "reasoning"),) * 2 + ((12.0, "conversation"),) * 2,
    answer=600,
)
#: Played with each seed, and so many that are made from a seed, besides.
CASES: Final = (*SCENARIOS, SLOWED, LONG_ANSWERS_END)
RANDOM: Final = 30
#: Values that switch a rule off, where there is one.
OFF: Final[Mapping[str, Any]] = {
    "changes_apart": 0.0,
    "cusum_alarm": math.inf,
    "first_token_margin": 1.0,
    "huber": math.inf,
    "hysteresis": 0.0,
    "kept_per_window": 0.0,
    "largest_error": math.inf,
    "least_first_share": 0.0,
    "least_noise": 1e-9,
    "long_step": 1.0,
    "guess_pull": 1e-6,
    "proven_pull": 1e-6,
    "token_margin": 1.0,
}
#: Shares, of which more than the whole means nothing: they are moved half-way to it instead.
SHARES: Final = (
    "first_token_margin",
    "kept_per_window",
    "least_first_share",
    "long_prompt",
    "short_answer",
    "token_margin",
)
#: Constants that no goodput hangs on: what status says, and filters against faults that no scenario has.
INERT: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("tail", "window_seconds"),
        "it is about what status says of capacity: tests/perturb/test_capacity.py",
    ),
    **dict.fromkeys(
        ("alike", "fewer_seconds", "most_growth", "spare"),
        "it is about what is said of capacity and replicas: tests/unit/test_capacity.py",
    ),
    **dict.fromkeys(
        ("rollback_hold", "trial_seconds"),
        "it is about policies that fail: tests/unit/test_setpoint_trial.py",
    ),
    "compared_seconds": (
        "it is about what tells pods and cores apart: tests/unit/test_slow_pods.py, tests/perturb/test_bench_law.py"
    ),
    "gap_share": "it is about objectives for gaps, which goodput does not count: tests/perturb/test_constants.py",
    "kv_free": "it is about engines that stand still: tests/unit/test_stall.py",
    "slower": "it is about what status says of pods: tests/unit/test_slow_pods.py",
    "stale_seconds": "it is about a Prometheus that stands still: tests/unit/test_service_tuner.py",
}


@dataclass(frozen=True)
class Run:
    """The law on a scenario with one constant changed."""

    case: Scenario
    seed: int
    gate: bool
    #: The constant and its value; None: all as they are.
    changed: tuple[str, Any] | None

    @property
    def law(self) -> bool:
        """It drives all of them."""
        return True

    @property
    def key(self) -> str:
        """What it is kept under."""
        what = "as it is" if self.changed is None else f"{self.changed[0]} = {_said(self.changed[1])}"
        return f"{self.case.identity} | {what} | {'gated' if self.gate else 'open'} | seed {self.seed}"

    def play(self) -> RunFigures:
        """What came of it, by a simulation of its own if it decides otherwise."""
        as_it_is, service = _as_it_is(self.case, self.seed, gate=self.gate)
        if self.changed is None:
            return as_it_is
        with in_force(self.changed):
            if service.same():
                return as_it_is
            return play(self.case, the_law(TICK), self.seed, gate=self.gate)


@lru_cache(maxsize=1)  # a process plays the changes of a run one after the other
def _as_it_is(case: Scenario, seed: int, *, gate: bool) -> tuple[RunFigures, RecordedService]:
    services: list[RecordedService] = []

    def recorded(service: Object) -> RecordedService:
        services.append(RecordedService(service))
        return services[-1]

    return play(case, the_law(TICK), seed, gate=gate, service=recorded), services[0]


def measure(options: Options) -> Figures:
    """By constant and value: mean and worst of the quotients of goodput, and what goes worst.

    Raises InterruptedPart with the runs that were finished.
    """
    named = QUICK if options.quick and not options.scenarios else options.scenarios
    played = [(case, seed) for seed in options.played for case in CASES]
    played += [(case, 1) for case in random_scenarios(RANDOM)]
    runs = [(case, seed, gate) for case, seed in played if not named or case.name in named for gate in (False, True)]
    asked = names() if ALL in options.ablate or not options.ablate else options.ablate
    changes = [change for name in asked for change in changed(name)]
    jobs = [Run(*run, change) for run in runs for change in (None, *changes)]
    found, whole = finish(jobs, Kept(options.out))
    # All constants are judged by the same runs, though it was interrupted.
    ended = [run for run in runs if all(Run(*run, change).key in found for change in (None, *changes))]
    figures: Figures = {}
    for name, value in changes if ended else ():
        pairs = [(Run(*run, None).key, Run(*run, (name, value)).key) for run in ended]
        shares = {moved: _over(found[moved], found[as_it_is]) for as_it_is, moved in pairs}
        figures[f"{name} {getattr(TUNABLES, name)} → {_said(value)}"] = _figures(shares)
    if not whole:
        raise InterruptedPart(figures)
    return figures


def tables(figures: Figures) -> Tables:
    """The constants and values that move some run by more than noise, and how many constants do not."""
    rows: list[tuple[Cell, ...]] = []
    constants, moving = set[str](), set[str]()
    for title, values in figures.items():
        name, value, _, moved = title.split(" ")
        constants.add(name)
        if not values[BEYOND]:
            continue
        moving.add(name)
        worst = next(key for key in values if key.startswith("worst ("))
        case, _, how = worst.removeprefix("worst (").removesuffix(")").rpartition(", ")
        where = f"{case.removeprefix('h100 ')}, {'refused' if how == 'gated' else 'queued'}"
        told = f"{values[worst]:.3f} ({where})"
        rows.append((f"`{name}`", _cell(value), _cell(moved), values[MEAN], told, values[BEST]))
    if still := sorted(f"`{name}`" for name in constants - moving):
        rows.append((", ".join(still), None, None, f"no run moves by more than {percent(NOISE)}", None, None))
    numbers = [Column(title=title, digits=4) for title in ("value", "set to")]
    mean, best = (Column(title=title, decimals=3) for title in ("mean", "best"))
    return {"": table(("constant", *numbers, mean, "worst", best), rows)}


def _cell(text: str) -> float | str:
    """A value of a constant, as the titles of figures have it."""
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else "∞"


def names() -> list[str]:
    """The constants that goodput hangs on."""
    return [one.name for one in fields(Tunables) if one.name not in INERT]


def changed(name: str) -> Iterator[tuple[str, Any]]:
    """A constant with the values it is tried with."""
    if name in OFF:
        yield name, OFF[name]
    value = getattr(TUNABLES, name)
    if isinstance(value, tuple):
        return
    for factor in MOVED:
        moved = value * factor
        if name in SHARES and moved >= 1.0:
            moved = (1.0 + value) / 2
        yield name, max(1, round(moved)) if isinstance(value, int) else moved


def _said(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _over(one: RunFigures, base: RunFigures) -> float:
    return one.goodput / base.goodput if base.goodput else 1.0


def _figures(shares: Mapping[str, float]) -> dict[str, float]:
    worst = min(shares, key=lambda key: shares[key])
    ratios: Sequence[float] = list(shares.values())
    beyond = sum(abs(one - 1.0) > NOISE for one in ratios)
    case, _, how, _ = worst.split(" | ")
    return {
        MEAN: statistics.fmean(ratios),
        f"worst ({case}, {how})": shares[worst],
        BEST: max(ratios),
        BEYOND: beyond,
    }


@contextmanager
def in_force(change: tuple[str, Any] | None) -> Iterator[None]:
    """For a run, in a process of its own, another value of a constant: nothing else ever writes to it."""
    if change is None:
        yield
        return
    name, value = change
    before = getattr(TUNABLES, name)
    object.__setattr__(TUNABLES, name, value)
    try:
        yield
    finally:
        object.__setattr__(TUNABLES, name, before)
