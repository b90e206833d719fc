"""Panels below each other over one time axis, as PNG: what a terminal cannot show, and no page need be opened for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from flyball_lab.pages.charts import Line, Span, styled
from flyball_lab.pages.theme import LIGHT, SERIES


@dataclass(frozen=True)
class Panel:
    """Lines, each value of which holds until the next one. `marks`: values that are marked, by the line's index."""

    unit: str
    lines: Sequence[Line]
    marks: Sequence[tuple[int, float]] = ()
    logarithmic: bool = False
    most: float | None = None


def save(panels: Sequence[Panel], spans: Sequence[Span], path: Path) -> None:
    """Draw the panels, with the phases named along the top, to `path`. Times are in seconds."""
    with styled():
        figure = Figure(figsize=(9, 2.1 * len(panels)), dpi=120, layout="constrained")
        rows: Sequence[Axes] = figure.subplots(len(panels), 1, sharex=True)
        for axes, panel in zip(rows, panels, strict=True):
            _draw(axes, panel)
            for span in spans:
                axes.axvline(span.start, color=LIGHT["soft"], linewidth=0.8)
        for span in spans:
            label = span.name.replace(", ", "\n")
            rows[0].annotate(label, (span.start, 1.03), xycoords=rows[0].get_xaxis_transform(), color=LIGHT["soft"])
        rows[-1].set_xlabel("time, s")
        figure.savefig(path, facecolor=LIGHT["ground"])


def _draw(axes: Axes, panel: Panel) -> None:
    for line in panel.lines:
        places = [point.x for point in line.points], [point.y for point in line.points]
        axes.plot(*places, color=_colour(line.index), label=line.name, drawstyle="steps-post")
    for index, value in panel.marks:
        axes.axhline(value, color=_colour(index), linewidth=0.8, linestyle=":")
    axes.set_ylabel(panel.unit)
    if panel.logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    if panel.most is not None:
        axes.set_ylim(-0.03 * panel.most, 1.03 * panel.most)
    if panel.lines:
        axes.legend(loc="upper left", fontsize=7)


def _colour(index: int) -> str:
    return LIGHT[f"series-{index % SERIES}"]
