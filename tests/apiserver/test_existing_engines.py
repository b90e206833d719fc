"""Pods that others make, on the real API server: what the chart's policy brings into them, and what nobody writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from flyball_engine.contract import SETPOINT_PATH
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from flyball_operator.api import names
from flyball_operator.api.engine_container import engine_container
from flyball_operator.api.workload import Workload
from flyball_operator.reconcile.plan.injection import obstacle
from support import helm
from support.audit import Audit
from support.cluster import KubectlError, Object, apply, dry_created, get, items, kubectl, namespace, patch
from support.helm import CHART
from support.kubelet import make_ready
from support.operators import NOWHERE, RESOURCE, expect_condition, one
from support.others_pods import llm_inference_service, production_stack
from support.tenants import operator

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
def places(crd: object) -> Iterator[tuple[str, str]]:
    """Two namespaces where the chart's policy acts, the second for pods with any rights."""
    with namespace("flyball-inject") as place, namespace("flyball-inject-any", restricted=False) as other:
        watch = {"watch": {"namespaces": [place, other]}}
        helm.run("install", RELEASE, str(CHART), "-n", place, values=VALUES | watch)
        yield place, other
        helm.run("uninstall", RELEASE, "-n", place, "--ignore-not-found")


@pytest.fixture(scope="module")
def injecting(places: tuple[str, str]) -> str:
    """The first, with the service of the example, which the policy knows."""
    place, _ = places
    apply(example("service"), namespace=place)
    injected(pod(), place)
    return place


@pytest.fixture
def anything(places: tuple[str, str]) -> str:
    """The second, for tests with services of their own."""
    return places[1]


def injected(body: Object, place: str) -> Object:
    """Wait until the policy brings the plugin into such a pod; returns it as the API server would make it."""

    def found() -> Object | None:
        made = dry_created(body, namespace=place)
        return made if names.CONTAINER_PLUGIN in str(made) else None

    return eventually(found, expecting=f"the plugin in {body['metadata']['name']}", within=240)


def tunes(name: str, labels: Object, **workload: Any) -> Object:
    """A service that tunes the pods with these labels."""
    service = example("service")
    service["metadata"]["name"] = name
    service["spec"]["workload"] = {"selector": {"matchLabels": labels}, **workload}
    return service


def of(template: Object, service: str) -> Object:
    """A pod of this template, to which its owner added the label of the service."""
    labels = template["metadata"]["labels"] | {names.LABEL_SERVICE: service}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "of-others", "labels": labels}} | {
        "spec": template["spec"]
    }


def container(found: Object, name: str) -> Object:
    """A container of a pod."""
    (one,) = (each for each in found["spec"]["containers"] if each["name"] == name)
    return one  # type: ignore[no-any-return]


def control_port(found: Object) -> int:
    """The control port that the pod has, as it tells the plugin."""
    which = engine_container(found)
    engine = container(found, which.name)
    told = {one["name"]: one.get("value") for one in engine["env"]}
    assert told["FLYBALL_CONTROL_PORT"] == str(which.control_port)
    assert told["PYTHONPATH"].split(":")[0] == "/flyball"
    return which.control_port


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
        "FLYBALL_CONTROL_PORT": "8001",
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
def test_a_pod_that_the_plugin_would_break_stays_as_it_is_and_the_operator_knows_why(
    injecting: str, theirs: Object
) -> None:
    body = pod(**theirs)
    workload = Workload.model_validate(example("service")["spec"]["workload"])
    assert obstacle(body, workload)
    assert not obstacle(pod(), workload)
    found = dry_created(body, namespace=injecting)
    assert "initContainers" not in found["spec"]
    (engine,) = found["spec"]["containers"]
    assert {field: engine[field] for field in theirs} == theirs


def test_the_pods_of_an_llm_inference_service_get_the_plugin_in_their_main_container(anything: str) -> None:
    template = llm_inference_service("qwen", sidecar_first=True)
    apply(tunes("qwen", {"app.kubernetes.io/name": "qwen"}, container="main"), namespace=anything)
    found = injected(of(template, "qwen"), anything)
    assert [one["name"] for one in found["spec"]["initContainers"]] == ["flyball-plugin", "storage-initializer"]
    assert engine_container(found).name == "main"
    assert control_port(found) == 8001
    theirs, engine = template["spec"]["containers"][1], container(found, "main")
    assert engine["command"] == theirs["command"]
    for field in ("env", "ports", "volumeMounts"):
        kept = {one.get("name"): one for one in engine[field]}
        assert all(kept[one.get("name")].items() >= one.items() for one in theirs[field]), field
    # The probes speak TLS to the API's port alone.
    assert engine["readinessProbe"]["httpGet"] == theirs["readinessProbe"]["httpGet"]
    assert "env" not in container(found, "log-shipper")


