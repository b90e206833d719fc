"""How figures are written for people and in status: durations, numbers and percentages. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Context, Decimal
from functools import cache
from typing import Final

#: Seconds in each unit of a duration, the smallest first.
UNIT_SECONDS: Final[Mapping[str, Decimal]] = {
    "us": Decimal("0.000001"),
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}


def format_duration(seconds: float | Decimal, digits: int = 4) -> str:
    """A duration of so many significant digits at most, in the largest unit that reads well: `0.5` is `500ms`.

    Minutes and hours are used only where they come out whole (`120` is `2m`, `90` is `90s`).
    """
    value = _rounded(seconds, digits)
    if not value:
        return "0s"
    for unit in ("h", "m", "s", "ms"):
        size = UNIT_SECONDS[unit]
        whole_only = unit in ("h", "m")
        if value >= size * (2 if whole_only else 1) and (not whole_only or value % size == 0):
            return _plain(value / size) + unit
    return _plain(value / UNIT_SECONDS["us"]) + "us"


def figure(value: float, digits: int = 3) -> str:
    """A number of so many significant digits, six at most: `43210` is `43200`. It has an exponent from a million on."""
    return f"{significant(value, digits):g}"


def significant(value: float, digits: int) -> float:
    """The number that is nearest to this one, of so many significant digits."""
    return float(_rounded(value, digits))


def percent(share: float, decimals: int = 0) -> str:
    """A share of 1 in percent: `0.5` is `50 %`."""
    return f"{100 * share:.{decimals}f} %"


def _rounded(value: float | Decimal, digits: int) -> Decimal:
    return _context(digits).create_decimal(value)


@cache
def _context(digits: int) -> Context:
    return Context(prec=digits)


def _plain(value: Decimal) -> str:
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
