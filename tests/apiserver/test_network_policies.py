"""NetworkPolicies on the real API server: made with a service, stored as they were sent, and kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyball_lab.harness.waiting import eventually
from support.cluster import Object, apply, delete, get, patch
from support.operators import RESOURCE, OperatorProcess, expect_condition, idle_service, made, one, serve
from support.tenants import operator

PEERS: Object = {
    "api": [{"namespaceSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}],
    "control": [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "flyball-system"}},
            "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]},
        }
    ],
}

ENABLED: Object = {"networkPolicy": {"enabled": True}}


@pytest.fixture
def fencing(place: str, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator that makes NetworkPolicies."""
    with operator(place, tmp_path, values=ENABLED, network_policy=json.dumps(PEERS)) as process:
        yield process


def rules(place: str) -> list[Object]:
    found: list[Object] = one("networkpolicy", place)["spec"]["ingress"]
    return found


def test_a_service_is_fenced_and_what_others_open_is_closed_again(place: str, fencing: OperatorProcess) -> None:
    apply(idle_service(), namespace=place)
    made(place)
    serve(place)
    wanted = rules(place)
    assert [rule["from"] for rule in wanted] == [PEERS["api"], PEERS["control"]]
    opened = [*wanted, {}]
    patch("networkpolicy", "chat", {"spec": {"ingress": opened}}, namespace=place)
    eventually(lambda: rules(place) == wanted, expecting="the rule that was added to be gone")
    expect_condition(place, "Accepted", "True", "Accepted")
    delete(RESOURCE, "chat", namespace=place)
    eventually(lambda: get("networkpolicy", "chat", namespace=place) is None, expecting="no policy is left")
