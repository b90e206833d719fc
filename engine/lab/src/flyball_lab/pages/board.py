"""Charts and tables side by side in one drawing, which is a file of its own. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from flyball_lab.pages import charts
from flyball_lab.pages.theme import LIGHT

#: Points: of a cell, around it, and from line to line of text.
_WIDTH, _GAP, _LINE = 226.8, 14.0, 9.5
_SIZE: Final = 7.0
_FONT: Final = f"font-family: 'DejaVu Sans', Helvetica, Arial, sans-serif; font-size: {_SIZE:g}px"
#: Names to a line of a legend, and characters of a name.
_BESIDE, _NAME = 2, 24
#: Points that a character of a table takes. Where there is less room, its text is smaller.
_CHARACTER: Final = 4.0


@dataclass(frozen=True)
class Chart:
    """A chart as `charts` draws it, and the names of its lines by their place in the legend."""

    drawing: str
    names: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A title, heads of columns, and rows as long."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def board(title: str, cells: Sequence[Chart | Table], *, columns: int = 3) -> str:
    """The drawing. Cells come row by row."""
    drawn = [_chart(cell) if isinstance(cell, Chart) else _table(cell) for cell in cells]
    body, top = [_text(title, _GAP, 1.6 * _GAP, "font-weight: bold; font-size: 11px")], 2.4 * _GAP
    for begin in range(0, len(drawn), columns):
        row = drawn[begin : begin + columns]
        body += [
            f'<g transform="translate({_GAP + place * (_WIDTH + _GAP):g} {top:g})">{text}</g>'
            for place, (text, _) in enumerate(row)
        ]
        top += max(height for _, height in row) + _GAP
    width = _GAP + columns * (_WIDTH + _GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {top:g}" width="{width:g}" height="{top:g}"'
        f' role="img" aria-label="{escape(title)}" style="{_FONT}">'
        f'<rect width="100%" height="100%" fill="{LIGHT["ground"]}"/>{"".join(body)}</svg>\n'
    )


def _chart(chart: Chart) -> tuple[str, float]:
    size = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', chart.drawing)
    if size is None:
        raise ValueError("a drawing without a viewBox")
    height = float(size[2]) * _WIDTH / float(size[1])
    legend = "".join(_legend(chart.names, height + _LINE))
    lines = -(-len(chart.names) // _BESIDE)
    return _placed(chart.drawing, 0.0, 0.0, _WIDTH, height) + legend, height + _LINE * (lines + 0.5)


def _legend(names: Sequence[str], top: float) -> Iterator[str]:
    for index, name in enumerate(names):
        x, y = (index % _BESIDE) * _WIDTH / _BESIDE, top + (index // _BESIDE) * _LINE
        yield _placed(charts.key(index, markers=False), x, y - 6.5, 22, 7)
        yield _text(name[:_NAME], x + 25, y)


def _table(table: Table) -> tuple[str, float]:
    longest = [max(map(len, column)) + 2 for column in zip(table.heads, *table.rows, strict=True)]
    character = min(_CHARACTER, _WIDTH / sum(longest))
    places = [character * sum(longest[:place]) for place in range(len(longest))]
    size = f"font-size: {_SIZE * character / _CHARACTER:.3g}px"
    lines = [_text(table.title, 0, _LINE, "font-weight: bold; font-size: 8px")]
    for number, row in enumerate([table.heads, *table.rows]):
        style = f"fill: {LIGHT['soft']}; {size}" if number == 0 else size
        lines += [_text(cell, x, (number + 2.5) * _LINE, style) for x, cell in zip(places, row, strict=True)]
    return "".join(lines), (len(table.rows) + 3.5) * _LINE


def _placed(drawing: str, x: float, y: float, width: float, height: float) -> str:
    """In colours of its own, as no page gives any, and with hundredths of a point, which nobody sees."""
    drawing = re.sub(r"var\(--[\w-]+, (#[0-9a-f]{6})\)", r"\1", drawing)
    drawing = re.sub(r"(\.\d\d)\d+", r"\1", drawing)
    return drawing.replace("<svg ", f'<svg x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" ', 1)


def _text(text: str, x: float, y: float, style: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{LIGHT["ink"]}" style="{style}">{escape(text)}</text>'
