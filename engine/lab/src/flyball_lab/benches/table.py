"""Figures as a table for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flyball_lab.benches.intervals import WIDTH

Figures = Mapping[str, Mapping[str, float]]
#: How keys of quotients end. They are drawn, too.
QUOTIENTS: Final = (" over the oracle", " over the perfect", " over the undisturbed")


def name_of(key: str) -> str:
    """Of a quotient, whose it is; any other key as it is."""
    return next((key.removesuffix(end) for end in QUOTIENTS if key.endswith(end)), key)


@dataclass(frozen=True)
class Table:
    """Heads, and rows of as many cells."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, figures: Figures) -> Table:
        """A row for each title. What only a row has (its oracle) is in a column of its own."""
        counts: dict[str, int] = {}
        for values in figures.values():
            for key in values:
                counts[key] = counts.get(key, 0) + 1
        shared = [key for key, count in counts.items() if (count > 1 or len(figures) == 1) and not key.endswith(WIDTH)]
        rows = [
            (title, *(_cell(values, key) for key in shared), _besides(values, shared))
            for title, values in figures.items()
        ]
        return cls(("", *map(name_of, shared), "besides"), tuple(rows))


def _cell(values: Mapping[str, float], key: str) -> str:
    if key not in values:
        return ""
    width = values.get(key + WIDTH)
    return f"{values[key]:.3g}" + (f" ± {width:.2g}" if width is not None else "")


def _besides(values: Mapping[str, float], shared: list[str]) -> str:
    own = (f"{key} {value:.3g}" for key, value in values.items() if key not in shared and not key.endswith(WIDTH))
    return ", ".join(own)
