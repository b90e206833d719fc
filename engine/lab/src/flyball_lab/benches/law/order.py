"""Who is served first, and who is refused: orders of prompts under setpoints that never move, and no tuner.

Goodput is compared seed by seed with that of the perfect scheduler: the on-time set with the plant's own coefficients,
and of some limits and step budgets the best in hindsight. Beside it stand first come, first served, with the same step
budget; with vLLM's defaults and other limits by hand in its place; with late ones last; with a step's tokens by P-PAS;
and with a gate that decides at arrival, with the best of the same limits.

Beyond what is carried two classes of requests are served, too: what those with objectives keep, and what batch work
gets of the rest.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from flyball_lab.benches.figures import Tables
from flyball_lab.benches.interrupted import InterruptedPart
from flyball_lab.benches.intervals import OF_SEED, quotients
from flyball_lab.benches.law.comparison import Figures
from flyball_lab.benches.law.contenders import RunFigures
from flyball_lab.benches.law.kept import Kept
from flyball_lab.benches.law.orders import (
    BY_HAND,
    DEFAULTS,
    FIRST_COME,
    LATE_LAST,
    P_PAS,
    QUEUE,
    SHED,
    WRONGLY,
    Crowd,
    QueueDiscipline,
    crowds,
    gates,
    perfect,
)
from flyball_lab.benches.law.runs import finish
from flyball_lab.benches.law.two_classes import TWO_CLASSES, TwoClasses
from flyball_lab.benches.options import Options
from flyball_lab.pages.figures import Cell, Column, FigureTable, table

OVER: Final = " over the perfect"
GOODPUT: Final = ", goodput"
BEST_GATE: Final = "the best gate at arrival"
BEST_BY_HAND: Final = "the best limits by hand"
KEPT: Final = "kept of the interactive class"
PERFECTLY_KEPT: Final = "kept by the perfect scheduler without batch work"
INFEASIBLE: Final = "interactive requests that an idle engine serves too late"
REST: Final = "batch work over the rest of the capacity"
ENDED: Final = "batch work finished"
#: From this load on the engine cannot serve all.
OVERLOAD: Final = 1.3
#: Columns of the page, by the ratios that they show.
_RATIOS: Final = {
    DEFAULTS.name + OVER: "vLLM's defaults",
    FIRST_COME.name + OVER: "first come",
    BEST_GATE + OVER: "gate at arrival",
    QUEUE.name + OVER: "on time, all wait",
    SHED.name + OVER: "on time, shed",
}
#: Columns of the table of two classes, and what each figure is multiplied by.
_CLASSES_COLUMNS: Final = {
    INFEASIBLE: ("infeasible interactive ones", 1),
    KEPT: ("of the others kept both, %", 100),
    PERFECTLY_KEPT: ("the perfect scheduler's, %", 100),
    REST: ("batch work over the rest", 1),
    ENDED: ("batch work that ended, %", 100),
}
#: Requests/s that stand for none in a quotient: three in a run.
_NONE: Final = 0.025
#: Who serves first come, first served: the name of the figures over it, and what is asked of those where all wait.
_FIRST_COME: Final = {
    "default": "all wait over vLLM's defaults (256/8192), beyond capacity: 4",
    "by_hand": "the same over the best of 256/512, 256/2048 and 256/8192",
    "fcfs": "the same over first come, first served with the same step budget",
}
#: The figures of a scenario that are summed up, and how.
SUMMED: Final[dict[str, Callable[[Sequence[float]], float]]] = {
    "queue_over_perfect_worst": min,
    "shed_over_perfect_worst": min,
    "shed_over_fixed_worst": min,
    "shed_over_fixed_hard_mean": statistics.fmean,
    "perfect_over_fixed_hard_mean": statistics.fmean,
    **{
        f"{whose}_over_{name}_{what}": how
        for name in _FIRST_COME
        for whose in ("queue", "perfect")
        for what, how in (("overload", min), ("overload_mean", statistics.geometric_mean))
    },
    "model_error_loss_worst": max,
    "admitted_ok_worst": min,
    "interactive_kept": min,
    "interactive_kept_perfectly": min,
    "batch_of_the_rest": min,
    "batch_ended": min,
}


def _over_first_come(name: str, asked: str) -> tuple[str, str, str]:
    """A row of what is asked."""
    got, own = (
        f"{{{whose}_over_{name}_overload:.1f}} in the worst seed, {{{whose}_over_{name}_overload_mean:.1f}} in the mean"
        for whose in ("queue", "perfect")
    )
    return asked, got, own


#: What is asked of them, how the page says what was got, and what the perfect scheduler has of it.
ASKED: Final[tuple[tuple[str, str, str | None], ...]] = (
    ("all wait: 0.97 of the perfect scheduler", "{queue_over_perfect_worst:.3f} in the worst seed", None),
    ("Shed: 0.97 of the perfect scheduler", "{shed_over_perfect_worst:.3f} in the worst seed", None),
    ("Shed over the best limits with a gate at arrival: 1.00", "{shed_over_fixed_worst:.2f} in the worst seed", None),
    (
        "the same in bursts and overload, mean: 1.10",
        "{shed_over_fixed_hard_mean:.2f}",
        "{perfect_over_fixed_hard_mean:.2f}",
    ),
    *(_over_first_come(name, asked) for name, asked in _FIRST_COME.items()),
    ("a model 1.5 times too fast or slow loses at most 5 %", "{model_error_loss_worst:.1%}", None),
    ("Shed: 98.5 % of those let in keep each feasible objective", "{admitted_ok_worst:.1%}", None),
    (
        "two classes at 1.5 × capacity: 99 % of the feasible interactive requests",
        "{interactive_kept:.1%} in the worst seed",
        "{interactive_kept_perfectly:.1%}",
    ),
    ("batch work has 90 % of the rest", "{batch_of_the_rest:.0%} in the worst seed", None),
    ("and loses nothing", "{batch_ended:.0%} ends", None),
)
#: What of two classes is summed up.
_SUMMED_CLASSES: Final = {
    "interactive_kept": KEPT,
    "interactive_kept_perfectly": PERFECTLY_KEPT,
    "batch_of_the_rest": REST,
    "batch_ended": ENDED,
}
#: What the impatient play of them.
_QUICK_KIND: Final = "chat"


@dataclass(frozen=True)
class _Job:
    case: Crowd
    discipline: QueueDiscipline
    seed: int
    law: bool = False

    @property
    def key(self) -> str:
        """Cases and disciplines are known by their names."""
        return f"{self.case.identity} | {self.discipline.name} | order | seed {self.seed}"

    def play(self) -> RunFigures:
        """The run."""
        return self.discipline.play(self.case, self.seed)


@dataclass(frozen=True)
class _ClassesJob:
    case: TwoClasses
    discipline: QueueDiscipline
    seed: int
    law: bool = False

    @property
    def key(self) -> str:
        """As above."""
        return f"{self.case.name} | {self.discipline.name} | order | seed {self.seed}"

    def play(self) -> RunFigures:
        """The run."""
        return self.case.play(self.discipline, self.seed)


def measure(options: Options) -> Figures:
    """By scenario, and summed up. Raises InterruptedPart with the scenarios that were finished."""
    cases, seeds = crowds(quick=options.quick), options.played
    best, gated = perfect(quick=options.quick), gates(quick=options.quick)
    disciplines = (*best, *gated, *BY_HAND, FIRST_COME, LATE_LAST, P_PAS, QUEUE, SHED, *WRONGLY)
    jobs = [_Job(case, discipline, seed) for case in cases for discipline in disciplines for seed in seeds]
    mixed = {
        case: {
            discipline: [_ClassesJob(played, discipline, seed) for seed in seeds]
            for played, disciplines in ((case, (QUEUE,)), (case.alone, best))
            for discipline in disciplines
        }
        for case in TWO_CLASSES
        if _plays(case, options)
    }
    of_classes = chain.from_iterable(chain.from_iterable(of_case.values()) for of_case in mixed.values())
    found, whole = finish([*jobs, *of_classes], Kept(options.out))
    figures: Figures = {}
    summed: dict[str, list[float]] = {}
    for case in cases:
        mine = {discipline: [_Job(case, discipline, seed).key for seed in seeds] for discipline in disciplines}
        if not all(key in found for keys in mine.values() for key in keys):
            continue
        came = {discipline: [found[key] for key in keys] for discipline, keys in mine.items()}
        for name, values in _summed(case, came, best, gated).items():
            summed.setdefault(name, []).extend(values)
        figures[case.name] = _figures(came, best, gated)
    for crowd, of_crowd in mixed.items():
        if all(job.key in found for job in chain.from_iterable(of_crowd.values())):
            outcomes = {discipline: [found[job.key] for job in jobs] for discipline, jobs in of_crowd.items()}
            figures[crowd.name] = rows = _of_classes(outcomes)
            for name, row in _SUMMED_CLASSES.items():
                summed.setdefault(name, []).append(rows[row])
    if summed:
        figures["worst"] = {name: how(summed[name]) for name, how in SUMMED.items() if name in summed}
    if not whole:
        raise InterruptedPart(figures)
    return figures


def tables(figures: Figures) -> Tables:
    """By load the orders over the perfect scheduler; two classes; what is asked, and got."""
    known = {crowd.name: crowd for crowd in crowds()}
    crowded = {known[title]: values for title, values in figures.items() if title in known}
    hard = {crowd: values for crowd, values in crowded.items() if _hard(crowd)}
    rows = [_row(crowd, values) for crowd, values in hard.items()]
    if others := [values for crowd, values in crowded.items() if crowd not in hard]:
        ranges = (_range(others, key) for key in _RATIOS)
        rows.append([f"the {len(others)} others, below capacity or as Poisson at it", None, None, *ranges, None, None])
    columns = [
        Column(title="load"),
        *(Column(title=title, digits=digits) for title, digits in (("× capacity", 2), ("perfect, /s", 4))),
        *(Column(title=title, decimals=3) for title in _RATIOS.values()),
        *(Column(title=title, digits=2) for title in ("longest wait first come, s", "all wait, s")),
    ]
    found = {"": table(columns, rows), "classes": _classes_table(figures)}
    if worst := figures.get("worst"):
        asked = [
            (one, *(text and text.format(**worst).replace("%", " %") for text in (got, own)))
            for one, got, own in ASKED
            if got[1:].partition(":")[0] in worst
        ]
        found["asked"] = table(("asked", "got", "the perfect scheduler's own"), asked)
    return found


def _hard(crowd: Crowd) -> bool:
    """Whether more comes than is carried, for a while at least."""
    return crowd.load >= OVERLOAD or (crowd.load >= 1.0 and crowd.bursts)


def _row(crowd: Crowd, values: Mapping[str, float]) -> list[Cell]:
    load = crowd.name.replace(f", {crowd.load:g} × capacity", "")
    best = next(value for key, value in values.items() if key.endswith(GOODPUT))
    waits = (values[f"longest wait, {one.name}, s"] for one in (FIRST_COME, QUEUE))
    return [load, crowd.load, best, *(values[key] for key in _RATIOS), *waits]


def _range(rows: Sequence[Mapping[str, float]], key: str) -> str:
    ratios = [values[key] for values in rows]
    return f"{min(ratios):.3f}-{max(ratios):.3f}"


def _classes_table(figures: Figures) -> FigureTable:
    rows: list[list[Cell]] = [
        [one.kind, *(share * figures[one.name][key] for key, (_, share) in _CLASSES_COLUMNS.items())]
        for one in TWO_CLASSES
        if one.name in figures
    ]
    return table(("load", *(Column(title=title, digits=4) for title, _ in _CLASSES_COLUMNS.values())), rows)


def _plays(case: TwoClasses, options: Options) -> bool:
    return not options.quick or case.kind == _QUICK_KIND


def _of_classes(came: dict[QueueDiscipline, list[RunFigures]]) -> dict[str, float]:
    """The worst seed's; of the perfect schedulers the best in hindsight."""
    mine = came[QUEUE]
    return {
        INFEASIBLE: sum(one.infeasible for one in mine),
        KEPT: min(one.kept for one in mine),
        PERFECTLY_KEPT: max(min(one.kept for one in of_one) for rule, of_one in came.items() if rule is not QUEUE),
        REST: min(one.goodput for one in mine),
        ENDED: min(one.first for one in mine),
    }


