"""`flyball plan` as a page: it says what the text says, draws the past, loads nothing and believes no name."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from flyball_operator.cli.plan.page import as_page
from flyball_operator.cli.plan.planned import ServicePlan, planned
from flyball_operator.cli.plan.plot import HEIGHT, LEFT, WIDTH, Plot, plots
from flyball_operator.cli.plan.report import FleetPlan, rows
from flyball_operator.cli.plan.windows import Share
from support.plans import ALL_MET, HOUR, MOST_LATE, TTFT, fleet_of, governed, hour


def page_of(*plans: ServicePlan) -> str:
    return as_page(FleetPlan(services=plans, start=0.0, end=24 * HOUR, window=HOUR, unseen=["team/mail"]))


def text_of(page: str) -> str:
    """What is read of it, in one line."""
    parts = list[str]()

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            parts.append(data)

    Reader().feed(page)
    return " ".join(" ".join(parts).split())


def drawn(plan: ServicePlan) -> dict[str, Plot]:
    return {one.title.partition(",")[0]: one for one in plots(plan.past)}


def test_it_says_what_the_text_says() -> None:
    plan = governed(hour(1.0), hour(2.0), hour(1.5), rate=5.0)
    said = text_of(page_of(plan))
    for label, text in rows(plan):
        assert label in said
        assert text in said
    assert "not scraped team/mail" in said
    assert "4 2 saves 2 replicas, 4 GPUs" in said, "in the table of all services"


def test_it_loads_nothing_and_runs_nothing() -> None:
    page = page_of(governed(hour(1.0), rate=5.0))
    assert set(re.findall(r'(?:href|src)="([^"]*)"', page)) == {"#service-1"}
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "url(" not in page


def test_a_name_is_no_markup() -> None:
    page = page_of(fleet_of(hour(1.0), name="team/<img src=x>\x1b[31m"))
    assert "<img" not in page
    assert "\x1b" not in page


def test_load_is_drawn_beside_what_the_model_says_is_carried() -> None:
    load = drawn(governed(hour(1.0), hour(2.5), rate=5.0))["Load"]
    came, carried = load.lines
    assert (came.name, carried.name) == ("requests/s that came", "carried by the replicas there were, by the model")
    assert (came.dashed, carried.dashed) == (False, True)
    begin, middle, end = LEFT, LEFT + WIDTH / 2, LEFT + WIDTH
    heights = [float(one) for one in re.findall(r"(?:V|M[\d.]+ )([\d.]+)", came.path)]
    assert came.path == f"M{begin:g} {heights[0]:g}H{middle:g}V{heights[1]:g}H{end:g}"
    zero = next(tick.place for tick in load.values if tick.label == "0")
    assert zero - heights[1] == pytest.approx(2.5 * (zero - heights[0]), abs=0.5), "4 and 10 requests/s"


def test_without_a_model_nothing_is_said_to_be_carried() -> None:
    (came,) = drawn(fleet_of(hour(1.0)))["Load"].lines
    assert came.name == "requests/s that came"


def test_refused_requests_are_drawn() -> None:
    load = drawn(fleet_of(hour(1.0), hour(6.0, refused=3.0)))["Load"]
    assert [one.name for one in load.lines] == ["requests/s that came", "of them refused"]


def test_a_window_that_is_missing_is_a_gap() -> None:
    past = fleet_of(hour(1.0), hour(1.0), hour(1.0)).past
    (came,) = drawn(planned(replace(past, windows=(past.windows[0], past.windows[2]))))["Load"].lines
    assert came.path.count("M") == 2


def test_each_objective_has_its_share_and_its_target_in_one_colour() -> None:
    met = drawn(fleet_of(hour(1.0), hour(1.0, met={"ttft": MOST_LATE, "tpot": ALL_MET})))[
        "Requests that met each objective"
    ]
    assert [(one.name, one.number, one.dashed) for one in met.lines] == [
        ("ttft met at least", 0, False),
        ("ttft asked", 0, True),
        ("tpot met at least", 1, False),
        ("tpot asked", 1, True),
    ]
    places = [float(one) for line in met.lines for one in re.findall(r"(?:V|M[\d.]+ )([\d.]+)", line.path)]
    assert all(0.0 <= one <= HEIGHT + 20.0 for one in places), "inside of the drawing"


def test_a_window_of_too_few_requests_says_nothing_of_objectives() -> None:
    late, idle = {"ttft": Share(0.0, 0.0, 1.0)}, {"ttft": Share(1.0, 1.0, 0.0)}
    windows = (hour(1.0, met={"ttft": Share(0.99, 0.99, 500.0)}), hour(1.0, met=late), hour(0.0, met=idle))
    met, _asked = drawn(fleet_of(*windows))["Requests that met each objective"].lines
    assert met.name == "ttft met"
    assert met.path.count("H") == 1


def test_labels_of_a_tight_target_differ() -> None:
    tight = (replace(TTFT, allowed=0.001),)
    met = drawn(fleet_of(hour(1.0, met={"ttft": Share(0.9995, 0.9995, 5000.0)}), objectives=tight))
    labels = [one.label for one in met["Requests that met each objective"].values]
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize("load", [0.0, 1e-9, 3.0, 12_345.0])
def test_any_load_has_a_few_labels(load: float) -> None:
    labels = drawn(fleet_of(hour(load), hour(load)))["Load"].values
    assert 2 <= len(labels) <= 6


def test_where_nobody_counted_there_is_no_plot_of_objectives_and_without_a_window_none() -> None:
    assert list(drawn(fleet_of(hour(1.0, met={})))) == ["Load"]
    past = fleet_of(hour(1.0)).past
    assert plots(replace(past, windows=())) == ()
    assert "<figure>" not in page_of(planned(replace(past, windows=())))