def test_pods_that_decode_on_8001_get_their_control_port_elsewhere(anything: str) -> None:
    template, labels = llm_inference_service("decode", port=8001), {"app.kubernetes.io/name": "decode"}
    body = of(template, "decode")
    apply(tunes("decode", labels, container="main", controlPort=8101), namespace=anything)
    found = injected(body, anything)
    assert control_port(found) == 8101
    inits = found["spec"]["initContainers"]
    assert [one["name"] for one in inits] == ["flyball-plugin", "llm-d-routing-sidecar", "storage-initializer"]
    assert inits[1]["restartPolicy"] == "Always"
    assert inits[1]["command"] == template["spec"]["initContainers"][0]["command"]
    # A port that only the sidecar has.
    proxied = Workload.model_validate({"selector": {"matchLabels": labels}, "container": "main", "controlPort": 8000})
    assert obstacle(body, proxied) == "uses port 8000 itself: choose another spec.workload.controlPort"
    patch(RESOURCE, "decode", {"spec": {"workload": {"controlPort": 8000}}}, namespace=anything)
    eventually(
        lambda: "flyball-plugin" not in str(dry_created(body, namespace=anything)),
        expecting="a pod whose sidecar has the port stays as it is",
    )


def test_pods_of_the_production_stack_get_the_plugin_beside_their_secrets_and_as_root(anything: str) -> None:
    template = production_stack("qwen3")
    apply(tunes("qwen3", {"model": "qwen3", "helm-release-name": "vllm"}), namespace=anything)
    found = injected(of(template, "qwen3"), anything)
    assert engine_container(found).name == "vllm"
    assert control_port(found) == 8001
    theirs, engine = template["spec"]["containers"][0], container(found, "vllm")
    assert engine["securityContext"] == {"runAsNonRoot": False}
    assert {one["name"]: one for one in engine["env"]}.items() >= {one["name"]: one for one in theirs["env"]}.items()
    assert engine["envFrom"] == theirs["envFrom"]
    # The image of the plugin has a user of its own; a pod that names root for all containers has it here, too.
    (plugin,) = found["spec"]["initContainers"]
    assert plugin["securityContext"]["runAsNonRoot"] is True
    as_root = injected(of(production_stack("qwen3", securityContext={"runAsUser": 0}), "qwen3"), anything)
    assert as_root["spec"]["initContainers"][0]["securityContext"]["runAsNonRoot"] is False


def test_a_pod_of_kserve_is_counted_and_reached_at_its_control_port(anything: str, tmp_path: Path) -> None:
    template, labels = llm_inference_service("found", port=8001), {"app.kubernetes.io/name": "found"}
    template["metadata"]["labels"][names.LABEL_SERVICE] = "found"
    template["spec"]["nodeSelector"] = NOWHERE
    with heard() as (port, paths), operator(anything, tmp_path, prometheus_url="http://127.0.0.1:9"):
        apply(tunes("found", labels, container="main", controlPort=port), namespace=anything)
        injected(of(template, "found"), anything)
        spec = {"selector": {"matchLabels": labels}, "template": template}
        deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "found-kserve"}, "spec": spec}
        apply(deployment, namespace=anything)
        (made,) = eventually(
            lambda: items("pods", namespace=anything, selector="app.kubernetes.io/name=found"), expecting="a pod"
        )
        make_ready(anything, made["metadata"]["name"], "127.0.0.1")
        expect_condition(anything, "Ready", "True", "Serving", name="found")
        assert one(RESOURCE, anything, "found")["status"]["readyReplicas"] == 1
        eventually(lambda: SETPOINT_PATH in paths, expecting="the operator at the control port of the pod")


@contextmanager
def heard() -> Iterator[tuple[int, list[str]]]:
    """A port of this machine, and the paths that somebody asked it for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Tests look at what it heard."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, paths
        finally:
            server.shutdown()
            thread.join()


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
