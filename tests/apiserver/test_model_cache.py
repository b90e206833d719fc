"""A model that is downloaded once, on the real API server, under the chart's own rights. Tests play the kubelet."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flyball_engine.model_cache import DownloadExit
from flyball_lab.harness.manifests import Object
from flyball_lab.harness.waiting import eventually
from support.cluster import apply, get, items, kubectl, patch
from support.kubelet import play_download
from support.operators import RESOURCE, condition, expect_condition, idle_service, made, one, serve
from support.remnants import mark
from support.tenants import tenant_namespace

CLAIM: Object = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "models"},
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": "none",
        "resources": {"requests": {"storage": "1Gi"}},
    },
}


@pytest.fixture
def place(crd: Path, tmp_path: Path) -> Iterator[str]:
    """The namespace of a tenant that an operator with the chart's rights looks after."""
    with tenant_namespace(tmp_path) as name:
        yield name


def cached() -> Object:
    model = {"uri": "hf://org/m", "cache": {"claimName": "models", "revision": "v1"}}
    return idle_service(spec__model=model, spec__replicas=1)


def job(place: str, *, besides: str = "") -> str:
    """The one Job there is, once there is one besides this."""

    def there() -> str | None:
        found = [one["metadata"]["name"] for one in items("jobs", namespace=place)]
        return found[0] if len(found) == 1 and found[0] != besides else None

    return str(eventually(there, expecting="a Job"))


def test_pods_are_made_once_the_model_is_there_and_again_for_another_revision(place: str) -> None:
    apply(cached(), namespace=place)
    message = expect_condition(place, "ModelReady", "False", "ClaimNotFound")
    assert "models" in message
    assert condition(place, "Progressing")[:2] == ("True", "ClaimNotFound")
    assert condition(place, "Stalled") == ("", "", "")
    assert get("deployment", "chat", namespace=place) is None
    apply(CLAIM, namespace=place)
    expect_condition(place, "ModelReady", "False", "ClaimPending")
    first = job(place)
    play_download(place, first, code=0, message="downloaded org/m at commit c0ffee: 2 files, 9 bytes")
    message = expect_condition(place, "ModelReady", "True", "Downloaded")
    assert "9 bytes" in message
    made(place)
    serve(place)

    patch(RESOURCE, "chat", {"spec": {"model": {"cache": {"revision": "v2"}}}}, namespace=place)
    second = job(place, besides=first)
    expect_condition(place, "ModelReady", "False", "ClaimPending")
    assert condition(place, "Available")[:2] == ("True", "EarlierRevisionServes")
    volumes = one("deployment", place)["spec"]["template"]["spec"]["volumes"]
    assert {"name": "model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}} in volumes
    play_download(place, second, code=DownloadExit.REVISION_MISSING, message="no such revision: v2")
    message = expect_condition(place, "Stalled", "True", "RevisionNotFound")
    assert f"kubectl delete job {second}" in message
    assert condition(place, "Available")[:2] == ("True", "EarlierRevisionServes")

    # Back to what is there: the Job compares the files, and nothing is rolled.
    deployment = one("deployment", place)["spec"]["template"]
    patch(RESOURCE, "chat", {"spec": {"model": {"cache": {"revision": "v1"}}}}, namespace=place)
    play_download(place, job(place, besides=second), code=0, message="the folder holds org/m")
    expect_condition(place, "Ready", "True", "Serving")
    assert one("deployment", place)["spec"]["template"] == deployment

    kubectl("delete", RESOURCE, "chat", "-n", place)
    eventually(lambda: not items("jobs", namespace=place), expecting="the Job to go with the service")
    assert get("persistentvolumeclaim", "models", namespace=place) is not None


@pytest.fixture
def storage_class() -> Iterator[str]:
    """A StorageClass of which nothing provisions volumes, and whose volumes may not grow."""
    name = f"model-{uuid.uuid4().hex[:6]}"
    body = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    kubectl("create", "-f", "-", stdin=json.dumps(mark(body | {"provisioner": "flyball.test/none"})))
    yield name
    kubectl("delete", "storageclass", name)


@pytest.fixture
def make_volume(place: str, storage_class: str) -> Iterator[Callable[[], object]]:
    """Makes a volume of the class, for the claim `chat-model` alone."""
    name = storage_class
    anywhere = {"key": "kubernetes.io/os", "operator": "Exists"}
    spec = {
        "storageClassName": storage_class,
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": place, "name": "chat-model"},
        "local": {"path": f"/{name}"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [anywhere]}]}},
    }
    body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
    try:
        yield lambda: kubectl("create", "-f", "-", stdin=json.dumps(mark(body)))
    finally:
        kubectl("delete", "persistentvolume", name, "--ignore-not-found", "--wait=false")


