"""Everybody has the same gate: late requests are refused (`overload: Shed`)."""

from __future__ import annotations

from flyball_lab.benches.engine.engines import WarmEngines
from flyball_lab.benches.live import compare
from flyball_lab.benches.live.compare import tables
from flyball_lab.benches.options import Options

__all__ = ["measure", "tables"]


def measure(engines: WarmEngines, options: Options) -> compare.Figures:
    """Goodput of each variant, and the tuner's over it."""
    return compare.measure(engines, options, gate=True)
