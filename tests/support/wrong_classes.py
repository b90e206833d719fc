"""Wrong manifests with classes of requests, a part of `wrong_manifests.WRONG`."""

from __future__ import annotations

from typing import Any

from flyball_lab.harness.manifests import Wrong

_CLASSES = "spec.tuning.classes"


def _classes(id: str, wrong: list[Any], right: list[Any], where: str, says: str) -> Wrong:  # noqa: A002
    return Wrong(f"classes {id}", {_CLASSES: wrong}, {_CLASSES: right}, f"{_CLASSES}{where}", says)


def _of_class(name: str) -> list[dict[str, str]]:
    return [{"name": "first", "metric": "TimeToFirstToken", "threshold": "1s", "class": name}]


WRONG_CLASSES = (
    Wrong(
        "an objective of a class that is not there",
        {"spec.objectives": _of_class("chat"), "spec.tuning.classes": [{"name": "batch"}]},
        {"spec.objectives": _of_class("chat"), "spec.tuning.classes": [{"name": "chat"}]},
        "spec.objectives",
        "an objective is of a class that spec.tuning.classes does not have",
    ),
    _classes("two of one name", [{"name": "a"}, {"name": "a"}], [{"name": "a"}, {"name": "b"}], "", "Duplicate value"),
    _classes(
        "two of one header value",
        [{"name": "a", "value": "b"}, {"name": "b"}],
        [{"name": "a", "value": "b"}, {"name": "b", "value": "a"}],
        "",
        "two classes have the same header value",
    ),
    _classes(
        "two of one priority",
        [{"name": "a", "priority": 5}, {"name": "b", "priority": 5}, {"name": "c"}],
        [{"name": "a", "priority": 5}, {"name": "b", "priority": -5}, {"name": "c"}],
        "",
        "two classes have the same priority",
    ),
    _classes(
        "of no priority",
        [{"name": "a", "priority": 0}],
        [{"name": "a", "priority": -1}],
        "[0].priority",
        "must not be 0, the priority of requests that name none",
    ),
    _classes(
        "of a priority of 33 bits",
        [{"name": "a", "priority": 2**31}],
        [{"name": "a", "priority": 2**31 - 1}, {"name": "b", "priority": -(2**31)}],
        "[0].priority",
        "less than or equal to 2147483647",
    ),
    _classes(
        "more share than a half",
        [{"name": "a", "prefillShare": 30}, {"name": "b", "prefillShare": 21}],
        [{"name": "a", "prefillShare": 30}, {"name": "b", "prefillShare": 20}],
        "",
        "prefillShare of all classes together must be at most 50",
    ),
    _classes(
        "of weight 0",
        [{"name": "a", "weight": 0}],
        [{"name": "a", "weight": 1}],
        "[0].weight",
        "greater than or equal to 1",
    ),
    _classes("default", [{"name": "default"}], [{"name": "defaults"}], "[0].name", "accepted is any other name"),
    _classes("in capitals", [{"name": "Chat"}], [{"name": "chat"}], "[0].name", "must be a DNS label"),
    _classes(
        "by a space",
        [{"name": "a", "value": " a"}],
        [{"name": "a", "value": "a b"}],
        "[0].value",
        "must be printable ASCII",
    ),
    Wrong(
        "classes by a header in capitals",
        {"spec.tuning.classHeader": "X-Class"},
        {"spec.tuning.classHeader": "x-class"},
        "spec.tuning.classHeader",
        "must be the name of an HTTP header in lower case",
    ),
)
"""Refused like the others; this is a file of its own only for its length."""
