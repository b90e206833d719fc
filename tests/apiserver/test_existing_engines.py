"""Pods that others make, on the real API server: what the chart's policy brings into them, and what nobody writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from flyball_operator.api import names
from support import helm
from support.cluster import KubectlError, Object, apply, dry_created, get, kubectl, namespace, patch
from support.helm import CHART
from support.operators import RESOURCE, Audit, expect_condition, one, operator

RELEASE = "flyball-inject-test"
VALUES: Object = {
    "image": {"registry": "localhost", "repository": "no/such-image", "pullPolicy": "Never"},
    "crds": {"install": False},
    "inject": {"enabled": True},
}
EXAMPLES = ROOT / "docs/examples/existing-engines"


def example(name: str) -> Object:
    """An example of the docs."""
    found: Object = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    return found


@pytest.fixture(scope="module")
def injecting(crd: object) -> Iterator[str]:
    """A namespace where the chart's policy acts, with the service of the example."""
    with namespace("flyball-inject") as place:
        helm.run("install", RELEASE, str(CHART), "-n", place, values=VALUES)
        apply(example("service"), namespace=place)
        eventually(
            lambda: "flyball-plugin" in str(dry_created(pod(), namespace=place)),
            expecting="the policy acts",
            within=240,
        )
        yield place
        helm.run("uninstall", RELEASE, "-n", place, "--ignore-not-found")


def pod(service: str = "llm", **changes: Any) -> Object:
    """A pod as a ReplicaSet makes it from the example; `changes` of its first container."""
    template = example("deployment")["spec"]["template"]
    labels = template["metadata"]["labels"] | {names.LABEL_SERVICE: service}
    # As namespaces of Pod Security `restricted` admit them, with what the policy adds.
    admitted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = template["spec"]["containers"][0] | {"securityContext": admitted} | changes
    user = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    metadata = {"name": "llm-1", "labels": labels}
    spec = {"containers": [container], "securityContext": user}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def variables(found: Object) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in found["spec"]["containers"][0].get("env", [])}


def test_a_new_pod_that_names_the_service_gets_the_plugin_and_all_that_it_needs(injecting: str) -> None:
    found = dry_created(pod(env=[{"name": "THEIRS", "value": "1"}]), namespace=injecting)
    uid = one(RESOURCE, injecting, "llm")["metadata"]["uid"]
    assert found["metadata"]["labels"][names.LABEL_SERVICE_UID] == uid
    assert found["metadata"]["annotations"][names.ANNOTATION_SCRAPE] == "true"
    assert variables(found) == {
        "THEIRS": "1",
        "PYTHONPATH": "/flyball",
        "FLYBALL_SERVICE_UID": uid,
        "FLYBALL_PUBLIC_KEYS_FILE": "/flyball-keys/public-keys.pem",
    }
    (plugin,) = found["spec"]["initContainers"]
    assert plugin["name"] == names.CONTAINER_PLUGIN
    assert plugin["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert plugin["securityContext"]["runAsNonRoot"] is True
    assert plugin["resources"]["requests"] == plugin["resources"]["limits"], "a Guaranteed pod stays Guaranteed"
    assert {volume["name"] for volume in found["spec"]["volumes"]} >= {"flyball", "flyball-keys"}
    (engine,) = found["spec"]["containers"]
    assert {"name": "control", "containerPort": 8001, "protocol": "TCP"} in engine["ports"]
    assert {"name": "http", "containerPort": 8000, "protocol": "TCP"} in engine["ports"]
    assert engine["args"] == example("deployment")["spec"]["template"]["spec"]["containers"][0]["args"]


def test_what_the_owner_has_said_is_added_to(injecting: str) -> None:
    theirs = [{"name": "PYTHONPATH", "value": "/theirs"}, {"name": "VLLM_PLUGINS", "value": "theirs"}]
    body = pod(env=theirs)
    (engine,) = body["spec"]["containers"]
    body["spec"]["initContainers"] = [{"name": "theirs"} | {key: engine[key] for key in ("image", "securityContext")}]
    found = dry_created(body, namespace=injecting)
    assert variables(found)["PYTHONPATH"] == "/flyball:/theirs"
    assert variables(found)["VLLM_PLUGINS"] == "theirs,flyball"
    assert [item["name"] for item in found["spec"]["initContainers"]] == ["flyball-plugin", "theirs"]


def test_other_pods_stay_as_they_are(injecting: str) -> None:
    no_such_service = pod("other")
    not_chosen = pod()
    not_chosen["metadata"]["labels"]["app"] = "other"
    started_already = pod()
    started_already["metadata"]["labels"][names.LABEL_SERVICE_UID] = "uid"
    for body in (no_such_service, not_chosen, started_already):
        found = dry_created(body, namespace=injecting)
        assert "initContainers" not in found["spec"]
        assert not variables(found)


@pytest.mark.parametrize(
    "theirs",
    [
        {"env": [{"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {"name": "theirs", "key": "path"}}}]},
        {"ports": [{"name": "metrics", "containerPort": 8001, "protocol": "TCP"}]},
        {"ports": [{"name": "control", "containerPort": 9000, "protocol": "TCP"}]},
    ],
    ids=["a variable from elsewhere", "the port", "the port's name"],
)
def test_a_pod_that_the_plugin_would_break_stays_as_it_is(injecting: str, theirs: Object) -> None:
    found = dry_created(pod(**theirs), namespace=injecting)
    assert "initContainers" not in found["spec"]
    (engine,) = found["spec"]["containers"]
    assert {field: engine[field] for field in theirs} == theirs


def test_of_the_owners_objects_nothing_is_written(place: str, tmp_path: Path) -> None:
    deployment = example("deployment")
    deployment["spec"]["template"]["spec"]["nodeSelector"] = {"flyball.test/nowhere": "true"}
    audit = Audit()
    with operator(place, tmp_path):
        apply(deployment, namespace=place)
        apply(example("service"), namespace=place)
        expect_condition(place, "Progressing", "True", "MadeByOthers", name="llm")
        expect_condition(place, "Ready", "False", "NoReadyEndpoint", name="llm")
        change = {"spec": {"workload": {"selector": {"matchLabels": {"app": "nothing"}}}}}
        patch(RESOURCE, "llm", change, namespace=place)

        def told() -> bool:
            status: Object = one(RESOURCE, place, "llm")["status"]
            return bool(status["observedGeneration"] == 2)

        eventually(told, expecting="the edit was looked at")
        with pytest.raises(KubectlError, match="may not be added or removed"):
            kubectl(
                "patch", RESOURCE, "llm", "-n", place, "--type=json", "-p",
                json.dumps([
                    {"op": "remove", "path": "/spec/workload"},
                    {"op": "add", "path": "/spec/model", "value": {"uri": "hf://org/m"}},
                    {"op": "add", "path": "/spec/engine", "value": {"image": "vllm/vllm-openai:v0.32.0"}},
                ]),
            )  # fmt: skip
        kubectl("delete", RESOURCE, "llm", "-n", place)
    assert {write.resource for write in audit.writes(place)} <= {"inferenceservices", "configmaps"}
    assert get("service", "llm", namespace=place) is None
