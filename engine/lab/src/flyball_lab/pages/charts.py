"""Charts as inline SVG, drawn by matplotlib without a display. Pure: the same data give the same text.

A chart is drawn 80 mm wide, and legible at that width. Colours are CSS properties of the page (`theme`), so one drawing
fits light and dark ground. Texts stay texts: they can be searched, and the browser's font shows them.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from xml.etree import ElementTree as ET

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from flyball_lab.pages.theme import LIGHT, SERIES

#: Inches: 80 mm.
WIDTH: Final = 80 / 25.4
#: Characters to a line, of titles and of the names of rows.
_TITLE, _NAME = 46, 26
_PLAIN_NUMBER: Final = "{x:.12g}"
_MARKERS: Final = "osD^vPX*"
#: As many as have no divisor in common with the colours: 24 series look different.
_DASHES: Final = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
_PROPERTIES: Final = {colour: f"var(--{name}, {colour})" for name, colour in LIGHT.items()}
_REFERENCE: Final[dict[str, Any]] = {"color": LIGHT["soft"], "linewidth": 0.8, "linestyle": (0, (2, 2))}
_SETTINGS: Final[dict[str, Any]] = {
    "axes.axisbelow": True,
    "axes.edgecolor": LIGHT["grid"],
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": LIGHT["soft"],
    "axes.labelsize": 7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "figure.titlesize": 8,
    "figure.titleweight": "bold",
    "font.size": 7,
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "flyball",
    "xtick.bottom": False,
    "ytick.left": False,
    "text.color": LIGHT["ink"],
    "text.parse_math": False,
    **{f"{axis}tick.{what}": LIGHT["soft"] for axis in "xy" for what in ("color", "labelcolor")},
    **{f"{axis}tick.labelsize": 7 for axis in "xy"},
}


@dataclass(frozen=True)
class Point:
    """A point of a line. `text` is shown where the pointer rests on it. `ringed`: it stands out."""

    x: float
    y: float
    text: str = ""
    ringed: bool = False


@dataclass(frozen=True)
class Line:
    """A line: its name, its place in the legend, and its points by rising x."""

    name: str
    index: int
    points: Sequence[Point]


@dataclass(frozen=True)
class Dot:
    """A row: its name and value; `width` is half of the interval, if there is one. `ours` looks different."""

    name: str
    value: float
    width: float | None
    ours: bool


@dataclass(frozen=True)
class Span:
    """A phase: its name, and where it begins and ends, in seconds."""

    name: str
    start: float
    end: float


def by_load(title: str, unit: str, lines: Sequence[Line], *, load: str, logarithmic: bool = False) -> str:
    """Lines over the load, by powers of two; `load` says what that is.

    The vertical axis begins at zero, or is logarithmic.
    """
    label = f"{title} against {load}"
    lines = [line for line in lines if line.points]
    with _figure(title, 56) as (figure, axes):
        axes.set(xlabel=load, ylabel=_plain(unit))
        if not lines:
            return _nothing_measured(figure, axes, label)
        for line in lines:
            look = _look(line.index, marked=True)
            axes.plot(*_places(line.points), **look)
            if ringed := [point for point in line.points if point.ringed]:
                look |= {"marker": "o", "markersize": 9, "fillstyle": "none", "linestyle": "none"}
                axes.plot(*_places(ringed), **look | {"gid": f"knee-{line.index}"})
        _scale(axes, logarithmic=logarithmic)
        ticks = sorted({point.x for line in lines for point in line.points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        return _svg(figure, label, {_id(line.index): [point.text for point in line.points] for line in lines})


def timeline(
    title: str,
    unit: str,
    lines: Sequence[Line],
    spans: Sequence[Span],
    *,
    logarithmic: bool = False,
    held: bool = False,
) -> str:
    """Lines over the time of a run, with its phases named along the top. `held`: a value holds until the next one."""
    end = max((span.end for span in spans), default=1.0)
    with _figure(title, 48) as (figure, axes):
        axes.set(xlabel="time, s", ylabel=_plain(unit))
        for line in lines:
            points = [point for point in line.points if point.x <= end and (point.y > 0 or not logarithmic)]
            if points:
                last = [replace(points[-1], x=end)] if held else []
                axes.plot(*_places(points + last), **_look(line.index), drawstyle="steps-post" if held else "default")
        if not axes.lines:
            return _nothing_measured(figure, axes, title)
        _scale(axes, logarithmic=logarithmic)
        axes.set_xlim(0.0, end)
        for number, span in enumerate(spans):
            axes.axvline(span.start, **_REFERENCE)
            axes.annotate(
                _plain(span.name),
                (span.start, 1.0),
                # By turns, so that names longer than their phase do not meet.
                xytext=(2, 2 + 8 * (number % 2)),
                xycoords=axes.get_xaxis_transform(),
                textcoords="offset points",
                color=LIGHT["soft"],
            )
        return _svg(figure, title, {_id(line.index): [line.name] for line in lines})


def dots(title: str, unit: str, rows: Sequence[Dot], *, reference: float = 1.0) -> str:
    """A row for each dot, with its interval, and a line at the reference. What is not finite has no dot."""
    names = ["\n".join(textwrap.wrap(_plain(row.name), _NAME)) for row in rows]
    ends = list(itertools.accumulate(1.0 + 0.7 * name.count("\n") for name in names))
    middles = [(start + end) / 2 for start, end in itertools.pairwise([0.0, *ends])]
    drawn = [(row, at) for row, at in zip(rows, middles, strict=True) if math.isfinite(row.value)]
    texts = {}
    with _figure(title, 16 + 4.2 * ends[-1]) as (figure, axes):
        axes.axvline(reference, **_REFERENCE)
        for index in sorted({int(row.ours) for row, _ in drawn}):
            mine = [(row, at) for row, at in drawn if row.ours == bool(index)]
            look = _look(index, marked=True) | {"linestyle": "none"}
            axes.plot([row.value for row, _ in mine], [at for _, at in mine], **look)
            for row, at in mine:
                if row.width:
                    axes.hlines(at, max(0.0, row.value - row.width), row.value + row.width, color=look["color"])
            texts[look["gid"]] = [_told(row) for row, _ in mine]
        largest = max([reference, *(row.value + (row.width or 0.0) for row, _ in drawn)])
        axes.set(xlabel=_plain(unit), xlim=(0.0, 1.05 * largest or 1.0), ylim=(ends[-1], 0.0))
        axes.set_yticks(middles, names)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(_PLAIN_NUMBER)
        label = f"{title}: " + ", ".join(f"{row.name} {row.value:.3g}" for row in rows)
        return _svg(figure, label, texts)


def key(index: int, *, markers: bool) -> str:
    """How the line of a series looks, for a legend."""
    with styled():
        figure = Figure(figsize=(0.5, 0.15))
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        axes.plot((0, 1, 2), (0, 0, 0), **_look(index, marked=markers), markevery=[1])
        return _svg(figure, "")


def _told(row: Dot) -> str:
    return f"{row.name}: {row.value:.3g}" + (f" ± {row.width:.2g}" if row.width is not None else "")


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's settings of all charts, meanwhile."""
    # Whatever a matplotlibrc of the user's says.
    with style.context(["default", _SETTINGS]), warnings.catch_warnings():
        # The browser draws the text: a glyph that matplotlib's own font lacks is missing nowhere.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        yield


