"""All of spec.podTemplate at once on the real API server, under the chart's own rights; and what it refuses of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from flyball_engine.contract import Env
from flyball_lab.harness.manifests import Object, edited
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from flyball_operator.api import names
from flyball_operator.api.parse import parse_service
from flyball_operator.reconcile.plan import pod
from flyball_operator.reconcile.plan.fields import differences, spelt
from flyball_operator.reconcile.plan.revision import spec_hash
from flyball_operator.reconcile.plan.snapshot import Config
from support.cluster import apply, get, patch
from support.operators import RESOURCE, expect_condition, idle_service, one
from support.tenants import tenant_namespace

EVERYTHING = ROOT / "tests/golden/pods/everything.service.yaml"
NAME = "everything"
#: Of the pod's own fields, those that only an operator which was asked for them sets.
ASKED = ("resourceClaims", "schedulerName", "priorityClassName", "topologySpreadConstraints", "serviceAccountName")


@pytest.fixture
def tenant(crd: Path, tmp_path: Path) -> Iterator[str]:
    """A namespace that an operator with the rights of the chart's account watches."""
    with tenant_namespace(tmp_path) as place:
        yield place


def everything(changes: Mapping[str, Any] = MappingProxyType({})) -> Object:
    manifest: Object = yaml.safe_load(EVERYTHING.read_text())
    # What its pods would need is not there.
    return edited(manifest, {"spec.replicas": 0, **changes})


#: The same names with other sources: nothing of the first ones may stay.
SWAPPED = {
    "spec.podTemplate.volumes.0": {"name": "settings", "emptyDir": {}},
    "spec.podTemplate.volumes.3": {"name": "scratch", "configMap": {"name": "site"}},
    "spec.engine.env.1": {"name": "API_KEY", "value": "plain"},
    "spec.engine.env.0": {"name": "PLAIN", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
    "spec.podTemplate.containers.1.readinessProbe": {"tcpSocket": {"port": "web"}},
}


def wanted(place: str) -> Object:
    """The pod template of the service there is, but for the key that this operator has made itself."""
    service = parse_service(one(RESOURCE, place, NAME))
    template: Object = pod.render(service, Config("flyball.test/plugin:1", "(its own)"), spec_hash(service))["spec"]
    engine = template["containers"][0]
    engine["env"] = [variable for variable in engine["env"] if variable["name"] != Env.PUBLIC_KEY.value]
    return template


def lacking(place: str) -> list[str]:
    """Fields in which the Deployment's pods are not as asked for."""
    live = get("deployment", NAME, namespace=place)
    if live is None:
        return ["the Deployment"]
    return [spelt(path) for path in differences(live["spec"]["template"]["spec"], wanted(place))]


def test_everything_at_once_is_in_the_deployment_and_leaves_it_again(tenant: str) -> None:
    apply(everything(), namespace=tenant)
    eventually(lambda: not lacking(tenant), expecting=f"all of it, not without {lacking(tenant)}")
    expect_condition(tenant, "Accepted", "True", "Accepted", name=NAME)
    budget = eventually(lambda: get("poddisruptionbudget", NAME, namespace=tenant), expecting="the budget")
    assert budget["spec"]["maxUnavailable"] == "50%"
    apply(everything(SWAPPED), namespace=tenant)
    eventually(lambda: not lacking(tenant), expecting="the other sources")
    expect_condition(tenant, "Accepted", "True", "Accepted", name=NAME)
    less = {"podTemplate": None, "parallelism": None, "podDisruptionBudget": {"enabled": False}}
    patch(RESOURCE, NAME, {"spec": less}, namespace=tenant)

    def gone() -> bool:
        spec = one("deployment", tenant, NAME)["spec"]["template"]["spec"]
        kept = [field for field in ASKED if spec.get(field, "default-scheduler") != "default-scheduler"]
        return not kept and len(spec["containers"]) == len(spec["initContainers"]) == 1

    eventually(gone, expecting="what is asked for no longer to leave")
    assert not lacking(tenant)
    eventually(lambda: get("poddisruptionbudget", NAME, namespace=tenant) is None, expecting="no budget", within=240)
    expect_condition(tenant, "Accepted", "True", "Accepted", name=NAME)


def test_what_only_the_deployment_is_refused_for_is_told_with_its_field(tenant: str) -> None:
    one_of_none = {"matchExpressions": [{"key": "zone", "operator": "In", "values": []}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [one_of_none]}}
    apply(idle_service(spec__podTemplate__affinity={"nodeAffinity": required}), namespace=tenant)
    message = expect_condition(tenant, "Accepted", "False", "RefusedByServer")
    assert "nodeSelectorTerms[0].matchExpressions[0].values" in message
    expect_condition(tenant, "Stalled", "True", "RefusedByServer")
    apply(idle_service(), namespace=tenant)
    expect_condition(tenant, "Accepted", "True", "Accepted")


def model_volume(place: str) -> Object | None:
    """The volume with the model, as the API server keeps it in the Deployment."""
    volumes = one("deployment", place, "chat")["spec"]["template"]["spec"]["volumes"]
    return next((found for found in volumes if found["name"] == names.VOLUME_MODEL), None)


def test_a_model_in_an_image_is_a_volume_of_the_deployment_and_gives_way_to_another_kind(tenant: str) -> None:
    reference = f"r.example.com:5000/models/qwen:v1@sha256:{'a' * 64}"
    apply(idle_service(spec__model__uri=f"oci://{reference}"), namespace=tenant)
    eventually(lambda: get("deployment", "chat", namespace=tenant), expecting="the Deployment")
    image = {"reference": reference, "pullPolicy": "IfNotPresent"}
    assert model_volume(tenant) == {"name": "model", "image": image}
    expect_condition(tenant, "Accepted", "True", "Accepted")
    apply(idle_service(spec__model__uri="oci://r.example.com/qwen:latest"), namespace=tenant)
    latest = {"reference": "r.example.com/qwen:latest", "pullPolicy": "IfNotPresent"}
    eventually(lambda: model_volume(tenant) == {"name": "model", "image": latest}, expecting="the other image")
    apply(idle_service(spec__model__uri="pvc://weights/qwen"), namespace=tenant)
    claim = {"claimName": "weights", "readOnly": True}
    eventually(lambda: model_volume(tenant) == {"name": "model", "persistentVolumeClaim": claim}, expecting="the claim")
    apply(idle_service(), namespace=tenant)
    eventually(lambda: model_volume(tenant) is None, expecting="no volume")
    expect_condition(tenant, "Accepted", "True", "Accepted")
