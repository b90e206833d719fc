"""`flyball support-bundle` as it is typed: against an API server over HTTP, by a kubeconfig alone."""

from __future__ import annotations

import io
import json
import resource
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyball_lab.harness.manifests import Object
from flyball_operator.api import names
from flyball_operator.kube.resources import (
    CONFIG_MAPS,
    CRDS,
    DEPLOYMENTS,
    EVENTS,
    HTTP_ROUTES,
    INFERENCE_SERVICES,
    JOBS,
    NAMESPACES,
    PODS,
    REVISIONS,
    SECRETS,
)
from support.installations import HOME, OPERATOR_LABELS, POD_LABELS, TEAM, UID, World
from support.stored_api import Command, StoredApi

#: In every value that must not be in an archive.
PLANTED = "hunter2"
FOLDER = "flyball-support"


def engine() -> Object:
    env = [
        {"name": "A_PLAIN_NAME", "value": f"{PLANTED}-env"},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}},
    ]
    return {"name": "engine", "env": env, "args": ["--api-key", f"{PLANTED}-arg", f"--hf-token={PLANTED}-arg"]}


@pytest.fixture
def api() -> StoredApi:
    world, found = World(), StoredApi()
    found.documents["/version"] = world.version
    world.set(SOME_PASSWORD=f"{PLANTED}-setting", FLYBALL_PROMETHEUS_URL=f"http://me:{PLANTED}@prometheus:9090")
    world.operator["spec"]["selector"] = {"matchLabels": OPERATOR_LABELS}
    world.service["spec"]["engine"]["env"] = engine()["env"]
    world.service["spec"]["engine"]["args"] = engine()["args"]
    world.service["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/last-applied-configuration": json.dumps(engine()),
        names.ANNOTATION_TUNING: "Paused",
    }
    template = {"spec": {"containers": [engine()]}}
    meta = {"namespace": TEAM, "labels": POD_LABELS}
    world.pod["spec"]["containers"] = [engine()]
    operator_pod: Object = {"metadata": {"name": "flyball-0", "namespace": HOME, "labels": OPERATOR_LABELS}}
    operator_pod["status"] = {"containerStatuses": [{"restartCount": 1}]}
    involved = {"kind": names.KIND, "name": "chat", "uid": UID}
    event = {"involvedObject": involved, "type": "Warning", "reason": "Failed", "lastTimestamp": "2026-01-01T00:00:00Z"}
    for kind, body in (
        (CRDS, world.crd),
        (DEPLOYMENTS, world.operator),
        (INFERENCE_SERVICES, world.service),
        (PODS, world.pod),
        (PODS, operator_pod),
        (DEPLOYMENTS, {"metadata": {**meta, "name": "chat"}, "spec": {"template": template}}),
        (JOBS, {"metadata": {**meta, "name": "chat-download"}, "spec": {"template": template}}),
        (REVISIONS, {"metadata": {**meta, "name": "chat-1"}, "data": {"template": template}}),
        (SECRETS, {"metadata": {"name": "hf", "namespace": TEAM}, "data": {"token": f"{PLANTED}-secret"}}),
        (CONFIG_MAPS, {"metadata": {"name": "other", "namespace": TEAM}, "data": {"a": f"{PLANTED}-configmap"}}),
        (EVENTS, {"metadata": {"name": "e1", "namespace": TEAM}, **event, "message": f"--api-key {PLANTED}-event"}),
        (EVENTS, {"metadata": {"name": "e2", "namespace": TEAM}, "message": "of another", "involvedObject": {}}),
    ):
        found.put(kind, body)
    log = f"/api/v1/namespaces/{HOME}/pods/flyball-0/log"
    found.documents[log] = f'{{"msg": "started", "token": "{PLANTED}-log"}}\nBearer {PLANTED}-bearer\n'
    return found


@pytest.fixture
def typed(api: StoredApi, command: Command, tmp_path: Path) -> Command:
    return partial(command, api, "support-bundle", "--file", str(tmp_path / "bundle.tar.gz"))


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as archive:
        return {
            member.name.removeprefix(f"{FOLDER}/"): (archive.extractfile(member) or io.BytesIO()).read().decode()
            for member in archive.getmembers()
        }


