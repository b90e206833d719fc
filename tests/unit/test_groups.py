"""Replicas over several nodes: groups of pods of a LeaderWorkerSet, rolled out, rolled back and counted as groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from flyball_operator.api.membership import Owner, members_of_groups
from flyball_operator.api.v1alpha1 import InferenceService, InferenceServiceStatus
from flyball_operator.kube.resources import (
    DEPLOYMENTS,
    INFERENCE_SERVICES,
    LEADER_WORKER_SETS,
    NETWORK_POLICIES,
    PODS,
    STATEFUL_SETS,
)
from flyball_operator.reconcile.plan.groups import as_deployment
from flyball_operator.reconcile.plan.network_policy import IngressPeers
from flyball_operator.reconcile.plan.snapshot import Config
from flyball_operator.tuning import scaling_codec
from flyball_operator.tuning.reasons import ConditionState, Reason
from flyball_operator.tuning.replicas import Replicas
from flyball_operator.tuning.report.capacity_report import CapacityReport
from flyball_operator.tuning.spec import tuning_spec
from flyball_operator.tuning.state import start
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


def lose(world: MemoryCluster, pod: str = "chat-1-1") -> None:
    world.api.remove(PODS, pod)


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


def starting(world: MemoryCluster) -> Object:
    """The status of pods that have a node since now."""
    since = world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": since}
    engine = {"name": "engine", "ready": False, "state": {"running": {"startedAt": since}}}
    return {"startTime": since, "conditions": [placed, ready], "containerStatuses": [engine]}


def test_a_template_whose_groups_are_made_anew_again_and_again_is_rolled_back(world: MemoryCluster) -> None:
    """An engine that ends takes its group with it, so that no pod is ever as old as a start may take."""
    world.apply(over_nodes(spec__engine__image="engine:1"))
    world.held = starting(world)
    world.change(edit("spec.engine.image", "engine:2"))
    for _ in range(60):
        world.held = starting(world)
        world.wait(60)
        if image(world) == "engine:1":
            break
    assert world.condition("Progressing") == ("False", "RolledBack")
    assert image(world) == "engine:1"


@pytest.mark.parametrize("room", [0, 1], ids=["none for the leader", "one for the leader alone"])
def test_a_quota_that_keeps_pods_of_a_group_away_is_waited_for_and_named(world: MemoryCluster, room: int) -> None:
    world.apply(over_nodes(spec__engine__image="engine:1", spec__replicas=1))
    world.room = room
    world.change(edit("spec.engine.image", "engine:2"))
    for _ in range(3):
        world.wait(3600)
        assert world.condition("Progressing") == ("True", "QuotaExceeded")
        assert "exceeded quota: tight" in world.message("Progressing")
        assert image(world) == "engine:2"
    world.room = None
    world.settle()
    assert (image(world), world.condition("Ready")) == ("engine:2", ("True", "Serving"))


def test_a_policy_that_refuses_pods_of_a_group_is_the_cause_of_its_roll_back(world: MemoryCluster) -> None:
    world.apply(over_nodes(spec__engine__image="engine:1", spec__replicas=1))
    world.room, world.no_room = 0, "violates PodSecurity"
    world.change(edit("spec.engine.image", "engine:2"))
    assert world.condition("Progressing") == ("True", "RollingOut")
    assert world.message("Progressing").startswith(
        "PodsRefused: LeaderWorkerSet: Create Pod chat-0 in StatefulSet chat"
    )
    world.wait(3600)
    assert world.condition("Progressing") == ("False", "RolledBack")
    assert "violates PodSecurity" in world.message("Progressing")


def test_a_quota_that_had_no_room_and_has_is_no_cause_of_what_comes_later(world: MemoryCluster) -> None:
    world.room = 1
    world.apply(over_nodes(spec__replicas=1))
    assert world.condition("Ready") == ("False", "QuotaExceeded")
    world.room = 2
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    lose(world, "chat-0-1")
    world.look()
    assert world.condition("Ready") == ("False", "ReplicasNotReady")
    assert "QuotaExceeded" not in world.message("Ready")


def test_a_replica_that_is_no_longer_asked_for_lacks_nothing(world: MemoryCluster) -> None:
    world.apply(over_nodes(spec__replicas=1))
    world.room = 2
    world.change(edit("spec.replicas", 2))
    assert world.condition("Ready") == ("False", "ReplicasNotReady")
    assert "QuotaExceeded" in world.message("Ready")
    world.change(edit("spec.replicas", 1))
    assert world.condition("Ready") == ("True", "Serving")


def test_advice_counts_groups(world: MemoryCluster) -> None:
    world.apply(over_nodes())
    service = InferenceService.model_validate(world.api.one(INFERENCE_SERVICES, "chat"))
    spec, report = tuning_spec(service.spec), CapacityReport(service, lambda: 0.0)
    state = replace(start(spec), desired=Replicas(replicas=5))
    verdict = ConditionState("False", Reason.OVERLOADED, "")
    assert report.replicas(state, verdict, nodes=spec.nodes) == 3
    status = InferenceServiceStatus(desired_replicas=3)
    assert scaling_codec.resumed(status, spec, 0.0) == Replicas(replicas=6)


def test_pods_of_groups_are_known_again_when_a_namespace_comes_back(world: MemoryCluster) -> None:
    world.apply(over_nodes())
    found = world.api.one(INFERENCE_SERVICES, "chat")
    pods = world.api.find(PODS)
    world.cache.replace_services([found], 1, namespace="ns")
    world.cache.replace_pods(pods, 1, namespace="ns")
    world.cache.forget("ns")
    assert not world.cache.pods_of(found["metadata"]["uid"])
    world.cache.replace_services([found], 2, namespace="ns")
    world.cache.replace_pods(pods, 2, namespace="ns")
    assert len(world.cache.pods_of(found["metadata"]["uid"])) == len(pods)


def test_where_what_lies_between_may_not_be_listed_the_service_says_so(world: MemoryCluster) -> None:
    world.apply(over_nodes())
    world.api.unlisted.add(STATEFUL_SETS)
    world.look()
    status, reason = world.condition("Accepted")
    assert (status, reason) == ("False", "LeaderWorkerSetMissing")
    assert "statefulsets" in world.message("Accepted")


def test_a_set_without_the_defaults_of_its_webhook_is_read(world: MemoryCluster) -> None:
    world.apply(over_nodes())
    bare = groups(world)
    del bare["spec"]["rolloutStrategy"]
    assert as_deployment(bare, [])["spec"]["strategy"] == {"rollingUpdate": {"maxSurge": None, "maxUnavailable": None}}


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
