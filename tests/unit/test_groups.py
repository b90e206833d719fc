"""Replicas over several nodes: groups of pods of a LeaderWorkerSet, rolled out, rolled back and counted as groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flyball_operator.api.membership import Owner, members_of_groups
from flyball_operator.kube.resources import DEPLOYMENTS, INFERENCE_SERVICES, LEADER_WORKER_SETS, NETWORK_POLICIES, PODS
from flyball_operator.reconcile.plan.network_policy import IngressPeers
from flyball_operator.reconcile.plan.snapshot import Config
from support.memory_api import Object
from support.memory_cluster import CONFIG, PULL_FAILED, MemoryCluster, service
from support.reconcile_scenarios import edit


def over_nodes(**changes: Any) -> Object:
    """A service of two groups, each of two pods with two engine cores."""
    return service(spec__parallelism={"data": 4, "nodes": 2}, **({"spec__replicas": 2} | changes))


@pytest.fixture
def world() -> MemoryCluster:
    return MemoryCluster()


def groups(world: MemoryCluster) -> Object:
    return world.api.one(LEADER_WORKER_SETS, "chat")


def image(world: MemoryCluster) -> str:
    template = groups(world)["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    return str(template["spec"]["containers"][0]["image"])


def test_a_service_over_nodes_has_a_leader_worker_set_in_place_of_a_deployment(world: MemoryCluster) -> None:
    world.apply(over_nodes())
    assert not world.api.find(DEPLOYMENTS)
    spec = groups(world)["spec"]
    assert (spec["replicas"], spec["leaderWorkerTemplate"]["size"]) == (2, 2)
    assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    (engine,) = spec["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    assert "--ranks=2" in engine["command"]
    assert '"--data-parallel-size=4"' in next(part for part in engine["command"] if part.startswith("--owned="))
    assert world.condition("Ready") == ("True", "Serving")
    status = world.api.one(INFERENCE_SERVICES, "chat")["status"]
    assert (status["replicas"], status["readyReplicas"]) == (2, 2), "groups are counted, not pods"


def test_all_pods_of_its_groups_are_the_service_s_engine_pods(world: MemoryCluster) -> None:
    world.apply(over_nodes())
    pods = {pod["metadata"]["uid"] for pod in world.api.find(PODS)}
    assert {pod["metadata"]["uid"] for pod in world.snapshot().pods} == pods
    assert len(pods) == 4
    found = world.api.one(INFERENCE_SERVICES, "chat")
    world.cache.replace_services([found], 1)
    world.cache.replace_pods(world.api.find(PODS), 1)
    assert {pod.link.uid for pod in world.cache.pods_of(found["metadata"]["uid"])} == pods


def test_a_pod_that_only_says_so_is_none_of_them(world: MemoryCluster) -> None:
    world.apply(over_nodes())
    real = world.api.one(PODS, "chat-0")
    owner = {"kind": "StatefulSet", "name": "chat", "uid": "another", "controller": True}
    metadata = {**real["metadata"], "name": "impostor", "uid": "impostor", "ownerReferences": [owner]}
    uid = world.api.one(INFERENCE_SERVICES, "chat")["metadata"]["uid"]
    impostor = {**real, "metadata": metadata}
    assert not members_of_groups(Owner("ns", "chat", uid), [impostor], [], groups(world))


def fail(world: MemoryCluster) -> None:
    world.api.put(PODS, {**world.api.one(PODS, "chat-1-1"), "status": PULL_FAILED})


def lose(world: MemoryCluster) -> None:
    world.api.remove(PODS, "chat-1-1")


@pytest.mark.parametrize("missing", [fail, lose])
def test_a_group_is_ready_when_all_its_pods_are(world: MemoryCluster, missing: Callable[[MemoryCluster], None]) -> None:
    world.apply(over_nodes())
    missing(world)
    world.look()
    assert world.condition("Ready") == ("False", "ReplicasNotReady")
    assert world.message("Ready").startswith("1 of 2 replicas are ready")
    assert world.condition("Progressing") == ("True", "RolloutComplete"), "a group that is made anew is no rollout"


def test_a_template_that_fails_is_rolled_back_for_all_pods(world: MemoryCluster) -> None:
    world.apply(over_nodes(spec__engine__image="engine:1"))
    world.change(edit("spec.engine.image", "engine:bad"))
    assert world.condition("Progressing") == ("True", "RollingOut")
    assert image(world) == "engine:bad"
    world.wait(3600)
    assert world.condition("Progressing") == ("False", "RolledBack")
    assert image(world) == "engine:1"
    world.change(edit("spec.engine.image", "engine:2"))
    assert (image(world), world.condition("Ready")) == ("engine:2", ("True", "Serving"))


def test_without_the_kind_the_service_says_what_to_install_and_goes_on_when_it_is_there(world: MemoryCluster) -> None:
    world.api.unknown.add(LEADER_WORKER_SETS)
    world.apply(over_nodes())
    assert world.condition("Accepted") == ("False", "LeaderWorkerSetMissing")
    assert "install LeaderWorkerSet" in world.message("Accepted")
    assert world.look() == pytest.approx(15.0)
    world.api.unknown.clear()
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")


def test_a_leader_worker_set_of_somebody_else_is_left_alone(world: MemoryCluster) -> None:
    foreign: Object = {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {"replicas": 0}}
    foreign["spec"]["leaderWorkerTemplate"] = {
        "size": 1,
        "workerTemplate": {"metadata": {}, "spec": {"containers": []}},
    }
    world.api.put(LEADER_WORKER_SETS, foreign)
    world.apply(over_nodes())
    assert world.condition("Accepted") == ("False", "NameConflict")


def test_the_network_policy_lets_pods_of_the_service_reach_each_other() -> None:
    peers = IngressPeers(api=(), control=())
    config = Config(plugin_image=CONFIG.plugin_image, public_key=CONFIG.public_key, ingress_peers=peers)
    world = MemoryCluster(config=config)
    world.apply(over_nodes())
    spec = world.api.one(NETWORK_POLICIES, "chat")["spec"]
    assert spec["ingress"] == [{"from": [{"podSelector": spec["podSelector"]}]}]
