"""An engine core over several nodes: the first pod of a group serves, and its workers have parts of its engine core."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flyball_operator.api import names
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.app.cached_services import CachedServices
from flyball_operator.cli.plan.fleet import gpus_of_replica
from flyball_operator.kube.resources import (
    INFERENCE_POOLS,
    INFERENCE_SERVICES,
    LEADER_WORKER_SETS,
    PODS,
    REVISIONS,
    SERVICES,
)
from flyball_operator.reconcile.plan import worker as workers
from flyball_operator.reconcile.plan.admission import is_needed
from flyball_operator.reconcile.plan.causes import ready_templates
from flyball_operator.tuning.reasons import ConditionState, Reason
from flyball_operator.tuning.replicas import Replicas
from flyball_operator.tuning.report.capacity_report import CapacityReport
from flyball_operator.tuning.spec import tuning_spec
from flyball_operator.tuning.state import start
from support.memory_api import Object
from support.memory_cluster import MemoryCluster, service
from support.reconcile_scenarios import edit

GPU = "nvidia.com/gpu"
LEADERS = {names.LABEL_WORKER_INDEX: "0"}


def spread(**changes: Any) -> Object:
    """A service of two groups, each of two pods with eight devices of one engine core."""
    asked: dict[str, Any] = {
        "spec__parallelism": {"tensor": 8, "pipeline": 2, "nodes": 2},
        "spec__accelerator": {"resourceName": GPU},
        "spec__replicas": 2,
    }
    return service(**(asked | changes))


@pytest.fixture
def world() -> MemoryCluster:
    return MemoryCluster()


def templates(world: MemoryCluster) -> tuple[Object, Object]:
    """The leader's, and that of workers."""
    made = world.api.one(LEADER_WORKER_SETS, "chat")["spec"]["leaderWorkerTemplate"]
    return made["leaderTemplate"], made["workerTemplate"]


def engine(template: Object) -> Object:
    (found,) = template["spec"]["containers"]
    return dict(found)


def found(world: MemoryCluster) -> Object:
    return world.api.one(INFERENCE_SERVICES, "chat")


def test_each_pod_has_its_part_of_the_devices_and_of_the_core(world: MemoryCluster) -> None:
    world.apply(spread())
    for template in templates(world):
        assert engine(template)["resources"]["limits"][GPU] == "8"
        command = engine(template)["command"]
        assert "--nodes=2" in command
        assert not any(part.startswith("--ranks") for part in command)
        owned = next(part for part in command if part.startswith("--owned="))
        assert '"--tensor-parallel-size=8", "--pipeline-parallel-size=2"' in owned


def test_pods_find_each_other_by_their_addresses(world: MemoryCluster) -> None:
    world.apply(spread())
    for template in templates(world):
        assert {
            "name": "VLLM_HOST_IP",
            "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
        } in engine(template)["env"]


def test_the_leader_alone_is_probed_scraped_and_written_to(world: MemoryCluster) -> None:
    world.apply(spread(spec__podTemplate={"annotations": {"prometheus.io/port": "8001", "team": "a"}}))
    leader, worker = templates(world)
    asked = {"ports", "startupProbe", "readinessProbe", "livenessProbe"}
    assert asked <= engine(leader).keys()
    last = {"preStop": {"exec": {"command": ["python3", "-m", "flyball_engine.launch.await_leader"]}}}
    kept = {field: value for field, value in engine(leader).items() if field not in asked}
    assert engine(worker) == kept | {"lifecycle": last}
    annotations, scraped = leader["metadata"]["annotations"], {"prometheus.io/scrape", "prometheus.io/port"}
    assert scraped <= annotations.keys()
    assert worker["metadata"]["annotations"] == {key: value for key, value in annotations.items() if key not in scraped}
    assert worker["metadata"]["labels"] == leader["metadata"]["labels"] | {names.LABEL_WORKER: "true"}


def test_requests_go_to_the_leaders(world: MemoryCluster) -> None:
    gateway = {"parentRefs": [{"name": "edge"}], "endpointPicker": {"name": "picker", "port": 9002}}
    world.apply(spread(spec__gateway=gateway))
    for selector in (
        world.api.one(SERVICES, "chat")["spec"]["selector"],
        world.api.one(INFERENCE_POOLS, "chat")["spec"]["selector"]["matchLabels"],
    ):
        assert LEADERS.items() <= selector.items()
    assert found(world)["status"]["selector"].endswith(f",{names.LABEL_WORKER_INDEX}=0")
    assert world.condition("Available") == ("True", "EndpointsReady")


