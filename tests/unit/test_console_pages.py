"""What the console shows of services, whatever their names and status say; and what the law answers there."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flyball_lab.harness.console_fleet import Fleet
from flyball_lab.harness.manifests import good
from flyball_lab.harness.tuning import TPOT, TTFT, signals, step_window, tuning, workload
from flyball_operator.api.desire import Desire, read_desire
from flyball_operator.api.shards import Shard
from flyball_operator.app.console import ProcessSource
from flyball_operator.app.shards import Shards
from flyball_operator.console import chart
from flyball_operator.console.fleet import PAGE_SIZE, WrongQueryError, fleet, row
from flyball_operator.console.pages import render
from flyball_operator.console.service import NOT_LED, decisions, service
from flyball_operator.console.what_if import what_if
from flyball_operator.kube.cache import Cache
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.insight import Insight, insight
from flyball_operator.tuning.state import start

HOSTILE = """</td><script src="//evil.example/x.js"></script><img src=x onerror='alert(1)'>{{ 7 * 7 }}"""
OBJECTIVES = (TTFT, TPOT)


def desire(name: str = "chat", uid: str = "uid-1", **status: Any) -> Desire:
    found = good(metadata__namespace="team", metadata__name=name, metadata__uid=uid)
    return read_desire(found | {"status": status})


def condition(kind: str, status: str, reason: str = "Because", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def known(**changes: Any) -> Insight:
    """What a leader knows that was shown a calm chat load for a while."""
    spec = tuning(*OBJECTIVES)
    state = start(spec)
    for at in range(15, 200, 15):
        seen = signals(float(at), window=step_window(start=at - 15.0, end=float(at)))
        state, _ = decide(state, seen, spec, float(at))
    return replace(insight(state, seen, spec), **changes)


class Markup(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def of(self, *names: str) -> set[str]:
        """The values of some attributes."""
        return {value for name, value in self.attributes if name in names}


# All services


def test_the_gravest_trouble_is_named() -> None:
    objectives_missed = condition("ObjectivesMet", "False", "Violated")
    not_ready = condition("Ready", "Unknown", "Starting")
    assert row(desire(conditions=[objectives_missed, not_ready])).trouble == "Starting"
    assert row(desire(conditions=[objectives_missed, condition("Ready", "True")])).trouble == "Violated"
    assert row(desire(conditions=[condition("Ready", "True")])).trouble == ""
    assert row(desire()).trouble == "New"


def test_the_worst_objective_is_the_one_with_the_least_budget_left() -> None:
    objectives = [
        {"name": "first", "attained": "99.5", "budgetRemaining": "50"},
        {"name": "token", "attained": "80.1", "budgetRemaining": "-520"},
        {"name": "uncounted"},
        {"name": "odd", "attained": "1", "budgetRemaining": "soon"},
        {"name": "endless", "attained": "1", "budgetRemaining": "-inf"},
        {"name": "nothing", "attained": "nan", "budgetRemaining": "-600"},
        {"name": "unsaid", "budgetRemaining": "-600"},
    ]
    assert row(desire(objectives=objectives)).worst == "token 80.1 %"


def test_figures_that_are_no_numbers_are_not_shown() -> None:
    garbled = {"name": "first", "attained": "nan", "budgetRemaining": "inf"}
    page = service(desire(objectives=[garbled], tuning={"model": {"error": "nan"}}), None)
    assert (page.objectives[0].attained, page.objectives[0].left) == ("", "")
    assert "Median error" not in {fact.name for fact in page.model}


def test_pods_are_those_that_serve_of_those_asked_for() -> None:
    found = good(metadata__namespace="team", metadata__uid="uid-1", spec__replicas=5)
    assert row(read_desire(found | {"status": {"replicas": 2, "readyReplicas": 1}})).pods == "1 of 5"
    del found["spec"]["replicas"]
    assert row(read_desire(found | {"status": {"replicas": 2, "readyReplicas": 1}})).pods == "1 of 2"


def test_a_thousand_services_come_page_by_page_in_the_order_of_their_names() -> None:
    source = Fleet([desire(f"s-{number:04}", f"uid-{number}") for number in reversed(range(1000))])
    first, last = fleet(source, {}), fleet(source, {"page": "10"})
    assert (first.matching, first.pages, len(first.rows)) == (1000, 10, PAGE_SIZE)
    assert (first.rows[0].name, last.rows[-1].name) == ("s-0000", "s-0999")
    assert [one.name for one in fleet(source, {"search": "team/s-0500"}).rows] == ["s-0500"]
    assert fleet(source, {"search": "nobody"}).rows == ()


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"page": "0"}, "page: '0'; accepted: a number from 1 to 1"),
        ({"page": "2"}, "page: '2'; accepted: a number from 1 to 1"),
        ({"page": "9" * 5000}, f"page: '{'9' * 39}…'; accepted: a number from 1 to 1"),
        ({"page": "²"}, "page: '²'; accepted: a number from 1 to 1"),
        ({"search": "a" * 129}, "search: 129 characters; accepted: at most 128"),
        ({"sort": "name"}, "sort: unknown; accepted: search, page"),
    ],
)
def test_a_wrong_query_is_refused_by_name(query: dict[str, str], says: str) -> None:
    with pytest.raises(WrongQueryError, match=re.escape(says)):
        fleet(Fleet([desire()]), query)


# One service


def test_the_fit_is_drawn_as_what_steps_took_against_the_model() -> None:
    seen = known()
    page = service(desire(), seen)
    assert page.fit is not None
    assert page.no_fit == ""
    assert len(page.fit.points) == len(seen.steps)
    assert {point.mixed for point in page.fit.points} == {True, False}
    # The steps took what a model of this form says: all are on the diagonal.
    assert all(abs((point.x - chart.LEFT) + (point.y - chart.ABOVE) - chart.SIDE) < 4 for point in page.fit.points)
    assert {group.off for group in page.fit.groups} <= {"-1 %", "+0 %", "+1 %"}
    html = render("service", root="../../", service=page)
    assert html.count("<circle") + html.count("<rect") == len(page.fit.points)


def test_a_slower_engine_is_below_the_diagonal() -> None:
    step = chart.Step(tokens=100, mixed=False, measured=20.0, predicted=10.0)
    drawn = chart.chart([step])
    assert drawn is not None
    ((point,), (group,)) = drawn.points, drawn.groups
    assert [tick.label for tick in drawn.ticks] == ["10", "20"]
    assert (point.x, point.y) == (chart.LEFT + chart.SIDE, chart.ABOVE + chart.SIDE)
    assert (group.tokens, group.kind, group.off) == ("up to 128", "decodes alone", "-50 %")
    assert chart.chart([]) is None


def test_a_standby_says_that_it_does_not_know_and_shows_the_rest() -> None:
    page = service(desire(conditions=[condition("Ready", "True")]), None)
    assert (page.fit, page.no_fit) == (None, NOT_LED)
    assert [one.type for one in page.conditions] == ["Ready"]
    assert what_if(None, {}).unknown == NOT_LED


def test_a_decision_has_what_it_changed_from_and_to_and_what_came_of_it() -> None:
    decided = {
        "time": "2026-11-01T10:00:00Z",
        "trigger": "tpot binds",
        "before": {"maxNumActiveSeqs": 128},
        "after": {"maxNumActiveSeqs": 40, "stepBudget": "27.6ms"},
        "predicted": "tpot 12ms",
        "observed": "tpot 99 %",
    }
    (one,) = decisions(desire(tuning={"decisions": [decided]}))
    assert [(change.name, change.before, change.after) for change in one.changes] == [
        ("Requests at once", "128", "40"),
        ("Time of a step", "–", "27.6ms"),
    ]
    assert (one.predicted, one.observed) == ("tpot 12ms", "tpot 99 %")


def test_nothing_that_a_service_is_named_or_said_to_be_becomes_markup() -> None:
    decided = {"time": HOSTILE, "trigger": HOSTILE, "predicted": HOSTILE, "observed": HOSTILE}
    hostile = desire(
        HOSTILE,
        conditions=[condition("Ready", "False", HOSTILE, HOSTILE)],
        objectives=[{"name": HOSTILE, "attained": HOSTILE, "budgetRemaining": "1", "window": HOSTILE}],
        tuning={"bindingObjective": HOSTILE, "arrivals": HOSTILE, "capacity": HOSTILE, "decisions": [decided]},
    )
    hostile = replace(hostile, error=HOSTILE)
    named = replace(TPOT, name=HOSTILE)
    seen = known(spec=tuning(named))
    source = Fleet([hostile], {"uid-1": seen})
    pages = [
        render("fleet", root="./", fleet=fleet(source, {"search": "<script"}), longest=1),
        render("service", root="../../", service=service(hostile, seen)),
        render("decisions", root="../../../", service=hostile.meta, decisions=decisions(hostile)),
        render("what-if", root="../../../", service=hostile.meta, what_if=what_if(seen, {})),
        render("what-if", root="../../../", service=hostile.meta, what_if=what_if(seen, {HOSTILE: HOSTILE})),
        render("error", root="./", title=HOSTILE, message=HOSTILE),
    ]
    for page in pages:
        assert "&lt;script" in page
        read = Markup()
        read.feed(page)
        assert read.tags.isdisjoint({"img", "iframe", "style", "base", "object"})
        assert not any(name.startswith("on") or name == "style" for name, _ in read.attributes)
        assert read.of("src") <= {"../../../static/console.js"}
        assert not any("//" in address or ":" in address for address in read.of("src", "href", "action"))
        assert not any(address.startswith("/") for address in read.of("src", "href", "action")), "proxies add a path"
        assert "{{ 7 * 7 }}" in page, "a template in a value is left as it is"


def test_texts_of_any_length_are_cut() -> None:
    long = desire(conditions=[condition("Ready", "False", "R" * 5000, "m" * 50_000)])
    assert len(render("service", root="../../", service=service(long, None))) < 10_000


# What if


def test_the_law_answers_for_the_objectives_that_are_asked_for() -> None:
    seen = known()
    answer = what_if(seen, {"tpot": "30"})
    assert answer.errors == ()
    figures = {line.name: (line.now, line.then) for line in answer.lines}
    now, then = seen.choose(OBJECTIVES), seen.choose((TTFT, replace(TPOT, seconds=0.03)))
    assert now is not None
    assert then is not None
    assert figures["Requests at once"] == (str(now.seqs), str(then.seqs))
    assert then.seqs < now.seqs
    assert [slider.value for slider in answer.sliders] == ["2000", "30"]


@pytest.mark.parametrize("value", ["14.99", "240.1", "nan", "inf", "-inf", "", "1e999", "sixty", "0x40", "6" * 400])
def test_a_threshold_out_of_its_range_is_refused_by_name(value: str) -> None:
    answer = what_if(known(), {"tpot": value})
    (error,) = answer.errors
    assert error.startswith("tpot: ")
    assert error.endswith("accepted: 15 to 240 milliseconds")
    assert answer.lines == ()
    assert len(error) < 120


def test_a_threshold_that_is_none_of_the_service_is_refused_with_those_there_are() -> None:
    assert what_if(known(), {"ttf": "1"}).errors == ("ttf: unknown; accepted: ttft, tpot",)


@pytest.mark.parametrize("missing", ["fit", "workload"])
def test_without_a_model_or_a_load_there_is_no_answer_and_it_is_said(missing: str) -> None:
    answer = what_if(known(**{missing: None}), {})
    assert answer.lines == ()
    assert "needs a trusted step-time model, and requests" in answer.unknown


def test_each_end_of_each_slider_is_accepted() -> None:
    seen = known(spec=tuning(replace(TTFT, seconds=1 / 3), replace(TPOT, seconds=0.0001)))
    for one in what_if(seen, {}).sliders:
        for value in (one.least, one.most, one.value):
            assert what_if(seen, {one.name: value}).errors == ()


# Who knows


def test_only_where_this_replica_leads_it_knows_more_than_status() -> None:
    seen = known(workload=workload(), fit=None)
    shards = Shards(2)
    tuner = SimpleNamespace(insight={"00-first": seen, "ff-second": seen}.get)
    for shard, leads in ((Shard(0, 2), True), (Shard(1, 2), False)):
        elector = SimpleNamespace(may_act=lambda leads=leads: leads)
        shards._terms[shard] = cast("Any", SimpleNamespace(elector=elector, tuner=tuner))
    cache = Cache()
    source = ProcessSource(cache, shards)
    assert source.services() is cache.services
    assert source.insight("00-first") is seen
    assert source.insight("ff-second") is None
    shards._terms[Shard(0, 2)].tuner = None
    assert source.insight("00-first") is None
