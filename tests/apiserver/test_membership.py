"""What anyone may write, against the real API server: pods that only say whose they are, an epoch that nobody had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from flyball_engine.contract import CONTROL_PORT
from flyball_lab.harness.engines import ServedEngine
from flyball_lab.harness.manifests import Object
from flyball_lab.harness.waiting import eventually
from support.cluster import apply, get, items, kubectl, namespace, throughout
from support.kubelet import make_ready, play_endpoints
from support.loopback_engines import served
from support.operators import expect_condition, idle_service
from support.tenants import granted, operator

RESOURCE = "inferenceservices.serving.flyball.dev"
#: Conditions that change by themselves: no Prometheus has samples, which the operator says only after some time.
OF_SAMPLES = {"MetricsAvailable", "ObjectivesMet", "CapacitySufficient"}


@pytest.fixture
def key(tmp_path: Path) -> Ed25519PrivateKey:
    """The key that the operator signs with, and engines verify by."""
    made = Ed25519PrivateKey.generate()
    (tmp_path / "key.pem").write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return made


def service(place: str) -> Object:
    found = get(RESOURCE, "chat", namespace=place)
    assert found is not None
    return found


def only_pod(place: str) -> Object:
    """The one pod that the Deployment has made."""
    return eventually(lambda: items("pods", namespace=place), expecting="a pod of the Deployment")[0]


def bare_copy(pod: Object, name: str) -> Object:
    """A pod that nobody controls, with all that this one says of itself."""
    metadata = pod["metadata"]
    labels = {key: value for key, value in metadata["labels"].items() if key != "pod-template-hash"}
    spec = {field: value for field, value in pod["spec"].items() if field != "serviceAccountName"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "annotations": metadata["annotations"]},
        "spec": spec,
    }


def told(place: str) -> Object:
    """What status says of pods."""
    status = service(place)["status"]
    return {
        "applied": (status.get("tuning") or {}).get("appliedPods"),
        "ready": status["readyReplicas"],
        "generation": (status.get("tuning") or {}).get("generation"),
        "conditions": {
            item["type"]: (item["status"], item["reason"])
            for item in status["conditions"]
            if item["type"] not in OF_SAMPLES
        },
    }


def confirmed(place: str) -> Object | None:
    """The same once every pod that counts has confirmed its setpoint."""
    found = told(place)
    applied, _, ready = str(found["applied"] or "0/-").partition("/")
    return found if applied == ready != "0" else None


def test_a_bare_pod_with_a_services_labels_and_uid_is_told_nothing_and_changes_nothing(
    crd: Path, tmp_path: Path, key: Ed25519PrivateKey
) -> None:
    with (
        namespace("flyball-tenant-a") as mine,
        namespace("flyball-tenant-b") as theirs,
        operator(mine, tmp_path, beside=(theirs,)),
    ):
        apply(idle_service(spec__tuning={"mode": "Disabled"}), namespace=mine)
        pod, uid = only_pod(mine), service(mine)["metadata"]["uid"]
        own, beside, across = (ServedEngine(name, name, uid, key, CONTROL_PORT) for name in ("own", "near", "far"))
        with served(own, beside, across):
            for place, engine in ((theirs, across), (mine, beside)):
                apply(bare_copy(pod, engine.name), namespace=place)
                make_ready(place, engine.name, engine.ip)
            make_ready(mine, pod["metadata"]["name"], own.ip)
            play_endpoints(mine, [pod])
            expect_condition(mine, "Ready", "True", "Serving")
            eventually(lambda: own.engine.history, expecting="the service's own engine to be told")
            before = eventually(lambda: confirmed(mine), expecting="its setpoint to be confirmed")
            assert before["applied"] == "1/1"
            throughout(lambda: told(mine) == before, expecting=f"nothing but {before}", seconds=12, every=1)
            assert [beside.engine.history, across.engine.history] == [[], []]


def test_a_status_with_an_epoch_that_no_lease_can_count_to_keeps_nobody_from_leading(crd: Path, tmp_path: Path) -> None:
    with namespace("flyball-epochs") as place:
        apply(idle_service("forged"), namespace=place)
        forged = json.dumps({"status": {"epoch": 2**53}})
        kubectl("patch", RESOURCE, "forged", "-n", place, "--subresource=status", "--type=merge", "-p", forged)
        apply(idle_service(), namespace=place)
        with granted(place, (place,)) as release:
            process = release.process(tmp_path)
            try:
                process.expect_ready()
                expect_condition(place, "Accepted", "True", "Accepted")
                assert "its status names epoch 9007199254740992" in process.log.read_text()
            finally:
                process.stop()
