"""The same rules on recorded traffic, begun with one replica and with more than it needs.

A trace is cut out of a running day: at its begin there is the whole load. One replica shows how fast a rule catches up,
many show what it holds a load with, and what it gives back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flyball_lab.benches.figures import Figures, Tables
from flyball_lab.benches.interrupted import InterruptedPart
from flyball_lab.benches.options import Options
from flyball_lab.benches.scaling.compare import FIRST, LARGEST_FLEET, asked, compared, rows
from flyball_lab.benches.scaling.load import Trace
from flyball_lab.pages.figures import table
from flyball_lab.simulator.workload import TraceError

#: By how the names of figures end.
BEGINS: Final = {f", from {number}": number for number in (FIRST, LARGEST_FLEET)}


def refusal(options: Options, parts: Sequence[str]) -> str | None:
    """Why it cannot be done as asked, None if it can."""
    if "trace" not in parts:
        return None
    if options.trace is None:
        return "the part trace needs --trace FILE"
    try:
        Trace.read(options.trace)
    except TraceError as error:
        return str(error)
    return None


def measure(options: Options) -> dict[str, dict[str, float]]:
    """Figures by rule, and by how many replicas there are at the begin. Raises TraceError."""
    assert options.trace is not None
    trace = Trace.read(options.trace)
    figures: dict[str, dict[str, float]] = {}
    for end, number in BEGINS.items():
        try:
            found = compared(trace, begin=number)
        except InterruptedPart as part:
            raise InterruptedPart(figures | _named(part.figures, end)) from part
        figures |= _named(found, end)
    return figures


def tables(figures: Figures) -> Tables:
    """By the begin: a row for each rule, and what is asked."""
    made = {}
    for end, number in BEGINS.items():
        found = {name.removesuffix(end): one for name, one in figures.items() if name.endswith(end)}
        made[f"from-{number}"] = rows(found)
        made[f"from-{number}.asked"] = table(("asked", "got"), list(asked(found).items()))
    return made


def _named(figures: Figures, end: str) -> dict[str, dict[str, float]]:
    return {f"{name}{end}": dict(one) for name, one in figures.items()}
