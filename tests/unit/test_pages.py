"""Charts as their readers see them, and templates: labels, units, series, and texts that come from outside."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

import jinja2
import pytest

from flyball_lab.pages.charts import Dot, Line, Point, Span, by_load, dots, key, timeline
from flyball_lab.pages.render import render
from flyball_lab.pages.theme import DARK, LIGHT

#: What HTML, XML, TeX or a font could take for something else, or lacks.
FOREIGN = "<b>&amp; $x$ \x01 名"
SPANS = [Span("calm", 0.0, 4.0), Span("bursts", 4.0, 8.0)]


def a_line(index: int, *points: tuple[float, float], name: str = "a line", ringed: float | None = None) -> Line:
    return Line(name, index, [Point(x, y, f"{name} at {x:g}", ringed=x == ringed) for x, y in points])


def words(svg: str) -> list[str]:
    """Every text that is drawn."""
    return [text.text or "" for text in ET.fromstring(svg).iter("text")]


def titles(svg: str) -> list[str]:
    """What is shown where the pointer rests."""
    return [title.text or "" for title in ET.fromstring(svg).iter("title")]


def groups(svg: str, kind: str) -> list[ET.Element]:
    """Of series or rings."""
    return [group for group in ET.fromstring(svg).iter("g") if re.search(rf"-{kind}-\d+$", group.get("id", ""))]


def path(group: ET.Element) -> list[tuple[float, float]]:
    """Corners of its line."""
    (line,) = group.iter("path")
    corners = re.findall(r"[ML] (\S+) (\S+)", line.get("d", ""))
    return list(dict.fromkeys((float(x), float(y)) for x, y in corners))


class TestByLoad:
    def test_it_has_every_series_every_point_and_both_units(self) -> None:
        lines = [a_line(0, (1, 90), (16, 900), ringed=16), a_line(1, (1, 80), (4, 300))]
        drawn = by_load("Output", "tokens/s", lines, load="requests at once")
        assert len(groups(drawn, "series")) == 2
        assert len(groups(drawn, "knee")) == 1
        assert titles(drawn) == ["a line at 1", "a line at 16", "a line at 1", "a line at 4"]
        assert {"Output", "tokens/s", "requests at once", "1", "4", "16", "0"} <= set(words(drawn))

    @pytest.mark.parametrize(
        ("values", "ticks"),
        [
            ((13.0, 240.0), {"20", "50", "100", "200"}),
            ((20.0, 20.0), {"10", "20"}),
            ((0.01, 90_000.0), {"0.01", "1", "10000"}),
        ],
    )
    def test_logarithmic_axes_have_round_ticks_without_exponents(
        self, values: tuple[float, float], ticks: set[str]
    ) -> None:
        assert ticks <= set(
            words(by_load("TTFT", "ms", [a_line(0, (1, values[0]), (8, values[1]))], load="clients", logarithmic=True))
        )

    def test_the_same_points_give_the_same_drawing_without_a_date(self) -> None:
        first, second = (
            by_load("Output", "tokens/s", [a_line(0, (1, 90), (2, 170))], load="clients") for _ in range(2)
        )
        assert first == second
        assert "metadata" not in first

    def test_colours_are_the_pages_own(self) -> None:
        lines = [a_line(number, (1, 90 + number)) for number in range(9)]
        drawn = by_load("Output", "tokens/s", lines, load="clients")
        assert {f"--series-{number}" for number in range(8)} == set(re.findall(r"--series-\d", drawn))
        assert not re.search(r"(fill|stroke): #", drawn), "those would be the same on dark ground"
        assert LIGHT.keys() == DARK.keys()

    def test_nothing_measured_is_said(self) -> None:
        assert "nothing measured" in words(by_load("Output", "tokens/s", [a_line(0)], load="clients"))


class TestTimelines:
    def test_they_name_the_phases_and_both_units(self) -> None:
        drawn = timeline("Kept", "%", [a_line(0, (0, 1), (4, 3), name="kept"), a_line(1, name="none")], SPANS)
        assert {"Kept", "%", "time, s", "calm", "bursts"} <= set(words(drawn))
        assert titles(drawn) == ["kept"]

    def test_a_value_holds_until_the_next_and_the_last_to_the_end(self) -> None:
        drawn = timeline("Limit", "requests", [a_line(0, (0, 256), (4, 64))], SPANS, logarithmic=True, held=True)
        first, before, after, last = path(groups(drawn, "series")[0])
        assert first[1] == before[1]
        assert before[0] == after[0]
        assert after[1] == last[1]
        assert last[0] - after[0] == pytest.approx(after[0] - first[0])

    def test_nothing_measured_is_said(self) -> None:
        drawn = timeline("empty", "%", [a_line(0)], SPANS)
        assert {"empty", "nothing measured"} <= set(words(drawn))
        assert not groups(drawn, "series")


class TestDots:
    def test_rows_are_named_with_value_and_interval_and_what_is_infinite_has_no_dot(self) -> None:
        rows = [Dot("the law", 0.98, 0.02, ours=True), Dot("AIMD", 0.0, None, ours=False)]
        drawn = dots("h100 chat", "goodput", [*rows, Dot("none", math.inf, None, ours=False)], reference=0.0)
        assert sorted(titles(drawn)) == ["AIMD: 0", "the law: 0.98 ± 0.02"]
        assert {"h100 chat", "goodput", "the law", "AIMD", "none"} <= set(words(drawn))
        assert ET.fromstring(drawn).get("aria-label") == "h100 chat: the law 0.98, AIMD 0, none inf"


class TestTextsFromOutside:
    def test_a_chart_shows_them_as_they_are(self) -> None:
        drawn = dots(FOREIGN, "goodput", [Dot(FOREIGN, 1.0, None, ours=False)])
        assert "\x01" not in drawn
        assert words(drawn).count(FOREIGN.replace("\x01", "\N{REPLACEMENT CHARACTER}")) == 2

    def test_a_template_escapes_all_but_charts(self) -> None:
        chart = key(0, markers=True)
        part = {"title": FOREIGN, "charts": [chart], "legend": [(chart, FOREIGN)], "decisions": [(FOREIGN,)]}
        section = part | {"figures": {"heads": (FOREIGN,), "rows": ((FOREIGN,),)}}
        text = render("live.html.jinja", sections=[section], objectives=None, interrupted=False)
        assert "<b>" not in text
        assert text.count("&lt;b&gt;&amp;amp;") == 5
        assert text.count(chart) == 2

    def test_a_value_that_a_template_lacks_is_an_error(self) -> None:
        with pytest.raises(jinja2.UndefinedError):
            render("law.html.jinja", interrupted=False)
