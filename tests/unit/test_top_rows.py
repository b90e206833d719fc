"""Rows and the table of `flyball top`."""

from __future__ import annotations

from typing import Any

import pytest

from flyball_lab.harness.manifests import Object, good
from flyball_operator.cli.top_rows import SORTS, as_json, ordered, row, summary, table


def condition(kind: str, status: str, reason: str, message: str = "") -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message}


READY = condition("Ready", "True", "Serving")


def a_service(name: str = "chat", *, conditions: list[Object] | None = None, **status: Any) -> Object:
    told = {"replicas": 2, "readyReplicas": 2, "conditions": [READY] if conditions is None else conditions} | status
    return good(name, metadata__namespace="team") | {"status": told}


def test_a_row_has_what_the_status_says() -> None:
    objectives = [
        {"name": "tpot", "attained": "99.9", "budgetRemaining": "90"},
        {"name": "ttft", "attained": "93.8", "budgetRemaining": "-520"},
        {"name": "e2e"},
        {"name": "garbled", "attained": "99", "budgetRemaining": "-inf"},
        {"name": "unsaid", "budgetRemaining": "-600"},
    ]
    setpoint = {"maxNumActiveSeqs": 48, "maxNumScheduledTokens": 1024}
    tuning = {"setpoint": setpoint, "arrivals": "4", "capacity": "20"}
    found = row(a_service(objectives=objectives, tuning=tuning))
    assert (found.worst_objective, found.attained, found.budget_remaining) == ("ttft", 93.8, -520)
    assert (found.ready, found.desired, found.is_ready) == (2, 2, True)
    assert (found.requests, found.tokens) == (48, 1024)
    assert (found.arrivals, found.capacity, found.load, found.reason) == (4, 20, 0.2, "")


# The second is of an operator whose status had no arrivals.
@pytest.mark.parametrize("tuning", [{}, {"capacity": "20"}, {"arrivals": "", "capacity": ""}])
def test_a_load_that_nobody_has_weighed_is_not_known(tuning: Object) -> None:
    assert row(a_service(tuning=tuning)).load is None


def test_pods_that_carry_nothing_have_no_load() -> None:
    assert row(a_service(tuning={"arrivals": "4", "capacity": "0"})).load is None


def test_pods_asked_for_are_those_of_the_spec() -> None:
    service = a_service()
    service["spec"]["replicas"] = 5
    assert row(service).desired == 5


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ([], "New"),
        ([READY], ""),
        ([condition("Ready", "Unknown", "NamespaceNotWatched")], "NamespaceNotWatched"),
        ([condition("Ready", "False", "Unschedulable"), condition("Accepted", "True", "Accepted")], "Unschedulable"),
        ([condition("Tuned", "False", "Paused"), READY], "Paused"),
        ([condition("Tuned", "Unknown", "Pushing"), READY], ""),
        ([condition("ObjectivesMet", "False", "Violated"), READY], "Violated"),
    ],
)
def test_the_reason_is_that_of_the_gravest_trouble(conditions: list[Object], reason: str) -> None:
    assert row(a_service(conditions=conditions)).reason == reason


def test_a_status_that_is_garbled_is_not_known() -> None:
    found = row(a_service(tuning="?", objectives=[{"name": "ttft", "attained": "?", "budgetRemaining": "?"}]))
    assert (found.attained, found.requests) == (None, None)


def test_the_worst_come_first() -> None:
    def objective(left: str) -> list[Object]:
        return [{"name": "ttft", "attained": "99", "budgetRemaining": left}]

    def load(arrivals: str) -> Object:
        return {"arrivals": arrivals, "capacity": "20"}

    rows = [
        row(a_service("a", objectives=objective("50"), tuning=load("1"))),
        row(a_service("b", objectives=objective("-100"), tuning=load("9"))),
        row(a_service("c", conditions=[condition("Ready", "False", "Unschedulable")])),
    ]
    orders = {sort: "".join(one.name for one in ordered(reversed(rows), sort)) for sort in SORTS}
    assert orders == {"name": "abc", "pods": "cab", "worst": "bac", "load": "bac", "reason": "cab"}
    assert summary(rows) == "3 services, 2 Ready"
    assert summary(rows[:1]) == "1 service, 1 Ready"
    assert [one["name"] for one in as_json(rows)["services"]] == ["a", "b", "c"]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    conditions = [condition("Ready", "False", "AdoptByAnnotationThatIsVeryLongIndeed")]
    long = a_service("a-service-with-the-longest-name-that-there-can-be", conditions=conditions)
    long["metadata"]["namespace"] = "a-namespace-with-the-longest-name-that-a-cluster-would-ever-take"
    lines = table([row(long), row(a_service())], width)
    assert max(map(len, lines)) <= width
    assert lines[0].split() == ["NAMESPACE", "NAME", "PODS", "WORST", "LOAD", "LIMITS", "REASON"]
    assert lines[2].split() == ["team", "chat", "2/2", "-", "-", "-/-", "-"]
    starts = {line.index("2/2") for line in lines[1:]}
    assert starts == {lines[0].index("PODS")}, "columns stand below each other"


def test_a_thousand_services_are_a_thousand_lines() -> None:
    rows = [row(a_service(f"chat-{number}")) for number in range(1000)]
    assert len(table(ordered(rows, "name"), 80)) == 1001
