"""A model that is downloaded once, on the real API server, under the chart's own rights. Tests play the kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flyball_engine.model_cache import DownloadExit
from flyball_lab.harness.manifests import Object
from flyball_lab.harness.waiting import eventually
from support.cluster import apply, get, items, kubectl, patch
from support.kubelet import play_download
from support.operators import RESOURCE, condition, expect_condition, idle_service, made, one, serve
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
