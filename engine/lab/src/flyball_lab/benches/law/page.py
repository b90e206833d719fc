"""The figures of `hack/bench law` as one HTML page. Pure.

No script, nothing loaded, light or dark as the reader's system is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flyball_lab.benches.intervals import OF_SEED, WIDTH
from flyball_lab.benches.table import QUOTIENTS, Figures, Table, name_of
from flyball_lab.pages.charts import Dot, dots
from flyball_lab.pages.render import render

#: What is said of each part.
_PARTS: Final = {
    "open": "Nobody stands before the queue",
    "gated": "Everybody has the same gate",
    "order": "Constant setpoints: who is served first, and who is refused",
    "robust": "Disturbed: the law, and limits that never move, over their own undisturbed runs",
    "ablate": "What each constant of the law buys",
    "trace": "Recorded traffic",
}


@dataclass(frozen=True)
class Section:
    """A part: its charts, its figures of all seeds together, and those of each seed by itself."""

    title: str
    charts: list[str]
    figures: Table
    seeds: Table


def page(parts: Mapping[str, Figures], *, interrupted: bool = False) -> str:
    """The whole page."""
    sections = [_section(_PARTS.get(part, part), figures) for part, figures in parts.items()]
    return render("law.html.jinja", sections=sections, interrupted=interrupted)


def _section(title: str, figures: Figures) -> Section:
    seeds = {row: _of_seeds(values) for row, values in figures.items() if _of_seeds(values)}
    together = {
        row: {key: value for key, value in values.items() if not key.startswith(OF_SEED)}
        for row, values in figures.items()
    }
    return Section(title, _charts(figures), Table.of(together), Table.of(seeds))


def _of_seeds(values: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in values.items() if key.startswith(OF_SEED)}


def _charts(figures: Figures) -> list[str]:
    """One for each title; titles of the form `group: one of it` are rows of their group's."""
    rows: dict[str, list[Dot]] = {}
    units: dict[str, dict[str, None]] = {}
    for title, values in figures.items():
        group, _, of_it = title.partition(": ")
        for key, value in values.items():
            if key.endswith(QUOTIENTS):
                whose = name_of(key)
                name = ", ".join(filter(None, (of_it, whose.removeprefix("the law") if of_it else whose)))
                dot = Dot(name, value, values.get(key + WIDTH), ours=whose.startswith("the law"))
                rows.setdefault(group, []).append(dot)
                units.setdefault(group, {})[f"goodput{key.removeprefix(whose)}"] = None
    return [dots(group, ", ".join(units[group]), of_group) for group, of_group in rows.items()]
