"""The law of a service whose requests all wait, whatever the load."""

from __future__ import annotations

from bench.law import compare


def measure(quick: bool) -> dict[str, dict[str, float]]:
    """As `law.compare`."""
    return compare(gate=False, quick=quick)
