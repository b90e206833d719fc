"""How far a mean over seeds may be trusted. Pure.

Seeds are pairs: every policy meets the same requests with the same seed, so what is compared is the quotient of each
seed. With three seeds a bootstrap has ten different samples and is far too narrow; Student's t is meant for so few.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from scipy.special import stdtrit

CONFIDENCE: Final = 0.95
#: How the key of half of an interval ends, after the key of what it is of.
WIDTH: Final = " ±"
#: How keys of one seed's figures begin.
OF_SEED: Final = "seed "


def half_width(values: Sequence[float]) -> float | None:
    """Of the interval of the mean; None if one value says nothing of the others."""
    if len(values) < 2:
        return None
    quantile = float(stdtrit(len(values) - 1, 0.5 + CONFIDENCE / 2))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def quotients(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Seed by seed; two zeros are equal."""
    return [_quotient(one, other) for one, other in zip(values, others, strict=True)]


def _quotient(one: float, other: float) -> float:
    if other == 0.0:
        return 1.0 if one == 0.0 else math.inf
    return one / other
