"""A chart of steps: what they took against what the model says, both in milliseconds on logarithmic axes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flyball_engine.model import StepModel
from flyball_operator.tuning.control_input import SHORTEST_STEP
from flyball_operator.tuning.estimate.step_time import CellMeans

#: Points that are drawn, the newest: an answer has an end.
MOST_POINTS: Final = 500
#: Sides of the square that points are in, and the room around it, for words.
SIDE: Final = 320.0
LEFT: Final = 56.0
RIGHT: Final = 20.0
ABOVE: Final = 12.0
BELOW: Final = 44.0


@dataclass(frozen=True)
class Step:
    """The mean step of a window and a cell. Milliseconds."""

    tokens: float
    mixed: bool
    measured: float
    predicted: float


@dataclass(frozen=True)
class Point:
    """A place in the drawing, from above and left."""

    x: float
    y: float
    mixed: bool


@dataclass(frozen=True)
class Tick:
    """A figure at an axis, so far from the left or from above."""

    label: str
    across: float
    down: float


@dataclass(frozen=True)
class Group:
    """Steps of like size: a row of the table that says what the chart shows. `off`: the mean error of the model."""

    tokens: str
    kind: str
    windows: int
    measured: str
    predicted: str
    off: str


@dataclass(frozen=True)
class Chart:
    """What is drawn, and the same in words."""

    points: tuple[Point, ...]
    ticks: tuple[Tick, ...]
    groups: tuple[Group, ...]
    width: float = LEFT + SIDE + RIGHT
    height: float = ABOVE + SIDE + BELOW


def steps_of(model: StepModel, cells: Sequence[CellMeans]) -> list[Step]:
    """What each took, and what the model says of it."""
    newest = sorted(cells, key=lambda one: one.at)[-MOST_POINTS:]
    return [Step(one.tokens, one.mixed, 1e3 * one.seconds, 1e3 * _predicted(model, one)) for one in newest]


def _predicted(model: StepModel, cell: CellMeans) -> float:
    seconds = model.step_seconds(
        tokens=cell.tokens,
        decodes=cell.decodes,
        prefills=cell.mixed,
        attention=cell.attention,
        kv_tokens=cell.kv_tokens,
    )
    return max(SHORTEST_STEP, seconds)


def chart(steps: Sequence[Step]) -> Chart | None:
    """The drawing, None of nothing."""
    if not steps:
        return None
    figures = [figure for one in steps for figure in (one.measured, one.predicted)]
    labels = _labels(min(figures), max(figures))

    def share(figure: float) -> float:
        return math.log(figure / labels[0]) / math.log(labels[-1] / labels[0])

    def place(across: float, down: float) -> tuple[float, float]:
        return round(LEFT + SIDE * share(across), 1), round(ABOVE + SIDE * (1.0 - share(down)), 1)

    points = (Point(*place(one.measured, one.predicted), one.mixed) for one in steps)
    ticks = (Tick(f"{label:g}", *place(label, label)) for label in labels)
    return Chart(tuple(points), tuple(ticks), tuple(_groups(steps)))


def _labels(least: float, most: float) -> list[float]:
    """1, 2 and 5 of each decade, from the last that is no more than the least to the first that is no less."""
    decades = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 2)
    labels = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    below = sum(label <= least for label in labels) - 1
    above = sum(label < most for label in labels)
    return labels[below : max(above, below + 1) + 1]


def _groups(steps: Sequence[Step]) -> list[Group]:
    alike: dict[tuple[int, bool], list[Step]] = {}
    for one in steps:
        alike.setdefault((math.ceil(math.log2(max(1.0, one.tokens))), one.mixed), []).append(one)
    return [_group(magnitude, mixed, alike[magnitude, mixed]) for magnitude, mixed in sorted(alike)]


def _group(magnitude: int, mixed: bool, steps: Sequence[Step]) -> Group:
    measured, predicted = (
        sum(part) / len(steps) for part in zip(*((s.measured, s.predicted) for s in steps), strict=True)
    )
    off = sum(one.predicted / one.measured - 1.0 for one in steps) / len(steps)
    return Group(
        tokens=f"up to {2**magnitude}",
        kind="with a prompt" if mixed else "decodes alone",
        windows=len(steps),
        measured=f"{measured:.3g} ms",
        predicted=f"{predicted:.3g} ms",
        off=f"{round(100 * off):+d} %",
    )
