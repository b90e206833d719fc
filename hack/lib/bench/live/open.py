"""All requests wait (`overload: Queue`)."""

from __future__ import annotations

from bench.engines import Engines
from bench.live import compare
from bench.options import Options


def measure(engines: Engines, options: Options) -> compare.Figures:
    """Goodput of each policy, and the tuner's over it."""
    return compare.measure(engines, options, gate=False)
