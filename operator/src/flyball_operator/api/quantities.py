"""Durations and decimals as the InferenceService spells them: strings, so that no YAML reader changes their type.

A duration is a number and a unit: `500ms`, `1.5s`, `250us`, `30m`, `2h`. A decimal is digits with an optional fraction.
Pure.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

DURATION_PATTERN: Final = r"^[0-9]{1,9}(\.[0-9]{1,6})?(us|ms|s|m|h)$"
DECIMAL_PATTERN: Final = r"^[0-9]{1,3}(\.[0-9]{1,6})?$"
DURATION_HINT: Final = "a duration such as 500ms, 1.5s, 250us, 30m or 2h"

_DURATION: Final = re.compile(r"([0-9.]+)(us|ms|s|m|h)")
_UNIT_SECONDS: Final = {
    "us": Decimal("0.000001"),
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}


def parse_duration(text: str) -> Decimal:
    """Seconds in a duration string.

    Raises `ValueError` naming the accepted form.
    """
    match = _DURATION.fullmatch(text) if re.fullmatch(DURATION_PATTERN, text) else None
    if match is None:
        raise ValueError(f"{text!r} is not {DURATION_HINT}")
    return Decimal(match[1]) * _UNIT_SECONDS[match[2]]


def format_duration(seconds: float | Decimal) -> str:
    """The shortest duration string of at most four significant digits: `0.5` is `500ms`."""
    value = Decimal(seconds)
    for unit in ("h", "m", "s", "ms"):
        size = _UNIT_SECONDS[unit]
        if value >= size * (1 if unit in ("s", "ms") else 2) and (unit in ("s", "ms") or value % size == 0):
            return f"{float(value / size):.4g}{unit}"
    return f"{float(value / _UNIT_SECONDS['us']):.4g}us"