def test_what_autoscalers_count_stays_while_the_spec_cannot_be_read(world: MemoryCluster) -> None:
    world.apply(spread())
    before = found(world)["status"]["selector"]
    world.change(edit("spec.parallelism.nodes", 3))
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert found(world)["status"]["selector"] == before


def test_setpoints_go_to_the_leaders(world: MemoryCluster) -> None:
    world.apply(spread())
    own = found(world)
    world.cache.replace_services([own], 1)
    world.cache.replace_pods(world.api.find(PODS), 1)
    uid = own["metadata"]["uid"]
    assert len(world.cache.pods_of(uid)) == 4, "all are known: a change of each is looked at"
    assert sorted(pod.name for pod in CachedServices(world.cache).pods(uid)) == ["chat-0", "chat-1"]


def test_groups_are_counted_as_ever(world: MemoryCluster) -> None:
    world.apply(spread())
    status = found(world)["status"]
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    assert world.condition("Ready") == ("True", "Serving")
    world.api.remove(PODS, "chat-1-1")
    world.look()
    assert world.message("Ready").startswith("1 of 2 replicas are ready")


def test_a_group_carries_what_its_leader_does(world: MemoryCluster) -> None:
    world.apply(spread())
    own = InferenceService.model_validate(found(world))
    spec, report = tuning_spec(own.spec), CapacityReport(own, lambda: 0.0)
    state = replace(start(spec), desired=Replicas(replicas=5))
    assert report.replicas(state, ConditionState("False", Reason.OVERLOADED, ""), nodes=spec.nodes) == 5
    assert gpus_of_replica(own) == 16


def test_workers_clear_no_template(world: MemoryCluster) -> None:
    world.apply(spread(spec__engine__image="engine:1"))
    starting = {"name": "engine", "ready": False, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    world.held = {
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [starting],
    }
    world.change(edit("spec.engine.image", "engine:2"))
    assert not ready_templates(world.snapshot().pods)
    world.wait(3600)
    assert world.condition("Progressing") == ("False", "RolledBack")
    assert {engine(template)["image"] for template in templates(world)} == {"engine:1"}


def test_a_template_that_fails_is_rolled_back_for_all_pods(world: MemoryCluster) -> None:
    world.apply(spread(spec__engine__image="engine:1"))
    world.change(edit("spec.engine.image", "engine:bad"))
    world.wait(3600)
    assert world.condition("Progressing") == ("False", "RolledBack")
    assert {engine(template)["image"] for template in templates(world)} == {"engine:1"}
    world.change(edit("spec.engine.image", "engine:2"))
    assert {engine(template)["image"] for template in templates(world)} == {"engine:2"}
    assert world.condition("Ready") == ("True", "Serving")


def test_an_operator_that_makes_workers_otherwise_rolls_no_pod(
    world: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.apply(spread())
    before = templates(world)
    monkeypatch.setattr(workers, "AWAIT_LEADER_MODULE", "flyball_engine.launch.another")
    world.restart()
    world.wait(3600)
    assert templates(world) == before
    assert world.condition("Progressing") == ("True", "RolloutComplete")
    assert found(world)["status"]["revisionOutdated"], "it says that it would make pods otherwise"
    world.change(edit("metadata.annotations", {names.ANNOTATION_ADOPT: "1"}))
    assert "flyball_engine.launch.another" in str(templates(world)[1])
    assert world.condition("Ready") == ("True", "Serving")


def test_a_revision_has_a_template_of_workers_only_where_there_are_some(world: MemoryCluster) -> None:
    world.apply(spread())
    (revision,) = world.api.find(REVISIONS)
    assert revision["data"] == dict(zip(("template", "workerTemplate"), templates(world), strict=True))
    others = MemoryCluster()
    others.apply(spread(spec__parallelism={"tensor": 8, "data": 2, "nodes": 2}))
    (revision,) = others.api.find(REVISIONS)
    assert set(revision["data"]) == {"template"}


@pytest.mark.parametrize("of", ["leaderTemplate", "workerTemplate"])
def test_what_policies_may_not_undo_holds_for_both_templates(of: str) -> None:
    template = ("spec", "leaderWorkerTemplate", of)
    assert is_needed((*template, "metadata", "labels", names.LABEL_SERVICE_UID))
    assert not is_needed((*template, "spec", "tolerations"))