def _figures(
    came: dict[QueueDiscipline, list[RunFigures]], best: Sequence[QueueDiscipline], gated: Sequence[QueueDiscipline]
) -> dict[str, float]:
    top = _best(came, best)
    figures = {top.name + GOODPUT: statistics.fmean(_goodput(came[top]))}
    shown = {one.name: one for one in (DEFAULTS, FIRST_COME, LATE_LAST, P_PAS, QUEUE, SHED, *WRONGLY)}
    for name, discipline in {BEST_GATE: _best(came, gated), BEST_BY_HAND: _best(came, BY_HAND), **shown}.items():
        figures[name + OVER] = statistics.fmean(_over(came[discipline], came[top]))
    figures["kept of those let in, on time, shed"] = min(one.kept for one in came[SHED])
    for discipline in (FIRST_COME, LATE_LAST, QUEUE):
        figures[f"longest wait, {discipline.name}, s"] = max(one.longest for one in came[discipline])
    for discipline in (top, FIRST_COME, QUEUE, SHED):
        for seed, one in enumerate(came[discipline], 1):
            figures[f"{OF_SEED}{seed}: {discipline.name}, requests/s"] = one.goodput
    return figures


def _summed(
    case: Crowd,
    came: dict[QueueDiscipline, list[RunFigures]],
    best: Sequence[QueueDiscipline],
    gated: Sequence[QueueDiscipline],
) -> dict[str, list[float]]:
    """What each seed has for the figures that are summed up."""
    top, gate = came[_best(came, best)], came[_best(came, gated)]
    over_fixed = _over(came[SHED], gate)
    summed = {
        "queue_over_perfect_worst": _over(came[QUEUE], top),
        "shed_over_perfect_worst": _over(came[SHED], top),
        "shed_over_fixed_worst": over_fixed,
        "model_error_loss_worst": [
            1.0 - share
            for discipline in WRONGLY
            for share in _over(came[discipline], came[SHED if discipline.sheds else QUEUE])
        ],
        "admitted_ok_worst": [min(one.first, one.tokens) for one in came[SHED]],
    }
    if case.bursts or case.load >= OVERLOAD:
        summed |= {"shed_over_fixed_hard_mean": over_fixed, "perfect_over_fixed_hard_mean": _over(top, gate)}
    if case.load >= OVERLOAD:
        rules = (DEFAULTS, _best(came, BY_HAND), FIRST_COME)
        for whose, mine in (("queue", came[QUEUE]), ("perfect", top)):
            for name, rule in zip(_FIRST_COME, rules, strict=True):
                over = _over(mine, came[rule])
                summed |= {f"{whose}_over_{name}_overload{what}": over for what in ("", "_mean")}
    return summed


def _best(came: dict[QueueDiscipline, list[RunFigures]], disciplines: Sequence[QueueDiscipline]) -> QueueDiscipline:
    return max(disciplines, key=lambda discipline: statistics.fmean(_goodput(came[discipline])))


def _goodput(outcomes: Sequence[RunFigures]) -> list[float]:
    return [one.goodput for one in outcomes]


def _over(mine: Sequence[RunFigures], others: Sequence[RunFigures]) -> list[float]:
    return quotients(_goodput(mine), [max(_NONE, value) for value in _goodput(others)])
