"""Lines over the time of a run as inline SVG, with its phases named along the top. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from flyball_lab.benchmark.svg import decades, steps, stroke

WIDTH, HEIGHT = 620, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 48, 26
#: Seconds between ticks along the bottom.
TICK: Final = 5.0


@dataclass(frozen=True)
class Trace:
    """One line: its name, its colour (of the page's series), and points (seconds, value)."""

    name: str
    index: int
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Span:
    """A phase: its name, and where it begins and ends, in seconds."""

    name: str
    start: float
    end: float


def held(points: Sequence[tuple[float, float]], *, until: float) -> list[tuple[float, float]]:
    """A value that holds until the next one, drawn so."""
    corners: list[tuple[float, float]] = []
    for number, (at, value) in enumerate(points):
        end = points[number + 1][0] if number + 1 < len(points) else until
        corners += [(at, value), (max(at, end), value)]
    return corners


def timeline(title: str, traces: Sequence[Trace], spans: Sequence[Span], *, logarithmic: bool = False) -> str:
    """The drawing; its values begin at zero, or are above it and on a logarithmic axis."""
    values = [value for trace in traces for _, value in trace.points if value > 0 or not logarithmic]
    end = max((span.end for span in spans), default=1.0)
    body = "".join(_body(traces, spans, values, end, logarithmic=logarithmic)) if values else ""
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'<text class="title" x="12" y="20">{escape(title)}</text>{body}</svg>'
    )


def _body(
    traces: Sequence[Trace], spans: Sequence[Span], values: Sequence[float], end: float, *, logarithmic: bool
) -> Iterator[str]:
    ticks = decades(values) if logarithmic else steps(max(values))
    low, high = (math.log10(ticks[0]), math.log10(ticks[-1])) if logarithmic else (ticks[0], ticks[-1])

    def across(at: float) -> float:
        return LEFT + at / end * (WIDTH - LEFT - RIGHT)

    def up(value: float) -> float:
        place = math.log10(value) if logarithmic else value
        return HEIGHT - BOTTOM - (place - low) / (high - low or 1.0) * (HEIGHT - TOP - BOTTOM)

    for tick in ticks:
        y = up(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(LEFT - 6, y + 4, f"{tick:.15g}", "end")
    for number in range(int(end / TICK) + 1):
        yield _text(across(number * TICK), HEIGHT - 8, f"{number * TICK:g} s", "middle")
    for span in spans:
        x = across(span.start)
        yield f'<line class="reference" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 16}" y2="{HEIGHT - BOTTOM}"/>'
        yield _text(x + 4, TOP - 6, span.name, "start")
    for trace in traces:
        path = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in trace.points if at <= end)
        colour = stroke(trace.index)
        yield f'<g><title>{escape(trace.name)}</title><polyline class="line" points="{path}" {colour}/></g>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
