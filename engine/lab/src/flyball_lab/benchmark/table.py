"""The report as text, for a terminal. Pure. "-" is what could not be observed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from flyball_engine.figures import figure, percent
from flyball_lab.benchmark.advice import lines
from flyball_lab.benchmark.measurements import Measurement
from flyball_lab.benchmark.points import Workload
from flyball_lab.benchmark.report import Line, Report

ABSENT: Final = "-"


@dataclass(frozen=True)
class Column:
    """A column: its two-line head, and how a point's cell is made."""

    head: str
    unit: str
    cell: Callable[[Line, Measurement], str]


def milliseconds(seconds: float | None) -> float | None:
    """What could be observed, in milliseconds."""
    return None if seconds is None else 1e3 * seconds


def _cell(value: float | None, digits: int = 3) -> str:
    return ABSENT if value is None else figure(value, digits)


def _share(one: Measurement) -> str:
    share = one.utilisation.share if one.utilisation else None
    return ABSENT if share is None else percent(share)


def knee_mark(line: Line, one: Measurement) -> str:
    """Says of the point at the knee that it is, and of the last one that it may lie beyond."""
    if line.knee is None or line.knee.load != one.point.load:
        return ""
    return "knee" if line.knee.passed else "not yet"


CLIENTS: Final = Column("clients", "", lambda _, one: f"{one.point.load:g}")
RATE: Final = Column("rate", "/s", lambda _, one: f"{one.point.load:g}")
GAIN: Final = Column("gain", "× 1", lambda line, one: _cell(line.gain.get(one.point.concurrency or 0), 2))
COLUMNS: Final = (
    CLIENTS,
    RATE,
    Column("output", "tokens/s", lambda _, one: _cell(one.output_tokens_per_second)),
    Column("total", "tokens/s", lambda _, one: _cell(one.total_tokens_per_second)),
    GAIN,
    Column("requests", "/s", lambda _, one: _cell(one.requests_per_second)),
    Column("TTFT p50", "ms", lambda _, one: _cell(milliseconds(one.ttft.p50))),
    Column("p99", "ms", lambda _, one: _cell(milliseconds(one.ttft.p99))),
    Column("TPOT p50", "ms", lambda _, one: _cell(milliseconds(one.tpot.p50))),
    Column("p99", "ms", lambda _, one: _cell(milliseconds(one.tpot.p99))),
    Column("e2e p50", "ms", lambda _, one: _cell(milliseconds(one.e2e.p50))),
    Column("p99", "ms", lambda _, one: _cell(milliseconds(one.e2e.p99))),
    Column("running", "mean", lambda _, one: _cell(one.utilisation.running) if one.utilisation else ABSENT),
    Column("slots", "used", lambda _, one: _share(one)),
    Column("errors", "", lambda _, one: str(one.failed)),
    Column("knee", "", knee_mark),
)


def columns(workload: Workload) -> tuple[Column, ...]:
    """The columns of a workload's table."""
    others = (CLIENTS, GAIN) if workload.open_loop else (RATE,)
    return tuple(column for column in COLUMNS if column not in others)


def table(report: Report) -> str:
    """All of it: a table for each workload, the errors, the rule of the knee, the advice."""
    return "\n".join(_parts(report)) + "\n"


def _parts(report: Report) -> Iterator[str]:
    for workload in report.workloads:
        lines_of = report.of(workload)
        yield f"\n{workload.describe()}"
        yield from _rows(lines_of, columns(workload))
        for line in lines_of:
            for one in line.measurements:
                yield from (
                    f"  {line.name} at {one.point.describe_load()}: {count} × {reason}"
                    for reason, count in one.errors.items()
                )
    yield f"\n{report.knee_rule}"
    if report.advice:
        yield "\nAdvice, from these points alone:"
        yield from lines(report.advice)


def _rows(series: Sequence[Line], shown: Sequence[Column]) -> Iterator[str]:
    heads = [["", *(column.head for column in shown)], ["", *(column.unit for column in shown)]]
    body = [
        [line.name if first else "", *(column.cell(line, one) for column in shown)]
        for line in series
        for first, one in ((index == 0, one) for index, one in enumerate(line.measurements))
    ]
    widths = [max(len(row[index]) for row in [*heads, *body]) for index in range(len(shown) + 1)]
    for row in [*heads, *body]:
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()