@contextmanager
def _figure(title: str, height: float) -> Iterator[tuple[Figure, Axes]]:
    """A figure of so many millimetres below the first line of its title, and its axes."""
    lines = textwrap.wrap(_plain(title), _TITLE)
    with styled():
        figure = Figure(figsize=(WIDTH, (height + 4 * (len(lines) - 1)) / 25.4), layout="constrained")
        figure.suptitle("\n".join(lines), x=0.01, horizontalalignment="left")
        yield figure, figure.add_subplot()


def _nothing_measured(figure: Figure, axes: Axes, label: str) -> str:
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center", va="center", color=LIGHT["soft"])
    return _svg(figure, label)


def _scale(axes: Axes, *, logarithmic: bool) -> None:
    """Scale the vertical axis to the lines that are drawn."""
    low, high = axes.dataLim.intervaly
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1e4 * low else (1.0,), numticks=12))
        if high < 4 * low:
            axes.set_ylim(low / 2, high * 2)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
        axes.set_ylim(0.0, 1.05 * high or 1.0)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(_PLAIN_NUMBER)


def _places(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point.x for point in points], [point.y for point in points]


def _id(index: int) -> str:
    return f"series-{index}"


def _look(index: int, *, marked: bool = False) -> dict[str, Any]:
    look = {"color": LIGHT[f"series-{index % SERIES}"], "linestyle": _DASHES[index % len(_DASHES)], "gid": _id(index)}
    return look | ({"marker": _MARKERS[index % len(_MARKERS)], "clip_on": False} if marked else {})


def _plain(text: str) -> str:
    """Without what no XML can hold."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def _svg(figure: Figure, label: str, texts: Mapping[str, Sequence[str]] | None = None) -> str:
    """The drawing, to be put into a page. A screen reader says the `label`; without one the drawing is decoration.

    `texts`: by id of a group what the pointer shows on each of its markers, or on all of it if it has none.
    """
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    root = ET.fromstring(file.getvalue())
    # A page has several drawings, and an id is of the whole page.
    prefix = hashlib.sha256(file.getvalue()).hexdigest()[:8]
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {
            name.rpartition("}")[2]: _refer(name, value, prefix) for name, value in element.attrib.items()
        }
        element.text = element.text if (element.text or "").strip() else None
        element.tail = None
    for defs in root.findall("defs[style]"):
        root.remove(defs)  # its rule is about all elements, which would be the page's
    root.attrib = {"viewBox": root.attrib["viewBox"]}
    root.attrib |= {"role": "img", "aria-label": _plain(label)} if label else {"aria-hidden": "true"}
    for name, said in (texts or {}).items():
        for group in root.iterfind(f".//g[@id='{prefix}-{name}']"):
            for target, text in zip(list(group.iter("use")) or [group], said, strict=True):
                title = ET.Element("title")
                title.text = _plain(text)
                target.insert(0, title)
    return ET.tostring(root, encoding="unicode")


def _refer(name: str, value: str, prefix: str) -> str:
    """An attribute's value, with the page's colours and with ids of this drawing alone."""
    if name == "style":
        return re.sub("#[0-9a-f]{6}", lambda found: _PROPERTIES.get(found[0], found[0]), value)
    if name == "id":
        return f"{prefix}-{value}"
    return value.replace("#", f"#{prefix}-")
