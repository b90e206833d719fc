"""`hack/release push`, against a registry on loopback: what arrives there is what the release has."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyball_lab.harness.ports import free_port
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from support import helm
from support.binaries import binary

VERSION = "1.2.3"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry on loopback that forgets everything when it ends."""
    address = f"127.0.0.1:{free_port()}"
    log = tmp_path_factory.mktemp("registry") / "log"
    with (
        log.open("w") as to,
        subprocess.Popen([binary("crane"), "registry", "serve", "--address", address], stdout=to, stderr=to) as served,
    ):
        eventually(lambda: read(f"http://{address}/v2/") is not None, expecting="the registry answers")
        yield address
        served.terminate()


def read(address: str) -> bytes:
    asked = urllib.request.Request(address, headers={"Accept": MANIFEST})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        content: bytes = answer.read()
        return content


def blob(layout: Path, content: bytes) -> dict[str, object]:
    digest = hashlib.sha256(content).hexdigest()
    path = layout / "blobs/sha256" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def image(archive: Path, name: str) -> str:
    """An OCI archive of an image without layers; its digest."""
    layout = archive.parent.parent / f"layout-{name}"
    empty = {"type": "layers", "diff_ids": []}
    config = {"architecture": "amd64", "os": "linux", "config": {"User": name}, "rootfs": empty}
    described = {"mediaType": "application/vnd.oci.image.config.v1+json", **blob(layout, json.dumps(config).encode())}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": []}
    entry = {"mediaType": MANIFEST, **blob(layout, json.dumps(manifest).encode())}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    with tarfile.open(archive, "w") as tar:
        tar.add(layout, ".")
    return str(entry["digest"])


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A folder as hack/release makes it, with small images; their digests."""
    folder = tmp_path / "made"
    folder.mkdir()
    digests = {name: image(folder / f"flyball-{name}-image-{VERSION}.tar", name) for name in ("operator", "plugin")}
    helm.run("package", str(helm.CHART), "--version", VERSION, "--destination", str(folder))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(sums))
    return folder, digests


def push(folder: Path, registry: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "hack/release"), "push", str(folder), registry]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_images_and_chart_arrive_as_they_are(made: tuple[Path, dict[str, str]], registry: str, tmp_path: Path) -> None:
    folder, digests = made
    ended = push(folder, f"{registry}/project")
    assert ended.returncode == 0, ended.stderr
    for name, digest in digests.items():
        manifest = read(f"http://{registry}/v2/project/flyball/{name}/manifests/{VERSION}")
        assert f"sha256:{hashlib.sha256(manifest).hexdigest()}" == digest
    chart = f"oci://{registry}/project/charts/flyball"
    helm.run("pull", chart, "--version", VERSION, "--plain-http", "--destination", str(tmp_path))
    name = f"flyball-{VERSION}.tgz"
    assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    assert f"--set image.registry={registry}/project" in ended.stdout


def test_a_registry_that_is_away_is_named(made: tuple[Path, dict[str, str]]) -> None:
    address = f"127.0.0.1:{free_port()}"
    ended = push(made[0], address)
    assert ended.returncode == 1
    assert f"{address}/flyball/operator:{VERSION} cannot be pushed" in ended.stderr
