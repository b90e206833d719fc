"""A node of kwok's is drained: its pods leave one by one, the others serve, and the operator writes status alone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flyball_lab.repository import ROOT
from support.cluster import apply, items, kubectl
from support.operators import Audit, expect_condition, made, one, ungoverned_service
from support.shared_operator import SharedOperator

# kwok and its nodes stay behind, which no other test here needs.
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


def nodes_of(place: str) -> list[str]:
    """Nodes of the service's pods that are not on their way out."""
    pods = (pod for pod in items("pods", namespace=place) if "deletionTimestamp" not in pod["metadata"])
    return sorted(pod["spec"].get("nodeName", "") for pod in pods)


def test_a_drained_node_takes_no_more_pods_at_a_time_than_the_budget_and_nothing_else_changes(
    place: str, shared: SharedOperator, drained: str, note_figure: Callable[[str], None]
) -> None:
    with shared.at(place):
        apply(ungoverned_service(spec__replicas=REPLICAS, **ON_BOTH), namespace=place)
        made(place)
        expect_condition(place, "Ready", "True", "Serving")
        before = one("deployment", place)
        assert set(nodes_of(place)) == {*NODES}
        audit = Audit()

        least = REPLICAS
        draining = subprocess.Popen(["kubectl", "drain", drained, "--timeout=180s", "--delete-emptydir-data"])
        while draining.poll() is None:
            budget = one("poddisruptionbudget", place)["status"]
            assert budget["currentHealthy"] >= budget["desiredHealthy"]
            least = min(least, budget["currentHealthy"])
        assert draining.returncode == 0
        expect_condition(place, "Ready", "True", "Serving")

        assert nodes_of(place) == [NODES[1]] * REPLICAS
        assert one("deployment", place)["spec"] == before["spec"]
        writes = [write for write in audit.writes(place) if write.resource != "inferenceservices"]
        assert writes == []
        note_figure(f"{REPLICAS} pods, {least} healthy at least; no write but of status")
