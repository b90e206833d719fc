"""The law on recorded traffic, with and without a gate."""

from __future__ import annotations

import statistics

from flyball_engine.figures import format_duration, percent
from flyball_lab.benches.interrupted import InterruptedPart
from flyball_lab.benches.law.comparison import Figures, compare
from flyball_lab.benches.law.comparison_tables import traced as tables
from flyball_lab.benches.law.scenarios import RecordedCase
from flyball_lab.benches.law.traffic import recorded
from flyball_lab.benches.options import OBJECTIVES, SHARE, Options

__all__ = ["measure", "tables"]


def measure(options: Options) -> Figures:
    """As `comparison.compare`, by whether there is a gate. Raises TraceError."""
    assert options.trace is not None
    case = recorded(options.trace, options.preset, rate=options.rate, minutes=options.minutes)
    print(f"trace: {_told(case, given=options.rate is not None)}", flush=True)
    figures: Figures = {}
    for gate, name in ((False, "open"), (True, "gated")):
        try:
            figures |= _named(compare(options, gate=gate, cases=[case]), name)
        except InterruptedPart as part:
            raise InterruptedPart(figures | _named(part.figures, name)) from part
    return figures


def _named(figures: Figures, name: str) -> Figures:
    return {f"{title}, {name}": values for title, values in figures.items()}


def _told(case: RecordedCase, *, given: bool) -> str:
    prompt, output = (statistics.fmean(row[index] for row in case.rows) for index in (1, 2))
    ttft, tpot = OBJECTIVES[case.preset]
    why = "as asked" if given else f"so that the engine is used to {percent(SHARE)} of what it carries"
    many, rate = len(case.rows), len(case.rows) / case.seconds
    return (
        f"{case.name} ({why}): {many} requests in {case.seconds:.0f} s, {rate:.1f}/s of {prompt:.0f}+{output:.0f} "
        f"tokens; objectives {format_duration(ttft)} and {format_duration(tpot)}"
    )
