"""Quantiles of measured values. Pure."""

import math
from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """Smallest of the values that at least `share` of them (0 to 1) do not exceed; always one that occurred."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
