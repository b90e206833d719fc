"""The runs on one HTML page: goodput, what was kept when, and what the tuner held live meanwhile. Pure.

No script, nothing loaded, light or dark as the reader's system is.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from flyball_engine.figures import format_duration
from flyball_lab.benches.live.goodput import Objectives, Played
from flyball_lab.benches.live.load import length, phases, starts
from flyball_lab.benches.live.policies import GOVERNED
from flyball_lab.benches.report.chart import Dot, chart
from flyball_lab.benches.report.page import WIDTH, Figures, table
from flyball_lab.benches.report.timeline import Span, Trace, held, timeline
from flyball_lab.benchmark.page import STYLE

#: Seconds of the load that a point of a line over time stands for.
BIN: Final = 2.0
_MORE_STYLE: Final = ".reference { stroke: var(--soft); stroke-dasharray: 3 3; } td.row { white-space: nowrap; }"
_PARTS: Final = {"open": "All requests wait (overload: Queue)", "gated": "Late requests are refused (overload: Shed)"}


@dataclass(frozen=True)
class Part:
    """Of a part its figures, and the runs of each policy."""

    figures: Figures
    runs: Mapping[str, Sequence[Played]]


def page(parts: Mapping[str, Part], objectives: Objectives | None, *, quick: bool, interrupted: bool = False) -> str:
    """The whole page."""
    body = "".join(_body(parts, objectives, quick=quick, interrupted=interrupted))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>hack/bench live</title><style>{STYLE}{_MORE_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _body(parts: Mapping[str, Part], objectives: Objectives | None, *, quick: bool, interrupted: bool) -> Iterator[str]:
    yield "<h1>The tuner on real vLLM</h1>"
    yield (
        "<p>Goodput: requests per second that keep all objectives, by the clients' clock. ± is half of the 95 % "
        "interval of the mean over repetitions (Student's t); quotients are of one repetition, whose arrivals are the "
        "same.</p>"
    )
    if objectives is not None:
        first, token = format_duration(objectives.ttft), format_duration(objectives.tpot)
        yield f"<p>Objectives: a first token within {first}, {token} per token.</p>"
    if interrupted:
        yield "<p>Interrupted: only what was finished is here.</p>"
    for name, part in parts.items():
        yield f"<h2>{escape(_PARTS.get(name, name))}</h2>"
        yield f'<div class="charts">{"".join(_charts(part, objectives, quick=quick))}</div>'
        yield _legend(part)
        yield table(part.figures)
        yield from _decisions(part)


def _charts(part: Part, objectives: Objectives | None, *, quick: bool) -> Iterator[str]:
    dots = [
        Dot(name, values["goodput"], values.get("goodput" + WIDTH), ours=name == GOVERNED.name)
        for name, values in part.figures.items()
        if "goodput" in values
    ]
    if dots:
        yield chart("Goodput, requests/s", dots, reference=max(dot.value for dot in dots))
    of = phases(quick=quick)
    spans = [Span(phase.name, start, start + phase.seconds) for start, phase in zip(starts(of), of, strict=True)]
    end = length(of)
    if objectives is not None:
        yield timeline(
            "Requests that kept all objectives, % of those that arrived", _kept(part, objectives, end), spans
        )
    yield timeline("Requests that arrived, per s", _arrived(part, end), spans)
    ours = part.runs.get(GOVERNED.name, ())
    limits = {
        "max_num_active_seqs": [[(row.at, float(row.seqs)) for row in run.held] for run in ours],
        "max_num_scheduled_tokens": [[(row.at, float(row.tokens)) for row in run.held] for run in ours],
    }
    for title, found in limits.items():
        yield timeline(f"{title} that the tuner held live", _repetitions(found, end), spans, logarithmic=True)
    budgets = [[(row.at, 1e3 * row.budget) for row in run.held if row.budget is not None] for run in ours]
    if any(budgets):
        yield timeline("Step budget that the tuner held live, ms", _repetitions(budgets, end), spans)


def _repetitions(found: Sequence[Sequence[tuple[float, float]]], end: float) -> list[Trace]:
    return [Trace(f"repetition {number}", number, held(one, until=end)) for number, one in enumerate(found)]


def _kept(part: Part, objectives: Objectives, end: float) -> list[Trace]:
    lines = []
    for index, (name, runs) in enumerate(part.runs.items()):
        points = []
        for number in range(int(end / BIN)):
            low, high = number * BIN, (number + 1) * BIN
            here = [one.good(objectives) for run in runs for one in run.seen if low <= one.at < high]
            if here:
                points.append((low + BIN / 2, 100.0 * statistics.fmean(here)))
        lines.append(Trace(name, index, points))
    return lines


def _arrived(part: Part, end: float) -> list[Trace]:
    runs = next(iter(part.runs.values()), ())
    bins = [number * BIN for number in range(int(end / BIN))]
    counts = [sum(low <= one.at < low + BIN for run in runs for one in run.seen) / BIN for low in bins]
    points = [(low + BIN / 2, count / max(1, len(runs))) for low, count in zip(bins, counts, strict=True)]
    return [Trace("arrivals", 0, points)]


def _legend(part: Part) -> str:
    names = "".join(
        f'<li><svg viewBox="0 0 34 12" aria-hidden="true"><path class="line" d="M1 6H33" '
        f'stroke="var(--series-{index})"/></svg>{escape(name)}</li>'
        for index, name in enumerate(part.runs)
    )
    return f'<p>What was kept, by policy:</p><ul class="legend">{names}</ul>'


def _decisions(part: Part) -> Iterator[str]:
    for number, run in enumerate(part.runs.get(GOVERNED.name, ()), start=1):
        if run.decisions:
            rows = "".join(f"<li>{escape(one)}</li>" for one in run.decisions)
            yield f"<p>What the tuner decided, repetition {number}:</p><ul>{rows}</ul>"
