"""The law without a gate, as the operator runs today."""

from __future__ import annotations

from bench.law import compare


def measure(quick: bool) -> dict[str, dict[str, float]]:
    """As `law.compare`."""
    return compare(gate=False, quick=quick)
