"""The law of a service whose requests all wait, whatever the load."""

from __future__ import annotations

from bench.law import Figures, compare
from bench.options import Options


def measure(options: Options) -> Figures:
    """As `law.compare`."""
    return compare(options, gate=False)
