"""A replica over two nodes, by LeaderWorkerSets' own controller and real engines.

With engine cores of its own, each pod is governed and serves. With one engine core, the first does, by the work of
both. Here both pods are on the one node there is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from flyball_lab.harness.waiting import eventually
from support.cluster import Object, apply, delete, items, kubectl, patch
from support.leader_worker_sets import leader_worker_sets
from support.live import ENGINE_START_SECONDS, MODEL, RESOURCE, Flyball, Service, inference_service
from support.node import devices_on_node, kill_container

pytestmark = pytest.mark.cluster

NAME = "two-nodes"
#: An answer takes so long that is finished while its pods end: longer than they serve on, and than a worker would last.
LAST_SECONDS = 12.0
BOUNDS = {"maxNumActiveSeqs": {"min": 8, "max": 8}}


@contextmanager
def governed(flyball: Flyball, **spec: Any) -> Iterator[Service]:
    """A governed service of one group of two pods; gone at the end."""
    service = Service(NAME, flyball.watched)
    with leader_worker_sets():
        manifest = inference_service(NAME, image=flyball.refs["engine-cpu"], **spec)
        manifest["spec"]["podTemplate"]["resources"]["limits"]["memory"] = "8Gi"
        apply(manifest, namespace=flyball.watched)
        service.expect_governed(within=2 * ENGINE_START_SECONDS)
        yield service
        delete(RESOURCE, NAME, namespace=flyball.watched)
        eventually(lambda: not items("pods", namespace=flyball.watched), expecting="its pods are gone")


@pytest.fixture
def two_nodes(flyball: Flyball) -> Iterator[Service]:
    """Two engine cores in each pod: with one, vLLM takes only models with experts, which the image's is not."""
    with governed(flyball, parallelism={"data": 4, "nodes": 2}) as service:
        yield service


@pytest.fixture
def one_core(flyball: Flyball) -> Iterator[Service]:
    """One engine core of two devices, one in each pod. The engines run on processors all the same."""
    with devices_on_node(2) as device:
        parallelism = {"tensor": 2, "nodes": 2}
        with governed(flyball, parallelism=parallelism, accelerator={"resourceName": device}) as service:
            yield service


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


def expect_made_anew(service: Service, before: set[str]) -> None:
    eventually(
        lambda: len(pods(service)) == 2 and not before & uids(service),
        expecting="both pods made anew",
        within=ENGINE_START_SECONDS,
    )
    service.expect_governed(within=2 * ENGINE_START_SECONDS)


def test_both_pods_are_governed_and_serve_and_one_engine_that_dies_takes_the_other_along(two_nodes: Service) -> None:
    assert [pod["metadata"]["name"] for pod in pods(two_nodes)] == [f"{NAME}-0", f"{NAME}-0-1"]
    assert two_nodes.tuning()["appliedPods"] == "2/2"
    with two_nodes.streams(16).running() as totals:
        patch(RESOURCE, NAME, {"spec": {"tuning": {"bounds": BOUNDS}}}, namespace=two_nodes.namespace)
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
    expect_made_anew(two_nodes, before)
    expect_limits(two_nodes, 8)


def limit(service: Service) -> int:
    """That of the leader's one engine core."""
    (core,) = service.read_back(pods(service)[0])["cores"]
    return int(core["effective"]["max_num_active_seqs"])


def served(service: Service) -> set[str]:
    """Pods that the Service sends requests to."""
    slices = items("endpointslices", namespace=service.namespace, selector=f"kubernetes.io/service-name={service.name}")
    return {one["targetRef"]["name"] for found in slices for one in found.get("endpoints") or ()}


def test_one_engine_core_over_both_pods_is_governed_and_a_part_that_dies_takes_the_other_along(
    one_core: Service,
) -> None:
    leader, other = pods(one_core)
    assert served(one_core) == {leader["metadata"]["name"]}
    assert one_core.tuning()["appliedPods"] == "1/1"
    with one_core.streams(16).running() as totals:
        patch(RESOURCE, NAME, {"spec": {"tuning": {"bounds": BOUNDS}}}, namespace=one_core.namespace)
        eventually(lambda: limit(one_core) == 8, expecting="it runs 8 requests at most")
        one_core.expect_condition("MetricsAvailable", "True")
    totals.expect_nothing_lost()
    before = uids(one_core)
    kill_container(other, container="engine")
    expect_made_anew(one_core, before)
    eventually(lambda: limit(one_core) == 8, expecting="it runs 8 requests at most")
    expect_finished_before_they_end(one_core)


def answered(service: Service, tokens: int) -> float:
    """Seconds that an answer of so many tokens takes."""
    body = {"model": MODEL, "prompt": "a", "max_tokens": tokens, "ignore_eos": True}
    began = time.monotonic()
    found = httpx.post(f"{service.url()}/v1/completions", json=body, timeout=120, trust_env=False)
    assert found.status_code == 200, found.text
    assert found.json()["usage"]["completion_tokens"] == tokens
    return time.monotonic() - began


def expect_finished_before_they_end(service: Service) -> None:
    """The worker is told to end, as by a drain of its node, and the leader with it: what runs is finished."""
    tokens = int(LAST_SECONDS / answered(service, 50) * 50)
    before, (leader, other) = uids(service), pods(service)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(answered, service, min(tokens, 1900))
        eventually(lambda: service.read_back(leader)["cores"][0]["running"], expecting="it runs", every=0.1)
        kubectl("delete", "pod", other["metadata"]["name"], "-n", service.namespace, "--wait=false")
        running.result(120)
    expect_made_anew(service, before)
