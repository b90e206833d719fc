"""CRDs of others as they are published, which tests install and remove again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from support.binaries import binary
from support.cluster import expect_established, get, kubectl
from support.remnants import mark

#: Marks CRDs that tests have installed. Others are the user's, and stay.
_LABEL = "flyball.test/installed"


def of_gateways() -> tuple[Path, ...]:
    """The files of HTTPRoute's and InferencePool's."""
    return Path(binary("httproutes.yaml")), Path(binary("inferencepools.yaml"))


def of_gateway_controllers() -> tuple[Path, ...]:
    """The files of what gateways' own controllers need besides."""
    return tuple(Path(binary(f"{kind}.yaml")) for kind in ("gatewayclasses", "gateways", "referencegrants"))


def of_groups() -> Path:
    """The file of LeaderWorkerSet's."""
    return Path(binary("leaderworkersets.yaml"))


def install(crd: Path) -> None:
    """Install a CRD, unless the cluster has it."""
    manifest = yaml.safe_load(crd.read_text())
    manifest = mark({**manifest, "metadata": {**manifest["metadata"], "labels": {_LABEL: "true"}}})
    if not is_installed(crd):
        kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(manifest))
    expect_established(crd)


def is_installed(crd: Path) -> bool:
    """Whether the cluster has a CRD of that name."""
    return get("crd", yaml.safe_load(crd.read_text())["metadata"]["name"], namespace="default") is not None


def expect_absent(crd: Path) -> None:
    """Skip the test where somebody else has installed the CRD: it would be removed with all its objects."""
    if is_installed(crd):
        pytest.skip(f"this cluster has the CRD of {crd.name} from somebody else, and tests remove theirs")


def uninstall() -> None:
    """Remove what tests have installed, and every object of these kinds."""
    kubectl("delete", "crd", "-l", f"{_LABEL}=true", "--ignore-not-found", timeout=120)
