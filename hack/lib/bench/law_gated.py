"""The law with a step budget and a gate, which engines have and the operator does not send yet."""

from __future__ import annotations

from bench.law import compare


def measure(quick: bool) -> dict[str, dict[str, float]]:
    """As `law.compare`."""
    return compare(gate=True, quick=quick)
