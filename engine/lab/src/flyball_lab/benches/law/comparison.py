"""The law against limits that never move, and against other rules: requests per second that keep every objective.

The oracle of a scenario is the best of a grid of fixed limits, found in hindsight by trying all of it. Beside it
stand what vLLM starts with and a small C, which a person would set by hand, and the baselines (`baselines`). Every
policy meets the same requests. Either all of them wait, or overload is shed: with the law as it ships, by what it has
learnt; with all others by a gate that foresees the queue at arrival, by the plant's own coefficients. Behind a gate
the oracle may hold steps to a budget, too, and choose the gate's margin, so that what the law is ahead by is not its
actuator.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flyball_lab.benches.interrupted import InterruptedPart
from flyball_lab.benches.intervals import OF_SEED, WIDTH, half_width, quotients
from flyball_lab.benches.law.contenders import (
    BY_HAND,
    COARSE,
    COARSE_BUDGETS,
    Contender,
    RunFigures,
    contenders,
    gated_contenders,
    play,
    the_law,
)
from flyball_lab.benches.law.kept import Kept
from flyball_lab.benches.law.measures import BIN, start_seconds
from flyball_lab.benches.law.runs import finish
from flyball_lab.benches.law.scenarios import SCENARIOS, Case
from flyball_lab.benches.options import Options

#: The best of the grid without a budget for steps, behind the gate that all others have.
PLAIN: Final = "the best limits alone"
#: How keys end, whose figures are quotients; and half the width of their 95 % interval, where there are several seeds.
OVER: Final = " over the oracle"
#: How keys end of which the least is the worst, and those of which the most is.
LEAST: Final = (" of those let in",)
MOST: Final = (" a minute", " s")
#: What a decision seldom made costs: of the whole run, to which who decides every 15 s comes 14 s later, and of what
#: comes once that is over.
SELDOM: Final = "deciding at 15 s over 1 s, goodput"
SELDOM_LATER: Final = "deciding at 15 s over 1 s, goodput after the first minute"
WARM_UP_BINS: Final = int(60.0 / BIN)

Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class _Job:
    case: Case
    contender: Contender
    seed: int
    gate: bool

    @property
    def law(self) -> bool:
        """Whether the law drives it."""
        return self.contender.tick is not None

    @property
    def key(self) -> str:
        """Cases and contenders are known by their names."""
        return f"{self.case.identity} | {self.contender.name} | {'gated' if self.gate else 'open'} | seed {self.seed}"

    def play(self) -> RunFigures:
        """The run."""
        return play(self.case, self.contender, self.seed, gate=self.gate)


def compare(options: Options, *, gate: bool, cases: Sequence[Case] = SCENARIOS) -> Figures:
    """By scenario: goodput of the law, of its baselines and of limits by hand over the oracle's, means of the seeds.

    Behind a gate the oracle may also hold steps to a budget and choose the gate's margin, as the law does. With --quick
    an oracle of six limits instead of 42, and of four such. Raises InterruptedPart with the scenarios that were
    finished.
    """
    cases = [case for case in cases if not options.scenarios or case.name in options.scenarios]
    tried = contenders(*COARSE) if options.quick else contenders()
    if gate:
        tried += gated_contenders(*COARSE_BUDGETS) if options.quick else gated_contenders()
    jobs = [_Job(case, contender, seed, gate) for case in cases for contender in tried for seed in options.played]
    found, whole = finish(jobs, Kept(options.out))
    figures: Figures = {}
    shares: dict[str, dict[str, list[float]]] = {}
    for case in cases:
        mine = [job for job in jobs if job.case is case]
        if all(job.key in found for job in mine):
            by_contender: dict[Contender, list[RunFigures]] = {}
            for job in mine:
                by_contender.setdefault(job.contender, []).append(found[job.key])
            figures[case.name], shares[case.name] = _figures(by_contender)
    figures |= _summary(figures, shares)
    if not whole:
        raise InterruptedPart(figures)
    return figures


def _figures(by_contender: Mapping[Contender, Sequence[RunFigures]]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Of a scenario; and the quotients of each seed."""
    goodput = {contender: [one.goodput for one in found] for contender, found in by_contender.items()}
    oracle = max(
        (contender for contender in goodput if contender.in_grid), key=lambda one: statistics.fmean(goodput[one])
    )
    best = statistics.fmean(goodput[oracle])
    figures, shares = {f"oracle {oracle.name}, goodput": best}, {}
    # What nobody carries is too low whoever decides.
    least_below = min(max(one.below for one in found) for found in by_contender.values())
    figures["below 95 %, the least of any policy, s"] = least_below
    plain = max((contender for contender in goodput if contender.plain), key=lambda one: statistics.fmean(goodput[one]))
    if any(contender.in_grid and not contender.plain for contender in goodput):
        figures[PLAIN + OVER] = statistics.fmean(goodput[plain]) / best if best else 1.0
        shares[PLAIN + OVER] = quotients(goodput[plain], goodput[oracle])
    for contender, values in goodput.items():
        for seed, value in enumerate(values, 1):
            if contender is oracle or not contender.in_grid:
                name = "oracle" if contender is oracle else contender.name
                figures[f"{OF_SEED}{seed}: {name}, requests/s"] = value
        if contender.in_grid and (contender.limits not in BY_HAND or not contender.plain):
            continue
        key = contender.name + OVER
        figures[key] = statistics.fmean(values) / best if best else 1.0
        shares[key] = quotients(values, goodput[oracle])
        if (width := half_width(shares[key])) is not None:
            figures[key + WIDTH] = width
        if contender.tick is not None and not contender.constant:
            figures |= {
                f"{contender.name}, {name}": value
                for name, value in _of_the_law(by_contender[contender], by_contender[oracle]).items()
            }
    seldom, often = (by_contender.get(the_law(tick)) for tick in (15.0, 1.0))
    if seldom is not None and often is not None:
        figures[SELDOM] = statistics.fmean(quotients([one.goodput for one in seldom], [one.goodput for one in often]))
        figures[SELDOM_LATER] = statistics.fmean(quotients(_later(seldom), _later(often)))
    return figures, shares


