"""The law of a service whose overload is shed: with a step budget and a gate."""

from __future__ import annotations

from bench.law import compare


def measure(quick: bool) -> dict[str, dict[str, float]]:
    """As `law.compare`."""
    return compare(gate=True, quick=quick)
