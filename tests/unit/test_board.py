"""Charts and tables in one drawing."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from flyball_lab.pages import charts
from flyball_lab.pages.board import Chart, Table, board
from flyball_lab.pages.charts import Line, Point, Span

SVG = "{http://www.w3.org/2000/svg}"


def drawn() -> ET.Element:
    lines = [Line("a < b", 0, [Point(0.0, 1.0), Point(10.0, 2.0)]), Line("other", 1, [Point(0.0, 3.0)])]
    chart = Chart(charts.timeline("Load", "s", lines, [Span("all", 0.0, 10.0)]), ["a < b", "other"])
    table = Table("Rows", ["Name", "Figure"], [["one & only", "1"], ["two", "22"]])
    return ET.fromstring(board("Two", [chart, table, chart, table]))


def test_it_is_a_file_of_its_own_with_each_text_once_for_each_cell() -> None:
    root = drawn()
    assert root.tag == f"{SVG}svg"
    texts = [one.text for one in root.iter(f"{SVG}text")]
    assert texts.count("one & only") == texts.count("a < b") == 2
    assert "var(" not in ET.tostring(root, encoding="unicode"), "no page gives it colours"


def test_cells_lie_side_by_side_within_the_drawing() -> None:
    root = drawn()
    moved = [one.attrib["transform"] for one in root if one.tag == f"{SVG}g"]
    places = [tuple(map(float, one.removeprefix("translate(").rstrip(")").split())) for one in moved]
    assert len(set(places)) == 4
    assert [x for x, _ in places] == [places[0][0], places[1][0], places[2][0], places[0][0]]
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    assert all(x < width and y < height for x, y in places)


def test_columns_of_a_table_do_not_overlap() -> None:
    (table,) = [one for one in ET.fromstring(board("", [Table("", ["A", "B"], [["x" * 60, "y"]])])) if len(one) == 5]
    first, second = (float(one.attrib["x"]) for one in list(table)[3:])
    assert second - first > 0.9 * 226.8 * 63 / 67
