"""A replica over two nodes, by LeaderWorkerSets' own controller and real engines: each pod is governed, and serves.

Here both pods are on the one node there is.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flyball_lab.harness.waiting import eventually
from support.cluster import Object, apply, delete, items, patch
from support.leader_worker_sets import leader_worker_sets
from support.live import ENGINE_START_SECONDS, RESOURCE, Flyball, Service, inference_service
from support.node import kill_container

pytestmark = pytest.mark.cluster

NAME = "two-nodes"


@pytest.fixture
def two_nodes(flyball: Flyball) -> Iterator[Service]:
    """A governed service of one group of two pods with two engine cores each; gone at the end."""
    service = Service(NAME, flyball.watched)
    with leader_worker_sets():
        # Two engine cores in each pod: with one, vLLM takes only models with experts, which the image's is not.
        manifest = inference_service(NAME, image=flyball.refs["engine-cpu"], parallelism={"data": 4, "nodes": 2})
        manifest["spec"]["podTemplate"]["resources"]["limits"]["memory"] = "8Gi"
        apply(manifest, namespace=flyball.watched)
        service.expect_governed(within=2 * ENGINE_START_SECONDS)
        yield service
        delete(RESOURCE, NAME, namespace=flyball.watched)
        eventually(lambda: not items("pods", namespace=flyball.watched), expecting="its pods are gone")


def pods(service: Service) -> list[Object]:
    """The pods that stay, the leader first."""
    staying = [pod for pod in service.pods() if "deletionTimestamp" not in pod["metadata"]]
    return sorted(staying, key=lambda pod: str(pod["metadata"]["name"]))


def uids(service: Service) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods(service)}


def expect_limits(service: Service, wanted: int) -> None:
    """Both pods run under this limit, on each of their engine cores."""

    def held() -> bool:
        cores = [core for pod in pods(service) for core in service.read_back(pod)["cores"]]
        return [core["effective"]["max_num_active_seqs"] for core in cores] == [wanted] * 4

    eventually(held, expecting=f"both pods run {wanted} requests at most")


def test_both_pods_are_governed_and_serve_and_one_engine_that_dies_takes_the_other_along(two_nodes: Service) -> None:
    bounds = {"maxNumActiveSeqs": {"min": 8, "max": 8}}
    assert [pod["metadata"]["name"] for pod in pods(two_nodes)] == [f"{NAME}-0", f"{NAME}-0-1"]
    assert two_nodes.tuning()["appliedPods"] == "2/2"
    with two_nodes.streams(16).running() as totals:
        patch(RESOURCE, NAME, {"spec": {"tuning": {"bounds": bounds}}}, namespace=two_nodes.namespace)
        expect_limits(two_nodes, 8)
        eventually(
            lambda: all(
                sum(sums["steps"] for sums in core["steps"]) > 0
                for pod in pods(two_nodes)
                for core in two_nodes.read_back(pod)["cores"]
            ),
            expecting="both pods answer requests",
        )
    totals.expect_nothing_lost()
    two_nodes.expect_condition("MetricsAvailable", "True")
    before = uids(two_nodes)
    kill_container(pods(two_nodes)[1], container="engine")
    eventually(
        lambda: len(pods(two_nodes)) == 2 and not before & uids(two_nodes),
        expecting="both pods made anew",
        within=ENGINE_START_SECONDS,
    )
    two_nodes.expect_governed(within=2 * ENGINE_START_SECONDS)
    expect_limits(two_nodes, 8)
