"""The law of a service whose overload is shed: with a step budget and a gate."""

from __future__ import annotations

from flyball_lab.benches.law.comparison import Figures, compare
from flyball_lab.benches.law.comparison_tables import tables
from flyball_lab.benches.options import Options

__all__ = ["measure", "tables"]


def measure(options: Options) -> Figures:
    """As `comparison.compare`."""
    return compare(options, gate=True)