def _later(found: Sequence[RunFigures]) -> list[float]:
    """Requests of each seed that came after the first minute and kept all."""
    return [float(sum(one.good_each[WARM_UP_BINS:])) for one in found]


def _of_the_law(found: Sequence[RunFigures], oracle: Sequence[RunFigures]) -> dict[str, float]:
    """What else is asked of it: of all seeds the worst."""
    starts = [start_seconds(one.good_each, best.good_each) for one, best in zip(found, oracle, strict=True)]
    return {
        "kept of those let in": min(one.kept for one in found),
        "first tokens in time of those let in": min(one.first for one in found),
        "other tokens in time of those let in": min(one.tokens for one in found),
        "changes a minute": max(one.changes for one in found),
        "from the start to 95 % of the oracle, s": max(starts),
        "below 95 %, s": max(one.below for one in found),
        "below 95 % among those let in, s": max(one.below_let_in for one in found),
        "to recover from an overload, s": max(one.recovery for one in found),
    }


def _summary(figures: Figures, shares: Mapping[str, Mapping[str, Sequence[float]]]) -> Figures:
    """Worst scenario and geometric mean; its interval is that of the seeds, the scenarios being what they are."""
    if len(figures) < 2:
        return {}
    keys = next(iter(figures.values()))
    kinds = [key for key in keys if key.endswith(OVER)]
    least = [key for key in keys if key in (SELDOM, SELDOM_LATER) or key.endswith((OVER, *LEAST))]
    worst = {key: min(values[key] for values in figures.values()) for key in least}
    worst |= {key: max(values[key] for values in figures.values()) for key in keys if key.endswith(MOST)}
    means = {kind: _geometric([values[kind] for values in figures.values()]) for kind in kinds}
    for kind in kinds:
        by_seed = zip(*(share[kind] for share in shares.values()), strict=True)
        if (width := half_width([_geometric(values) for values in by_seed])) is not None:
            means[kind + WIDTH] = width
    return {"worst": worst, "geometric mean": means}


def _geometric(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values) if min(values) > 0 else 0.0