def test_no_planted_secret_is_in_the_archive(typed: Any, tmp_path: Path, api: StoredApi) -> None:
    assert PLANTED in json.dumps(api.documents)
    typed()
    files = unpacked(tmp_path / "bundle.tar.gz")
    assert not [name for name, content in files.items() if PLANTED in content or PLANTED in name]
    assert not [path for _, path in api.requests if "/secrets" in path or path.endswith("/configmaps")]
    assert {method for method, _ in api.requests} <= {"GET", "POST"}
    assert {path for method, path in api.requests if method == "POST"} <= {
        "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    }


def test_what_a_fault_needs_is_in_it(typed: Any, tmp_path: Path) -> None:
    said = typed().out
    files = unpacked(tmp_path / "bundle.tar.gz")
    team, home = f"namespaces/{TEAM}", f"operators/{HOME}/flyball"
    assert {
        "README.txt",
        "versions.json",
        "doctor.json",
        "doctor.txt",
        f"{team}/inferenceservices/chat.yaml",
        f"{team}/deployments/chat.yaml",
        f"{team}/controllerrevisions/chat-1.yaml",
        f"{team}/jobs/chat-download.yaml",
        f"{team}/pods/chat-1.yaml",
        f"{team}/events.txt",
        f"{home}/deployment.yaml",
        f"{home}/pod-flyball-0.yaml",
        f"{home}/flyball-0.log",
        f"{home}/flyball-0.previous.log",
    } <= set(files)
    service = yaml.safe_load(files[f"{team}/inferenceservices/chat.yaml"])
    assert service["metadata"]["annotations"][names.ANNOTATION_TUNING] == "Paused"
    assert service["spec"]["engine"]["env"][1]["valueFrom"]["secretKeyRef"] == {"name": "hf", "key": "token"}
    assert [one["type"] for one in service["status"]["conditions"]] == ["Accepted", "MetricsAvailable", "Tuned"]
    assert '"msg": "started"' in files[f"{home}/flyball-0.log"]
    assert "Warning Failed InferenceService/chat x1" in files[f"{team}/events.txt"]
    assert "of another" not in files[f"{team}/events.txt"]
    assert json.loads(files["versions.json"])["server"]["gitVersion"] == "v1.33.1"
    assert "checks" in json.loads(files["doctor.json"])
    assert "bundle.tar.gz" in said


def test_of_a_service_that_named_a_gateway_the_route_is_in_it_with_its_events(
    typed: Any, tmp_path: Path, api: StoredApi
) -> None:
    api.put(
        HTTP_ROUTES,
        {"metadata": {"name": "chat", "namespace": TEAM, "uid": "route-uid"}, "spec": {"hostnames": ["theirs"]}},
    )
    service = api.documents[INFERENCE_SERVICES.path(TEAM, "chat")]
    # It named one, and the route is still being removed.
    service["status"]["conditions"].append({"type": "Routed", "status": "False", "reason": "RoutePending"})
    involved = {"kind": "HTTPRoute", "name": "chat", "uid": "route-uid"}
    event = {"metadata": {"name": "e3", "namespace": TEAM}, "reason": "Hangs", "involvedObject": involved}
    api.put(EVENTS, {**event, "message": "a finalizer"})
    api.forbidden.add("inferencepools")
    typed()
    files = unpacked(tmp_path / "bundle.tar.gz")
    assert "theirs" in files[f"namespaces/{TEAM}/httproutes/chat.yaml"]
    assert "Hangs HTTPRoute/chat" in files[f"namespaces/{TEAM}/events.txt"]
    assert f"inferencepools chat in namespace {TEAM}: " in files["unread.txt"]


def test_only_its_owner_can_read_it_and_it_takes_no_files_place(typed: Any, tmp_path: Path) -> None:
    typed()
    path = tmp_path / "bundle.tar.gz"
    before = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "File exists; accepted: a new file" in typed(code=1).err
    assert path.read_bytes() == before


def test_as_json_it_says_what_is_in_it(typed: Any, tmp_path: Path) -> None:
    document = json.loads(typed("-o", "json").out)
    assert set(document["files"]) == set(unpacked(tmp_path / "bundle.tar.gz"))
    assert document["bytes"] == (tmp_path / "bundle.tar.gz").stat().st_size


def test_what_may_not_be_read_is_named_and_the_rest_is_there(typed: Any, tmp_path: Path, api: StoredApi) -> None:
    api.forbidden |= {"events", "replicasets", "log"}
    said = typed().out
    files = unpacked(tmp_path / "bundle.tar.gz")
    for what in (f"events in namespace {TEAM}", f"replicasets in namespace {TEAM}", "flyball-0.log"):
        assert what in files["unread.txt"]
    assert f"namespaces/{TEAM}/deployments/chat.yaml" in files
    assert "not read: " in said


def test_a_folder_that_is_not_there_ends_with_1(typed: Any, tmp_path: Path) -> None:
    assert "No such file" in typed("--file", str(tmp_path / "nowhere/bundle.tar.gz"), code=1).err


def test_a_namespace_that_is_not_there_ends_with_1(typed: Any, tmp_path: Path) -> None:
    assert "there is no namespace nowhere" in typed("-n", "nowhere", code=1).err
    assert not (tmp_path / "bundle.tar.gz").exists()


def test_services_of_one_namespace_only(typed: Any, tmp_path: Path, api: StoredApi) -> None:
    api.put(NAMESPACES, {"metadata": {"name": "elsewhere"}})
    typed("-n", "elsewhere")
    assert not [name for name in unpacked(tmp_path / "bundle.tar.gz") if name.startswith("namespaces/")]


def test_a_part_of_an_archive_does_not_stay(typed: Any, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        said = typed(code=1).err
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large" in said
    assert not (tmp_path / "bundle.tar.gz").exists()
