"""The operator's process against the real API server: what it makes, leaves alone, and takes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from support import remnants
from support.audit import Audit
from support.cluster import apply, delete, items, kubectl, patch, throughout
from support.kubelet import play_trouble
from support.operators import (
    IMAGE,
    RESOURCE,
    OperatorProcess,
    expect_condition,
    idle_service,
    made,
    one,
    serve,
    ungoverned_service,
)
from support.tenants import kubeconfig_of, operator

BAD = "flyball.test/none:1"
#: What the kubelet says of an image that a registry does not have.
NO_SUCH_IMAGE = {"waiting": {"reason": "ErrImagePull", "message": f'failed to pull "{BAD}": {BAD}: not found'}}
OWNED = ("deployments", "services", "poddisruptionbudgets", "controllerrevisions", "pods", "endpointslices")


def owned(place: str) -> list[str]:
    found = [item for kind in OWNED for item in items(kind, namespace=place)]
    return [f"{item['kind']}/{item['metadata']['name']}" for item in found]


def test_a_service_gets_what_it_needs_serves_and_leaves_nothing(place: str, running: OperatorProcess) -> None:
    apply(idle_service(spec__replicas=2), namespace=place)
    deployment = made(place)
    serve(place, replicas=2)
    service = one(RESOURCE, place)
    uid = service["metadata"]["uid"]
    for kind in ("deployment", "service", "poddisruptionbudget"):
        (owner,) = one(kind, place)["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (uid, True)
    assert [port["port"] for port in one("service", place)["spec"]["ports"]] == [8000]
    assert deployment["spec"]["selector"]["matchLabels"][names.LABEL_SERVICE_UID] == uid
    assert service["status"]["readyReplicas"] == 2
    assert json.loads(
        kubectl("get", "--raw", f"/apis/{names.API_VERSION}/namespaces/{place}/{names.PLURAL}/chat/scale")
    )["status"] == {"replicas": 2, "selector": service["status"]["selector"]}
    delete(RESOURCE, "chat", namespace=place)
    eventually(lambda: not owned(place), expecting="nothing left")


def test_pods_are_taken_at_the_restricted_level(place: str, running: OperatorProcess) -> None:
    resources = {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"memory": "2Gi"}}
    apply(idle_service(spec__podTemplate__resources=resources), namespace=place)
    made(place)
    eventually(lambda: items("pods", namespace=place), expecting="a pod that the level lets in")


def test_fields_left_out_leave_the_deployment(place: str, running: OperatorProcess) -> None:
    changes: dict[str, Any] = {
        "spec__podTemplate__priorityClassName": "system-none",
        "spec__engine__env": [{"name": "A", "value": "1"}],
    }
    apply(idle_service(spec__replicas=0, **changes), namespace=place)
    made(place)
    apply(idle_service(spec__replicas=0), namespace=place)

    def gone() -> bool:
        spec = one("deployment", place)["spec"]["template"]["spec"]
        env = {item["name"] for item in spec["containers"][0]["env"]}
        return "priorityClassName" not in spec and "A" not in env

    eventually(gone, expecting="neither the priority class nor the variable")


def test_tls_comes_and_goes_without_a_trace(place: str, running: OperatorProcess) -> None:
    apply(idle_service(spec__replicas=0), namespace=place)
    made(place)
    without = speaks(place)
    assert without == ("http", None, {"HTTP"}, {"prometheus.io/scrape"}, False)
    apply(idle_service(spec__replicas=0, spec__engine__tls={"secretName": "chat-tls"}), namespace=place)
    within = ("https", "https", {"HTTPS"}, {"prometheus.io/scrape", "prometheus.io/port"}, True)
    eventually(lambda: speaks(place) == within, expecting=f"{within}; found {speaks(place)}")
    eventually(lambda: one(RESOURCE, place)["status"]["url"].startswith("https://"), expecting="the URL says so, too")
    apply(idle_service(spec__replicas=0), namespace=place)
    eventually(lambda: speaks(place) == without, expecting=f"{without}; found {speaks(place)}")
    expect_condition(place, "Accepted", "True", "Accepted")


def speaks(place: str) -> tuple[str, str | None, set[str], set[str], bool]:
    """The Service's port and protocol, the probes' scheme, what scrapers read, and whether a certificate is mounted."""
    (port,) = one("service", place)["spec"]["ports"]
    template = one("deployment", place)["spec"]["template"]
    engine = template["spec"]["containers"][0]
    probes = {engine[probe]["httpGet"]["scheme"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    read = {key for key in template["metadata"]["annotations"] if key.startswith("prometheus.io/")}
    mounted = any(volume["name"] == "flyball-tls" for volume in template["spec"]["volumes"])
    return port["name"], port.get("appProtocol"), probes, read, mounted


def test_a_restart_writes_nothing_but_leases_and_events(place: str, tmp_path: Path) -> None:
    resources = {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"memory": "1.5Gi"}}
    with operator(place, tmp_path):
        apply(idle_service(spec__podTemplate__resources=resources), namespace=place)
        made(place)
        serve(place)
        # The tuner's last word on a pod that nobody runs; an operator that ended before would leave it to the next one.
        expect_condition(place, "Tuned", "False", "EngineUnreachable")
        # Figures alone are held back for a minute.
        eventually(lambda: one(RESOURCE, place)["status"]["readyReplicas"] == 1, expecting="a ready replica")
    audit = Audit()
    version = one("deployment", place)["metadata"]["resourceVersion"]
    with operator(place, tmp_path) as process:
        eventually(lambda: b'"leading"' in process.log.read_bytes(), expecting="the new process to lead", within=240)
        expect_no_write(audit, place, seconds=15)
    assert one("deployment", place)["metadata"]["resourceVersion"] == version


def expect_no_write(audit: Audit, place: str, *, seconds: float) -> None:
    def none() -> bool:
        written = [str(write) for write in audit.writes(place)]
        assert not written
        return True

    throughout(none, expecting="no write", seconds=seconds)


def test_tuning_and_status_roll_no_pod(place: str, running: OperatorProcess) -> None:
    apply(idle_service(), namespace=place)
    made(place)
    serve(place)
    before = one("deployment", place)["metadata"]["generation"]
    tuning = {"mode": "Recommend", "bounds": {"maxNumActiveSeqs": {"max": 8}}}
    patch(RESOURCE, "chat", {"spec": {"tuning": tuning, "objectives": []}}, namespace=place)
    generation = one(RESOURCE, place)["metadata"]["generation"]
    eventually(lambda: one(RESOURCE, place)["status"]["observedGeneration"] == generation, expecting="it to be seen")
    assert one("deployment", place)["metadata"]["generation"] == before


def test_an_operator_that_renders_otherwise_rolls_no_pod_until_told(place: str, tmp_path: Path) -> None:
    with operator(place, tmp_path):
        apply(idle_service(), namespace=place)
        made(place)
        serve(place)
    before = one("deployment", place)["metadata"]["generation"]
    with operator(place, tmp_path, plugin_image="flyball.test/plugin:2"):
        eventually(lambda: one(RESOURCE, place)["status"]["revisionOutdated"], expecting="revisionOutdated")
        assert one("deployment", place)["metadata"]["generation"] == before
        kubectl("annotate", RESOURCE, "chat", "-n", place, f"{names.ANNOTATION_ADOPT}=2")

        def adopted() -> bool:
            (plugin,) = one("deployment", place)["spec"]["template"]["spec"]["initContainers"]
            return bool(plugin["image"] == "flyball.test/plugin:2")

        eventually(adopted, expecting="the new plugin")
        eventually(lambda: not one(RESOURCE, place)["status"]["revisionOutdated"], expecting="no longer outdated")


@pytest.mark.parametrize("kind", ["service", "deployment"])
def test_a_foreign_object_of_the_name_is_never_touched(place: str, running: OperatorProcess, kind: str) -> None:
    foreign = {
        "service": ["create", "service", "clusterip", "chat", "--tcp=80:80"],
        "deployment": ["create", "deployment", "chat", "--image=foreign/image:1", "--replicas=0"],
    }
    kubectl(*foreign[kind], "-n", place)
    before = one(kind, place)
    apply(idle_service(), namespace=place)
    message = expect_condition(place, "Accepted", "False", "NameConflict")
    assert f"kubectl delete {kind} chat" in message
    after = one(kind, place)
    assert (after["spec"], after["metadata"].get("ownerReferences")) == (before["spec"], None)
    assert not items("controllerrevisions", namespace=place)
    delete(kind, "chat", namespace=place)
    made(place)
    expect_condition(place, "Accepted", "True", "Accepted")


def test_deleted_and_made_again_at_once_the_new_one_governs(place: str, running: OperatorProcess) -> None:
    apply(idle_service(), namespace=place)
    made(place)
    serve(place)
    old = one(RESOURCE, place)["metadata"]["uid"]
    delete(RESOURCE, "chat", namespace=place)
    apply(idle_service(), namespace=place)
    new = one(RESOURCE, place)["metadata"]["uid"]
    expect_condition(place, "Accepted", "True", "Accepted")
    made(place)
    serve(place)
    assert one("deployment", place)["spec"]["selector"]["matchLabels"][names.LABEL_SERVICE_UID] == new != old


def test_orphans_are_left_alone_until_they_are_removed(place: str, running: OperatorProcess) -> None:
    apply(idle_service(), namespace=place)
    made(place)
    serve(place)
    delete(RESOURCE, "chat", namespace=place, cascade="orphan")
    orphan = one("deployment", place)
    apply(idle_service(), namespace=place)
    assert "orphan" in expect_condition(place, "Accepted", "False", "NameConflict")
    assert one("deployment", place)["metadata"]["uid"] == orphan["metadata"]["uid"]
    for kind in ("deployment", "service", "poddisruptionbudget"):
        delete(kind, "chat", namespace=place)
    made(place)
    serve(place)


# With one replica, `test_last_device.py` and `test_readiness.py` show a rollback.
@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_bad_image_is_taken_back_while_the_good_one_serves(
    place: str, running: OperatorProcess, replicas: int
) -> None:
    apply(ungoverned_service(spec__replicas=replicas), namespace=place)
    made(place)
    serve(place, replicas=replicas)
    apply(ungoverned_service(spec__replicas=replicas, spec__engine__image=BAD), namespace=place)
    play_trouble(place, image=BAD, serving=IMAGE, state=NO_SUCH_IMAGE)
    expect_condition(place, "Available", "True", "EarlierRevisionServes")
    message = expect_condition(place, "Progressing", "False", "RolledBack", within=300)
    assert "ImagePullFailed" in message
    made(place)
    expect_condition(place, "Ready", "False", "RolledBack")
    expect_condition(place, "Available", "True", "EarlierRevisionServes")
    generation = one("deployment", place)["metadata"]["generation"]
    throughout(
        lambda: one("deployment", place)["metadata"]["generation"] == generation,
        expecting="the bad one not to be tried again",
        seconds=10,
    )
    apply(ungoverned_service(spec__replicas=replicas, spec__engine__image="vllm/next:1"), namespace=place)
    made(place, "vllm/next:1")
    serve(place, image="vllm/next:1", replicas=replicas)


def test_without_an_earlier_good_one_the_failure_is_told_and_a_good_spec_recovers(
    place: str, running: OperatorProcess
) -> None:
    apply(ungoverned_service(spec__engine__image=BAD), namespace=place)
    play_trouble(place, image=BAD, state=NO_SUCH_IMAGE)
    assert "flyball.test" in expect_condition(place, "Available", "False", "ImagePullFailed")
    message = expect_condition(place, "Progressing", "False", "ImagePullFailed", within=300)
    assert "no earlier good generation" in message
    apply(ungoverned_service(), namespace=place)
    made(place)
    serve(place)


def test_what_the_server_refuses_is_told_in_its_words_and_tried_again(place: str, running: OperatorProcess) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tight"},
        "spec": {"hard": {"count/deployments.apps": "0"}},
    }
    apply(quota, namespace=place)
    eventually(lambda: "hard" in one("resourcequota", place, "tight").get("status", {}), expecting="the quota to hold")
    apply(idle_service(), namespace=place)
    assert "exceeded quota" in expect_condition(place, "Accepted", "False", "RefusedByServer")
    delete("resourcequota", "tight", namespace=place)
    expect_condition(place, "Accepted", "True", "Accepted")


def test_left_out_replicas_follow_the_scale_subresource(place: str, running: OperatorProcess) -> None:
    apply(idle_service(spec__replicas=2), namespace=place)
    made(place)
    serve(place, replicas=2)
    kubectl("scale", RESOURCE, "chat", "-n", place, "--replicas=3")
    eventually(lambda: one("deployment", place)["spec"]["replicas"] == 3, expecting="three replicas")
    apply(idle_service(), namespace=place)
    generation = one(RESOURCE, place)["metadata"]["generation"]
    eventually(lambda: one(RESOURCE, place)["status"]["observedGeneration"] == generation, expecting="it to be seen")
    assert one("deployment", place)["spec"]["replicas"] == 3


def test_missing_rights_are_named_until_they_are_granted(place: str, tmp_path: Path) -> None:
    kubectl("create", "serviceaccount", "poor", "-n", place)
    process = OperatorProcess(place, tmp_path, kubeconfig=kubeconfig_of("poor", place, tmp_path))
    try:
        eventually(lambda: "not granted" in process.readyz()[1], expecting="what is missing", within=240)
        status, words = process.readyz()
        assert status == 503
        assert f"no right is granted in namespace {place}: it is gone, or it has no RoleBinding" in words
        assert "customresourcedefinitions" in words
        kubectl("create", "clusterrolebinding", place, "--clusterrole=cluster-admin", f"--serviceaccount={place}:poor")
        kubectl("label", "clusterrolebinding", place, f"{remnants.LABEL}={remnants.this_run()}")
        process.expect_ready()
    finally:
        process.stop()
        kubectl("delete", "clusterrolebinding", place, "--ignore-not-found")
