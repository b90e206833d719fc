"""Figures of several policies as dots on one axis each, with their intervals: inline SVG. Pure.

Colours are the page's own properties, as in the exercise's charts (`flyball_lab.benchmark.svg`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from flyball_lab.benchmark.svg import steps

WIDTH: Final = 620
LEFT: Final = 260
RIGHT: Final = 24
ROW: Final = 22
TOP: Final = 34
BOTTOM: Final = 30


@dataclass(frozen=True)
class Dot:
    """A policy and its figure; `width` is half of the interval, absent with a single seed. `ours` is the law's."""

    name: str
    value: float
    width: float | None
    ours: bool


def chart(title: str, dots: Sequence[Dot], *, reference: float = 1.0) -> str:
    """A row for each, and a line at the reference."""
    height = TOP + ROW * len(dots) + BOTTOM
    ticks = steps(max([reference, *(dot.value + (dot.width or 0.0) for dot in dots)]))
    scale = (WIDTH - LEFT - RIGHT) / (ticks[-1] or 1.0)
    body = [f'<text class="title" x="12" y="20">{escape(title)}</text>']
    for tick in ticks:
        x = LEFT + scale * tick
        body.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
        body.append(f'<text class="tick" x="{x:.1f}" y="{height - 10}" text-anchor="middle">{tick:.15g}</text>')
    x = LEFT + scale * reference
    body.append(f'<line class="reference" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
    for number, dot in enumerate(dots):
        body.append(_row(dot, TOP + ROW * (number + 0.5), scale))
    label = f"{title}: " + ", ".join(f"{dot.name} {dot.value:.3g}" for dot in dots)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(body)}</svg>'


def _row(dot: Dot, y: float, scale: float) -> str:
    colour = f"var(--series-{1 if dot.ours else 0})"
    x, spread = LEFT + scale * dot.value, scale * (dot.width or 0.0)
    interval = f" ± {dot.width:.2g}" if dot.width is not None else ""
    whisker = (
        f'<line class="line" x1="{max(LEFT, x - spread):.1f}" x2="{x + spread:.1f}" y1="{y:.1f}" y2="{y:.1f}" '
        f'stroke="{colour}"/>'
        if spread
        else ""
    )
    return (
        f"<g><title>{escape(f'{dot.name}: {dot.value:.3g}{interval}')}</title>"
        f'<text class="tick" x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{escape(dot.name)}</text>'
        f'{whisker}<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/></g>'
    )
