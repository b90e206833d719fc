"""The report as one HTML page: no script, nothing loaded, light or dark as the reader's system is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import Final

from flyball_lab.benchmark.measurements import Measurement
from flyball_lab.benchmark.points import Workload
from flyball_lab.benchmark.report import Line, Report
from flyball_lab.benchmark.svg import Axis, Trace, chart, stroke
from flyball_lab.benchmark.table import COLUMNS, milliseconds

Value = Callable[[Measurement], float | None]


CHARTS: Final[tuple[tuple[Axis, Value], ...]] = (
    (Axis("Output", "tokens/s"), lambda one: one.output_tokens_per_second),
    (Axis("End to end, median", "ms", logarithmic=True), lambda one: milliseconds(one.e2e.p50)),
    (Axis("Time to first token, p99", "ms", logarithmic=True), lambda one: milliseconds(one.ttft.p99)),
    (Axis("Time per output token, p99", "ms", logarithmic=True), lambda one: milliseconds(one.tpot.p99)),
)

STYLE: Final = """
:root { color-scheme: light dark; --ground: #ffffff; --card: #f6f7f9; --ink: #1c2430; --soft: #5b6675; --grid: #dde2e8;
  --series-0: #0067b1; --series-1: #c2410c; --series-2: #15803d; --series-3: #9d3fb0;
  --series-4: #a16207; --series-5: #0e7490; --series-6: #be185d; --series-7: #52525b; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #12161c; --card: #1b2129; --ink: #e6eaf0; --soft: #9aa6b5; --grid: #2f3843;
    --series-0: #5eb2f5; --series-1: #fb923c; --series-2: #4ade80; --series-3: #d08cf0;
    --series-4: #facc15; --series-5: #2dd4d8; --series-6: #f472b6; --series-7: #b4b4bd; } }
body { margin: 0 auto; max-width: 76rem; padding: 2rem 1.25rem 4rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.5rem 0 0.75rem; }
p, .soft { color: var(--soft); margin: 0.25rem 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
.charts > svg, .advice > li { background: var(--card); border-radius: 10px; }
svg { width: 100%; height: auto; display: block; }
.title { font: 600 14px system-ui, sans-serif; fill: var(--ink); }
.tick { font: 12px system-ui, sans-serif; fill: var(--soft); }
.grid { stroke: var(--grid); } .line { fill: none; stroke-width: 2.5; stroke-linejoin: round; }
.knee { fill: none; stroke-width: 2; }
.legend { display: flex; flex-wrap: wrap; gap: 0.25rem 1.25rem; list-style: none; padding: 0; margin: 0 0 0.75rem; }
.legend svg { width: 34px; height: 12px; display: inline-block; vertical-align: middle; margin-right: 0.4rem; }
.advice { list-style: none; padding: 0; display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); } .advice > li { padding: 0.75rem 1rem; }
.advice b { text-transform: capitalize; } .advice ul { margin: 0.25rem 0 0; padding-left: 1.1rem; color: var(--soft); }
.scroll { overflow-x: auto; margin-top: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.875rem; white-space: nowrap; }
th, td { padding: 0.3rem 0.6rem; text-align: right; border-bottom: 1px solid var(--grid); }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
tr.first td { border-top: 2px solid var(--grid); } tr.at-knee td { background: var(--card); font-weight: 600; }
"""


def page(report: Report) -> str:
    """The whole page."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>Flyball exercise</title><style>{STYLE}</style></head><body>{''.join(_body(report))}</body></html>\n"
    )


def _body(report: Report) -> Iterator[str]:
    points = [one for line in report.series for one in line.measurements]
    where = ", ".join(sorted({f"{one.point.model} at {one.point.endpoint} ({one.engine})" for one in points}))
    yield "<h1>Flyball exercise</h1>"
    yield f"<p>{escape(where or 'nothing measured')}</p>"
    yield f"<p>{len(points)} points, written {escape(report.generated_at)}</p>"
    if report.advice:
        yield f'<h2>Advice, from these points alone</h2><ul class="advice">{"".join(_advice(report))}</ul>'
    for workload in report.workloads:
        yield f"<h2>{escape(workload.describe())}</h2>"
        yield from _workload(report, workload)
    yield f"<h2>The knee</h2><p>{escape(report.knee_rule)} In the charts it is ringed.</p>"


def _advice(report: Report) -> Iterator[str]:
    for one in report.advice:
        figures = "".join(f"<li>{escape(figure)}</li>" for figure in one.figures)
        said = f"<b>{escape(one.work.value)}</b>: {escape(one.text)}"
        yield f"<li>{said}<ul><li>{escape(one.workload)}</li>{figures}</ul></li>"


def _workload(report: Report, workload: Workload) -> Iterator[str]:
    series = report.of(workload)
    yield f'<ul class="legend">{"".join(_legend(index, line) for index, line in enumerate(series))}</ul>'
    charts = (chart(axis, [_trace(index, line, value) for index, line in enumerate(series)]) for axis, value in CHARTS)
    yield f'<div class="charts">{"".join(charts)}</div>'
    yield f'<div class="scroll"><table><thead>{_heads()}</thead><tbody>{"".join(_rows(series))}</tbody></table></div>'


def _legend(index: int, line: Line) -> str:
    sample = f'<svg viewBox="0 0 34 12" aria-hidden="true"><path class="line" d="M1 6H33" {stroke(index)}/></svg>'
    return f"<li>{sample}{escape(line.name)}{escape(_knee(line))}</li>"


def _knee(line: Line) -> str:
    if line.knee is None:
        return ""
    return f" (knee at {line.knee.concurrency})" if line.knee.passed else " (no knee yet)"


def _trace(index: int, line: Line, value: Value) -> Trace:
    points = tuple((one.point.concurrency, seen) for one in line.measurements if (seen := value(one)))
    knee = line.knee.concurrency if line.knee and line.knee.passed else None
    return Trace(name=line.name, index=index, points=points, knee=knee)


def _heads() -> str:
    heads = "".join(f"<th>{escape(column.head)}<br/>{escape(column.unit)}</th>" for column in COLUMNS)
    return f"<tr><th>setting</th>{heads}</tr>"


def _rows(series: tuple[Line, ...]) -> Iterator[str]:
    for line in series:
        for index, one in enumerate(line.measurements):
            at_knee = line.knee is not None and line.knee.passed and line.knee.concurrency == one.point.concurrency
            classes = " ".join(name for name, is_so in (("first", not index), ("at-knee", at_knee)) if is_so)
            cells = "".join(f"<td>{escape(column.cell(line, one))}</td>" for column in COLUMNS)
            yield f'<tr class="{classes}"><td>{escape(line.name) if not index else ""}</td>{cells}</tr>'