def with_claim(**claim: Any) -> Object:
    model = {"uri": "hf://org/m", "cache": {"claim": {"size": "1Gi", **claim}}}
    return idle_service(spec__model=model, spec__replicas=1)


def ask(place: str, **claim: Any) -> None:
    """Edit the claim that is asked for."""
    patch(RESOURCE, "chat", {"spec": {"model": {"cache": {"claim": claim}}}}, namespace=place)


def test_a_claim_is_made_for_the_service_and_becomes_what_the_spec_says(
    place: str, storage_class: str, make_volume: Callable[[], object]
) -> None:
    apply(CLAIM | {"metadata": {"name": "chat-model"}}, namespace=place)
    apply(with_claim(storageClassName="no-such-class"), namespace=place)
    expect_condition(place, "Stalled", "True", "ClaimConflict")
    kubectl("delete", "pvc", "chat-model", "-n", place)
    ask(place, size="1024Mi")
    message = expect_condition(place, "ModelReady", "False", "StorageClassNotFound")
    assert '"no-such-class" not found' in message
    ask(place, storageClassName=storage_class)
    message = expect_condition(place, "ModelReady", "False", "ClaimDiffers")
    assert "accepted: no-such-class" in message
    before = job(place)
    kubectl("delete", "pvc", "chat-model", "-n", place)
    # Not before: it would become the earlier claim's, whatever its class.
    make_volume()
    play_download(place, job(place, besides=before), code=0, message="downloaded org/m: 2 files, 9 bytes")
    expect_condition(place, "ModelReady", "True", "Downloaded")
    made(place)

    def bound() -> Object | None:
        (found,) = items("persistentvolumeclaims", namespace=place)
        return found if found["status"]["phase"] == "Bound" else None

    claim: Object = eventually(bound, expecting="the claim to get the volume")
    assert "ownerReferences" not in claim["metadata"]

    ask(place, size="2Gi")
    assert "resize" in expect_condition(place, "ModelReady", "False", "ClaimRefused")
    assert condition(place, "Accepted")[0] == "True"
    kubectl("patch", "storageclass", storage_class, "--type=merge", "-p", '{"allowVolumeExpansion": true}')
    # An edit, so that it is not waited for until it is asked for again.
    ask(place, size="2048Mi")
    expect_condition(place, "ModelReady", "True", "Downloaded")
    assert one("persistentvolumeclaim", place, "chat-model")["spec"]["resources"]["requests"]["storage"] == "2Gi"
    ask(place, size="1Gi", accessModes=["ReadWriteOnce"])
    assert "accepted: [ReadWriteMany]" in expect_condition(place, "ModelReady", "False", "ClaimDiffers")

    kubectl("delete", RESOURCE, "chat", "-n", place)
    eventually(lambda: not items("jobs", namespace=place), expecting="the Job to go with the service")
    apply(with_claim(deletion="Delete"), namespace=place)

    def owned() -> bool:
        (found,) = items("persistentvolumeclaims", namespace=place)
        assert found["metadata"]["uid"] == claim["metadata"]["uid"]
        return bool(found["metadata"].get("ownerReferences"))

    eventually(owned, expecting="the claim that was kept to be the service's")
    kubectl("delete", RESOURCE, "chat", "-n", place)
    gone = "the claim to go with the service"
    eventually(lambda: not items("persistentvolumeclaims", namespace=place), expecting=gone)
