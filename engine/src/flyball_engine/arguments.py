"""Types of command-line arguments, for argparse: numbers that say what is accepted when they are something else."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Final

_WHOLE: Final = re.compile(r"[0-9]{1,10}")
#: The most that the contract takes of a limit.
MOST: Final = 2**31 - 1


def whole(least: int, most: int = MOST) -> Callable[[str], int]:
    """A type of argument: whole numbers in this range."""

    def number(text: str) -> int:
        value = int(text) if _WHOLE.fullmatch(text) else least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"is {text!r:.40}, accepted: a whole number from {least} to {most}")
        return value

    return number


def real(holds: Callable[[float], bool], accepted: str) -> Callable[[str], float]:
    """A type of argument: numbers of which this holds."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not holds(value):
            raise argparse.ArgumentTypeError(f"is {text!r:.40}, accepted: {accepted}")
        return value

    return number
