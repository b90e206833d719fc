"""A kwok node is drained: its pods leave within the budget, the others serve, and the operator writes status alone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from support.audit import Audit
from support.cluster import Object, apply, condition, items, kubectl
from support.operators import expect_condition, made, one, ungoverned_service

# Long: it leaves kwok and its nodes running, which no other test here needs.
pytestmark = pytest.mark.long

REPLICAS = 6
NODES = ("fake-0", "fake-1")
#: Pods go to kwok's nodes, to both alike.
ON_BOTH: dict[str, Any] = {
    "spec__podTemplate__nodeSelector": {"type": "kwok"},
    "spec__podTemplate__tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
    "spec__podTemplate__topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app.kubernetes.io/instance": "chat"}},
        }
    ],
}


@pytest.fixture
def drained() -> Iterator[str]:
    """One of two nodes; both take pods again at the end."""
    subprocess.run([ROOT / "hack/cluster", "up", "--fake-nodes", str(len(NODES))], check=True)
    others = {*kubectl("get", "nodes", "-l", "type=kwok", "-o", "name").split()} - {f"node/{name}" for name in NODES}
    if others:
        kubectl("cordon", *sorted(others))
    yield NODES[0]
    kubectl("uncordon", "--selector=type=kwok")


def staying(place: str) -> list[Object]:
    """The service's pods that are not on their way out."""
    return [pod for pod in items("pods", namespace=place) if "deletionTimestamp" not in pod["metadata"]]


def nodes_of(place: str) -> list[str]:
    """Their nodes, empty for a pod that has none yet."""
    return sorted(pod["spec"].get("nodeName", "") for pod in staying(place))


def ready_of(place: str) -> int:
    """How many of them are Ready."""
    return sum(condition(pod, "Ready").get("status") == "True" for pod in staying(place))


@pytest.mark.usefixtures("running")
def test_a_drain_takes_one_pod_at_a_time_and_nothing_else_changes(
    place: str, drained: str, note_figure: Callable[[str], None]
) -> None:
    apply(ungoverned_service(spec__replicas=REPLICAS, **ON_BOTH), namespace=place)
    made(place)
    expect_condition(place, "Ready", "True", "Serving")
    before = one("deployment", place)
    assert set(nodes_of(place)) == {*NODES}
    audit = Audit()

    seen = [ready_of(place)]
    draining = subprocess.Popen(["kubectl", "drain", drained, "--timeout=180s", "--delete-emptydir-data"])
    try:
        while draining.poll() is None:
            seen.append(ready_of(place))
    finally:
        draining.kill()
    assert draining.returncode == 0
    # By default one pod may be missing.
    assert min(seen) >= REPLICAS - 1
    eventually(
        lambda: nodes_of(place) == [NODES[1]] * REPLICAS and ready_of(place) == REPLICAS,
        expecting="all pods Ready on the other node",
    )
    expect_condition(place, "Ready", "True", "Serving")
    assert one("deployment", place)["spec"] == before["spec"]
    assert [write for write in audit.writes(place) if write.resource != "inferenceservices"] == []
    note_figure(f"of {REPLICAS} pods at least {min(seen)} were Ready in {len(seen)} looks; no write but of status")
