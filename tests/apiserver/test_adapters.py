"""LoRA adapters on the real API server, under the chart's own rights: pods read a ConfigMap that follows the spec."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyball_engine.adapters import ADAPTERS_KEY, AdapterList
from flyball_lab.harness.manifests import Object
from flyball_lab.harness.waiting import eventually
from support.cluster import apply, get, kubectl, patch
from support.operators import RESOURCE, expect_condition, idle_service, made, one, serve
from support.tenants import tenant_namespace, tenants

SQL: Object = {"name": "sql", "uri": "hf://org/sql", "revision": "v1"}
LAW: Object = {"name": "law", "uri": "file:///adapters/law"}


@pytest.fixture
def place(crd: Path, tmp_path: Path) -> Iterator[str]:
    """The namespace of a tenant that an operator with the chart's rights looks after."""
    with tenant_namespace(tmp_path, values={"adapters": {"enabled": True}}) as name:
        yield name


def listed(place: str) -> list[str]:
    """Names in the list that pods read."""
    found = get("configmap", "chat-adapters", namespace=place) or {"data": {ADAPTERS_KEY: "{}"}}
    return [adapter.name for adapter in AdapterList.model_validate_json(found["data"][ADAPTERS_KEY]).adapters]


def expect_list(place: str, *adapters: str) -> None:
    eventually(lambda: listed(place) == [*adapters], expecting=f"the list {adapters}")


def test_the_list_follows_the_spec_and_no_pod_is_replaced(place: str) -> None:
    apply(idle_service(spec__adapters=[SQL], spec__replicas=1), namespace=place)
    expect_list(place, "sql")
    made(place)
    serve(place)
    expect_condition(place, "Ready", "True", "Serving")
    template = one("deployment", place)["spec"]["template"]
    patch(RESOURCE, "chat", {"spec": {"adapters": [SQL, LAW]}}, namespace=place)
    expect_list(place, "sql", "law")
    patch(RESOURCE, "chat", {"spec": {"adapters": []}}, namespace=place)
    expect_list(place)
    expect_condition(place, "Ready", "True", "Serving")
    assert one("deployment", place)["spec"]["template"] == template

    kubectl("delete", RESOURCE, "chat", "-n", place)
    eventually(lambda: get("configmap", "chat-adapters", namespace=place) is None, expecting="it goes with the service")


def test_a_config_map_of_somebody_else_is_left_alone(place: str) -> None:
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "chat-adapters"}, "data": {"mine": "x"}}
    kubectl("create", "-n", place, "-f", "-", stdin=json.dumps(theirs))
    apply(idle_service(spec__adapters=[SQL]), namespace=place)
    message = expect_condition(place, "Accepted", "False", "NameConflict")
    assert f"kubectl delete configmap chat-adapters -n {place}" in message
    found = get("configmap", "chat-adapters", namespace=place)
    assert found is not None
    assert found["data"] == {"mine": "x"}


def test_without_the_right_all_else_of_a_service_goes_on_and_it_says_what_to_set(crd: Path, tmp_path: Path) -> None:
    with tenants(1) as release, release.operator(tmp_path):
        (name,) = release.names
        release.may_be_refused(name, "get configmaps")
        apply(idle_service(spec__adapters=[SQL], spec__replicas=1), namespace=name)
        message = expect_condition(name, "Accepted", "False", "RefusedByServer")
        assert "chart value adapters.enabled: true" in message
        made(name)
        patch(RESOURCE, "chat", {"spec": {"replicas": 2}}, namespace=name)
        eventually(lambda: one("deployment", name)["spec"]["replicas"] == 2, expecting="it is scaled")
