"""Everybody has the same gate: late requests are refused (`overload: Shed`)."""

from __future__ import annotations

from bench.engines import Engines
from bench.live import compare
from bench.options import Options


def measure(engines: Engines, options: Options) -> compare.Figures:
    """Goodput of each policy, and the tuner's over it."""
    return compare.measure(engines, options, gate=True)
