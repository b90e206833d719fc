"""The runs on one HTML page: goodput, what was kept when, and what the tuner held live meanwhile. Pure.

No script, nothing loaded, light or dark as the reader's system is.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flyball_lab.benches.intervals import WIDTH
from flyball_lab.benches.live.goodput import LiveRun, Objectives
from flyball_lab.benches.live.load import length, phases, starts
from flyball_lab.benches.live.variants import GOVERNED
from flyball_lab.benches.table import Figures, Table
from flyball_lab.pages.charts import Dot, Line, Point, Span, dots, key, timeline
from flyball_lab.pages.render import render

#: Seconds of the load that a point of a line over time stands for.
BIN: Final = 2.0
_PARTS: Final = {"open": "All requests wait (overload: Queue)", "gated": "Late requests are refused (overload: Shed)"}


@dataclass(frozen=True)
class PartRuns:
    """Of a part its figures, and the runs of each variant."""

    figures: Figures
    runs: Mapping[str, Sequence[LiveRun]]


@dataclass(frozen=True)
class Section:
    """What the page shows of a part. `decisions`: the tuner's in each of its runs."""

    title: str
    charts: list[str]
    legend: list[tuple[str, str]]
    figures: Table
    decisions: list[tuple[str, ...]]


def page(
    parts: Mapping[str, PartRuns], objectives: Objectives | None, *, quick: bool, interrupted: bool = False
) -> str:
    """The whole page."""
    sections = [
        Section(
            title=_PARTS.get(name, name),
            charts=list(_charts(part, objectives, quick=quick)),
            legend=[(key(index, markers=False), policy) for index, policy in enumerate(part.runs)],
            figures=Table.of(part.figures),
            decisions=[run.decisions for run in part.runs.get(GOVERNED.name, ())],
        )
        for name, part in parts.items()
    ]
    return render("live.html.jinja", sections=sections, objectives=objectives, interrupted=interrupted)


def _charts(part: PartRuns, objectives: Objectives | None, *, quick: bool) -> Iterator[str]:
    rows = [
        Dot(name, values["goodput"], values.get("goodput" + WIDTH), ours=name == GOVERNED.name)
        for name, values in part.figures.items()
        if "goodput" in values
    ]
    if rows:
        yield dots("Goodput", "requests/s", rows, reference=max(row.value for row in rows))
    of = phases(quick=quick)
    spans = [Span(phase.name, start, start + phase.seconds) for start, phase in zip(starts(of), of, strict=True)]
    end = length(of)
    if objectives is not None:
        yield timeline(
            "Requests that kept all objectives", "% of those that arrived", _kept(part, objectives, end), spans
        )
    yield timeline("Requests that arrived", "requests/s", _arrived(part, end), spans)
    ours = part.runs.get(GOVERNED.name, ())
    limits = {
        ("max_num_active_seqs", "requests"): [[(row.at, float(row.seqs)) for row in run.held] for run in ours],
        ("max_num_scheduled_tokens", "tokens"): [[(row.at, float(row.tokens)) for row in run.held] for run in ours],
    }
    for (limit, unit), found in limits.items():
        title = f"{limit} that the tuner held live"
        yield timeline(title, unit, _repetitions(found), spans, logarithmic=True, held=True)
    budgets = [[(row.at, 1e3 * row.budget) for row in run.held if row.budget is not None] for run in ours]
    if any(budgets):
        yield timeline("Step budget that the tuner held live", "ms", _repetitions(budgets), spans, held=True)


def _repetitions(found: Sequence[Sequence[tuple[float, float]]]) -> list[Line]:
    return [_line(f"repetition {number + 1}", number, points) for number, points in enumerate(found)]


def _line(name: str, index: int, points: Sequence[tuple[float, float]]) -> Line:
    return Line(name, index, [Point(at, value) for at, value in points])


def _kept(part: PartRuns, objectives: Objectives, end: float) -> list[Line]:
    lines = []
    for index, (name, runs) in enumerate(part.runs.items()):
        points = []
        for number in range(int(end / BIN)):
            low, high = number * BIN, (number + 1) * BIN
            here = [one.good(objectives) for run in runs for one in run.seen if low <= one.at < high]
            if here:
                points.append((low + BIN / 2, 100.0 * statistics.fmean(here)))
        lines.append(_line(name, index, points))
    return lines


def _arrived(part: PartRuns, end: float) -> list[Line]:
    runs = next(iter(part.runs.values()), ())
    bins = [number * BIN for number in range(int(end / BIN))]
    counts = [sum(low <= one.at < low + BIN for run in runs for one in run.seen) / BIN for low in bins]
    points = [(low + BIN / 2, count / max(1, len(runs))) for low, count in zip(bins, counts, strict=True)]
    return [_line("arrivals", 0, points)]
