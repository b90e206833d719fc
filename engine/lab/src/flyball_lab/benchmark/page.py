"""The report as one HTML page: no script, nothing loaded, light or dark as the reader's system is. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from flyball_engine.figures import figure
from flyball_lab.benchmark.measurements import Measurement
from flyball_lab.benchmark.points import CLIENTS_AXIS, RATE_AXIS, load_text
from flyball_lab.benchmark.report import Line, Report
from flyball_lab.benchmark.table import columns, knee_mark, milliseconds
from flyball_lab.pages import charts
from flyball_lab.pages.render import render


@dataclass(frozen=True)
class Chart:
    """What a chart shows of each point, in which unit, and whether its axis is logarithmic (else from zero)."""

    title: str
    unit: str
    value: Callable[[Measurement], float | None]
    logarithmic: bool = False

    def drawn(self, series: Sequence[Line], load: str) -> str:
        """As inline SVG; `load` is what its horizontal axis says."""
        lines = [
            charts.Line(line.name, index, [point for one in line.measurements if (point := self._point(line, one))])
            for index, line in enumerate(series)
        ]
        return charts.by_load(self.title, self.unit, lines, load=load, logarithmic=self.logarithmic)

    def _point(self, line: Line, one: Measurement) -> charts.Point | None:
        value = self.value(one)
        if not value or not math.isfinite(value):
            return None
        at_knee = knee_mark(line, one) == "knee"
        load = one.point.describe_load() + ("" if line.workload.open_loop else " clients")
        text = f"{line.name}, {load}: {figure(value)} {self.unit}{' (knee)' if at_knee else ''}"
        return charts.Point(one.point.load, value, text, ringed=at_knee)


CHARTS: Final = (
    Chart("Output", "tokens/s", lambda one: one.output_tokens_per_second),
    Chart("End to end, median", "ms", lambda one: milliseconds(one.e2e.p50), logarithmic=True),
    Chart("Time to first token, p99", "ms", lambda one: milliseconds(one.ttft.p99), logarithmic=True),
    Chart("Time per output token, p99", "ms", lambda one: milliseconds(one.tpot.p99), logarithmic=True),
)


def page(report: Report) -> str:
    """The whole page."""
    points = [one for line in report.series for one in line.measurements]
    by_workload = [report.of(workload) for workload in report.workloads]
    return render(
        "exercise.html.jinja",
        report=report,
        where=", ".join(sorted({f"{one.point.model} at {one.point.endpoint} ({one.engine})" for one in points})),
        points=len(points),
        legends=[list(map(_legend, range(len(series)), series)) for series in by_workload],
        charts=[
            [chart.drawn(report.of(workload), RATE_AXIS if workload.open_loop else CLIENTS_AXIS) for chart in CHARTS]
            for workload in report.workloads
        ],
        columns=columns,
        knee_mark=knee_mark,
    )


def _legend(index: int, line: Line) -> tuple[str, str]:
    """How the series looks, and its name with its knee."""
    knee = ""
    if line.knee is not None:
        at = load_text(line.knee.load, open_loop=line.workload.open_loop)
        knee = f" (knee at {at})" if line.knee.passed else " (no knee yet)"
    return charts.key(index, markers=True), line.name + knee
