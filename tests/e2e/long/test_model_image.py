"""A model in an image: nodes pull it as they pull the engine's image, and mount it. No Job, no claim, no download."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from support.binaries import binary
from support.cluster import Object, apply, delete, patch
from support.inside_engines import answer_of, run_inside
from support.live import ENGINE_START_SECONDS, MODEL, RESOURCE, Flyball, Service, inference_service
from support.node_registry import NodeRegistry, node_registry

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]

NAME = "models/tiny:v1"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@pytest.fixture
def registry(flyball: Flyball, tmp_path: Path) -> Iterator[NodeRegistry]:
    """It has a small model as an image, whose root is the model's folder."""
    model, layer = tmp_path / "model", tmp_path / "layer.tar"
    subprocess.run([ROOT / "hack/lib/make-model", model], check=True, timeout=1200)
    subprocess.run(["tar", "-C", model, "--owner=0", "--group=0", "--mode=a+rX", "-cf", layer, "."], check=True)
    with node_registry(tmp_path) as made:
        push = ["append", "--insecure", f"--new_layer={layer}", "--new_tag"]
        subprocess.run([binary("crane"), *push, f"{made.address}/{NAME}"], check=True, timeout=600)
        yield made


Ask = Callable[[str, str], Service]


@pytest.fixture
def ask(flyball: Flyball) -> Iterator[Ask]:
    """Ask for a service with one pod and such a model; gone at the end."""
    made: list[Service] = []

    def asked(name: str, uri: str) -> Service:
        model = {"uri": uri, "servedName": MODEL}
        made.append(Service(name, flyball.watched))
        apply(inference_service(name, image=flyball.refs["engine-cpu"], model=model), namespace=flyball.watched)
        return made[-1]

    yield asked
    for service in made:
        delete(RESOURCE, service.name, namespace=service.namespace)


def test_pods_serve_a_model_that_their_node_has_pulled(ask: Ask, registry: NodeRegistry) -> None:
    pushed = registry.asked()
    service = ask("model-image", f"oci://{registry.address}/{NAME}")
    service.expect_governed()
    first = service.pod()
    assert registry.asked() != pushed, "the node pulled nothing"
    assert run_inside(first, "import os; assert 'config.json' in os.listdir('/model')") == 0, "the model is elsewhere"
    assert run_inside(first, "open('/model/written', 'w')") != 0, "the model can be written to"

    registry.stop()
    patch(RESOURCE, service.name, {"spec": {"replicas": 2}}, namespace=service.namespace)
    eventually(lambda: service.read()["status"].get("readyReplicas") == 2, expecting="two", within=ENGINE_START_SECONDS)
    (second,) = (pod for pod in service.pods() if pod["metadata"]["uid"] != first["metadata"]["uid"])
    assert answer_of(first) == answer_of(second)


@pytest.mark.parametrize(
    ("media", "told"),
    [
        ("application/vnd.oci.image.layer.v1.tar", r"ImageVolumeMountFailed: .*it is the model: see spec\.model\.uri"),
        ("application/octet-stream", r"EngineFailed: .*'/model'.*config\.json"),
    ],
)
def test_an_artifact_is_told_to_be_no_model_by_what_containerd_makes_of_its_media_type(
    ask: Ask, registry: NodeRegistry, media: str, told: str
) -> None:
    push_artifact(registry, "models/artifact", "v1", media)
    expect_told(ask("model-artifact", f"oci://{registry.address}/models/artifact:v1"), told)


def test_a_model_image_that_is_not_there_is_named_with_its_field_until_it_is_corrected(
    ask: Ask, registry: NodeRegistry
) -> None:
    service = ask("model-image-missing", f"oci://{registry.address}/models/tiny:v9")
    expect_told(service, r"ImagePullFailed: .*models/tiny:v9.*not found.*it is the model: see spec\.model\.uri")
    model = {"uri": f"oci://{registry.address}/{NAME}"}
    patch(RESOURCE, service.name, {"spec": {"model": model}}, namespace=service.namespace)
    service.expect_governed()


def expect_told(service: Service, pattern: str) -> None:
    """Wait until the rollout's condition says why it does not go on."""

    def told() -> bool:
        return re.search(pattern, service.condition("Progressing").get("message", "")) is not None

    eventually(told, expecting=pattern, within=300)


def push_artifact(registry: NodeRegistry, repository: str, tag: str, media: str) -> None:
    """A file of that media type, with an empty configuration, as ORAS pushes it."""
    base = f"http://{registry.address}/v2/{repository}"

    def pushed(kind: str, content: bytes) -> Object:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        upload = httpx.post(f"{base}/blobs/uploads/", trust_env=False).raise_for_status().headers["Location"]
        put = httpx.put(httpx.URL(base).join(upload), params={"digest": digest}, content=content, trust_env=False)
        put.raise_for_status()
        return {"mediaType": kind, "digest": digest, "size": len(content)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": "application/vnd.example.model",
        "config": pushed("application/vnd.oci.empty.v1+json", b"{}"),
        "layers": [pushed(media, b"{}\n")],
    }
    sent = httpx.put(f"{base}/manifests/{tag}", json=manifest, headers={"Content-Type": MANIFEST}, trust_env=False)
    sent.raise_for_status()
