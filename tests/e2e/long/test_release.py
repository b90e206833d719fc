"""A release as docs/releases.md has it: made from a commit, pushed, and installed, with every image by digest.

The registry is on the node's loopback. So containerd pulls from it without TLS, and nothing is imported.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flyball_lab.repository import ROOT
from flyball_operator import __version__
from flyball_operator.api.names import CONTAINER_PLUGIN
from support.cluster import Object, apply, items, kubectl, namespace
from support.live import RESOURCE, Flyball, Service, helm, inference_service
from support.node_registry import NodeRegistry, node_registry

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

PAGE = (ROOT / "docs/releases.md").read_text(encoding="utf-8")
OWN, NAME, VERSION = "flyball-system", "flyball", __version__
#: The local cluster's: another release there has the CRD.
HERE = ("--set", "crds.install=false", "--set", "prometheus.url=http://prometheus.monitoring:9090")


def written(start: str, **meant: str) -> list[str]:
    """The command of the page that begins so, with what it leaves open filled in."""
    text = PAGE.replace("\\\n", " ")
    (found,) = re.findall(rf"(?:^|`)({re.escape(start)}[^`\n]*)", text, flags=re.MULTILINE)[-1:]
    return [re.sub("|".join(meant), lambda name: meant[name[0]], word) for word in shlex.split(found)]


@dataclass(frozen=True)
class Release:
    """A release that was pushed to `registry`. `digests`: of its images, by name."""

    registry: NodeRegistry
    digests: dict[str, str]

    def image(self, name: str) -> str:
        """How a pod must name it."""
        return f"{self.registry.address}/flyball/{name}@{self.digests[name]}"


def digest(folder: Path, name: str) -> str:
    """That of an image's archive."""
    with tarfile.open(folder / f"flyball-{name}-image-{VERSION}.tar") as tar:
        index = tar.extractfile("./index.json")
        assert index is not None
        return str(json.load(index)["manifests"][0]["digest"])


@pytest.fixture
def release(flyball: Flyball, tmp_path: Path) -> Iterator[Release]:
    """Made of the commit that is checked out, and pushed."""
    clone, made = tmp_path / "clone", tmp_path / "made"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    subprocess.run(written("hack/release VERSION", VERSION=VERSION, DIR=str(made)), cwd=clone, check=True)
    with node_registry(tmp_path) as registry:
        pushed = written("hack/release push", DIR=str(made), REGISTRY=registry.address)
        subprocess.run(pushed, cwd=clone, check=True)
        yield Release(registry, {name: digest(made, name) for name in ("operator", "plugin")})


@pytest.fixture
def tenant(release: Release) -> Iterator[str]:
    """A namespace that the release watches. At the end the release is gone."""
    with namespace("flyball-release") as name:
        yield name
        kubectl("delete", RESOURCE, "--all", "-n", name, "--timeout=120s", timeout=150)
        helm("uninstall", NAME, "-n", OWN, "--ignore-not-found", "--wait")
        kubectl("delete", "namespace", OWN, "--ignore-not-found", "--timeout=180s", timeout=240)


def expect_pulled(release: Release, pod: Object, container: str, image: str) -> None:
    """A container runs that image by digest, and nothing else."""
    kinds = (("containers", "containerStatuses"), ("initContainers", "initContainerStatuses"))
    asked = {one["name"]: one["image"] for kind, _ in kinds for one in pod["spec"].get(kind, ())}
    runs = {one["name"]: one["imageID"] for _, kind in kinds for one in pod["status"].get(kind, ())}
    assert (asked[container], runs[container]) == (release.image(image), release.image(image))
    # The node had it from this registry: by the digest alone, which no tag can move.
    manifest = f"/v2/flyball/{image}/manifests/{release.digests[image]}"
    assert any(asked.endswith(manifest) for asked in release.registry.asked()), release.registry.asked()


def test_a_release_is_installed_from_a_registry_with_images_by_digest(
    flyball: Flyball, release: Release, tenant: str
) -> None:
    command = written("helm install", VERSION=VERSION, REGISTRY=release.registry.address)
    helm(*command[1:], "--plain-http", *HERE, "--set", f"watch.namespaces={{{tenant}}}", "--wait", "--timeout", "5m")
    (operator,) = items("pods", namespace=OWN, selector=f"app.kubernetes.io/instance={NAME}")
    expect_pulled(release, operator, "operator", "operator")

    told = helm("test", NAME, "-n", OWN, "--logs", "--timeout", "3m")
    assert "FAIL" not in told, told

    apply(inference_service("chat", image=flyball.refs["engine-cpu"]), namespace=tenant)
    service = Service("chat", tenant)
    service.expect_governed()
    expect_pulled(release, service.pod(), CONTAINER_PLUGIN, "plugin")
