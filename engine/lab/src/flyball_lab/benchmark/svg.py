"""A line chart as inline SVG: concurrency along the bottom, by powers of two. Pure.

Colours are the page's own properties (`--series-0` and so on), so that one drawing is right on light and dark ground.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from flyball_engine.figures import figure

WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 48
#: Colours there are; beyond them lines are dashed differently.
COLOURS: Final = 8
_DASHES: Final = ("", "7 4", "2 3")


@dataclass(frozen=True)
class Trace:
    """One line: name, place in the legend, points (concurrency, value), and which concurrency is the knee."""

    name: str
    index: int
    points: tuple[tuple[int, float], ...]
    knee: int | None


@dataclass(frozen=True)
class Axis:
    """A vertical axis: what it shows, in which unit, and whether it is logarithmic (else even, from zero)."""

    title: str
    unit: str
    logarithmic: bool = False


def stroke(index: int) -> str:
    """Attributes of the line of a series."""
    dash = _DASHES[index // COLOURS % len(_DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="var(--series-{index % COLOURS})"{dashes}'


def chart(axis: Axis, traces: Sequence[Trace]) -> str:
    """The drawing; an empty one says so."""
    drawn = [trace for trace in traces if trace.points]
    label = f"{axis.title} against concurrency"
    body = "".join(_body(axis, drawn)) if drawn else _text(WIDTH / 2, HEIGHT / 2, "nothing measured", "middle")
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{_text(LEFT - 52, 20, f'{axis.title} ({axis.unit})', 'start', 'title')}{body}</svg>"
    )


def _body(axis: Axis, traces: Sequence[Trace]) -> Iterator[str]:
    xs = sorted({x for trace in traces for x, _ in trace.points})
    values = [y for trace in traces for _, y in trace.points]
    ticks = decades(values) if axis.logarithmic else steps(max(values))
    across = _scale(math.log2(xs[0]) - 0.15, math.log2(xs[-1]) + 0.15, LEFT, WIDTH - RIGHT)
    height: Callable[[float], float] = math.log10 if axis.logarithmic else float
    up = _scale(height(ticks[0]), height(ticks[-1]), HEIGHT - BOTTOM, TOP)
    for tick in ticks:
        y = up(height(tick))
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(LEFT - 8, y + 4, f"{tick:.15g}", "end")
    for x in xs:
        yield _text(across(math.log2(x)), HEIGHT - BOTTOM + 18, str(x), "middle")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "requests at once (clients)", "middle")
    for trace in traces:
        places = [(across(math.log2(x)), up(height(y)), x, y) for x, y in trace.points]
        yield _line(axis, trace, places)


def _line(axis: Axis, trace: Trace, places: Sequence[tuple[float, float, int, float]]) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in places)
    colour = f"var(--series-{trace.index % COLOURS})"
    parts = [f'<polyline class="line" points="{path}" {stroke(trace.index)}/>']
    for x, y, clients, value in places:
        at_knee = clients == trace.knee
        said = f"{trace.name}, {clients} clients: {figure(value)} {axis.unit}{' (knee)' if at_knee else ''}"
        ring = f'<circle class="knee" cx="{x:.1f}" cy="{y:.1f}" r="9" stroke="{colour}"/>' if at_knee else ""
        parts.append(
            f'<g><title>{escape(said)}</title>{ring}<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/></g>'
        )
    return "".join(parts)


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def steps(largest: float) -> list[float]:
    """Round, even ticks from zero to at least `largest`: four to eight of them."""
    size = 10 ** math.floor(math.log10(largest)) if largest > 0 else 1.0
    step = next(size * factor for factor in (0.2, 0.5, 1.0, 2.0) if largest / (size * factor) <= 6)
    return [step * index for index in range(math.ceil(largest / step - 1e-9) + 1)]


def decades(values: Sequence[float]) -> list[float]:
    """Ticks at 1, 2 and 5 of each power of ten around the values; at least two."""
    low, high = min(values), max(values)
    grid = [
        factor * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factor in (1, 2, 5)
    ]
    first = max(index for index, tick in enumerate(grid) if tick <= low * (1 + 1e-9))
    last = min(index for index, tick in enumerate(grid) if tick >= high * (1 - 1e-9))
    return grid[first : max(last, first + 1) + 1]


def _text(x: float, y: float, text: str, anchor: str, style: str = "tick") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
