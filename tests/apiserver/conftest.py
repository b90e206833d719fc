"""Fixtures of the tests against the real API server: our CRD, and a namespace per module."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support import devices, others_crds, remnants
from support.api import InferenceServices
from support.cluster import expect_established, get, kubectl, namespace
from support.operators import OperatorProcess
from support.shared_operator import SharedOperator, shared_operator

CRD = Path(__file__).resolve().parents[2] / "crds/inferenceservices.serving.flyball.dev.yaml"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder needs the cluster."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session", autouse=True)
def no_remnants() -> None:
    """What runs left that were killed is on its way out."""
    remnants.sweep()


@pytest.fixture(scope="session")
def crd() -> Path:
    """Our CRD, served; it stays, as other tests and the user's cluster need it.

    One that is served as committed is left alone: it may be a release's, and Helm would find its fields taken.
    """
    wanted = yaml.safe_load(CRD.read_text())
    found = get("crd", wanted["metadata"]["name"], namespace="default")
    if found is None:
        kubectl("apply", "--server-side", "--field-manager=test-crd", "-f", str(CRD))
    elif found["spec"]["versions"] != wanted["spec"]["versions"]:
        # No apply: what another manager's apply of an earlier one has left would stay.
        change = {
            "metadata": {"annotations": wanted["metadata"]["annotations"]},
            "spec": {"versions": wanted["spec"]["versions"]},
        }
        name = wanted["metadata"]["name"]
        kubectl("patch", "crd", name, "--type=merge", "--patch-file=/dev/stdin", stdin=json.dumps(change))
    expect_established(CRD)
    return CRD


@pytest.fixture(scope="module")
def work() -> Iterator[str]:
    """A namespace of this module's own."""
    with namespace("flyball-api") as name:
        yield name


@pytest.fixture
def services(crd: Path, work: str) -> InferenceServices:
    """Our resource in that namespace."""
    return InferenceServices(work)


@pytest.fixture
def place(crd: Path) -> Iterator[str]:
    """A namespace of the test's own."""
    with namespace("flyball-reconciler") as name:
        yield name


@pytest.fixture(scope="session")
def shared(crd: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedOperator]:
    """One operator for all tests of a process that need one with ordinary settings."""
    with shared_operator(tmp_path_factory.mktemp("shared"), values={"adapters": {"enabled": True}}) as one:
        yield one


@pytest.fixture
def running(place: str, shared: SharedOperator) -> Iterator[OperatorProcess]:
    """The shared operator, which looks after that namespace meanwhile."""
    with shared.at(place) as process:
        yield process


@pytest.fixture
def device_node() -> Iterator[str]:
    """A node with one device and no kubelet. Returns the name that pods select it by."""
    with devices.device_node() as name:
        yield name


@pytest.fixture
def gateway_crds_gone(crd: Path) -> Iterator[tuple[Path, ...]]:
    """CRDs of HTTPRoute and InferencePool, neither installed; whatever the test installs is removed after it."""
    others_crds.uninstall()
    found = others_crds.of_gateways()
    if any(others_crds.is_installed(path) for path in found):
        pytest.skip("this cluster has the Gateway API of somebody else")
    yield found
    others_crds.uninstall()


@pytest.fixture
def gateway_api(crd: Path) -> Iterator[None]:
    """HTTPRoutes and InferencePools are served."""
    for path in others_crds.of_gateways():
        others_crds.install(path)
    yield
    others_crds.uninstall()
