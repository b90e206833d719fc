"""A new revision runs on a share of the pods while it is judged: the Deployment meanwhile, and after a verdict."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flyball_operator.api import names
from flyball_operator.api.v1alpha1 import AnalysisPhase
from flyball_operator.kube.resources import DEPLOYMENTS, EVENTS, INFERENCE_SERVICES, PODS
from flyball_operator.reconcile.plan.deployment import VERDICT_MARGIN
from support.memory_api import Object
from support.memory_cluster import PULL_FAILED, MemoryCluster, service

GOOD, NEXT, LATER = "engine:good", "engine:next", "engine:later"
STARTUP, DURATION = 600, 1200
MISSED = "the new revision missed ttft (99 % wanted): 80.00 % of 400 requests, earlier 99.50 % of 3600 requests"
KEPT = "the new revision misses no objective that the earlier one keeps"
DAY = 86_400.0


def serving(
    *, replicas: int | None = 10, weight: int = 20, rollout: Object | None = None, **spec: Any
) -> MemoryCluster:
    """A service that serves, and of which the next revision is to be judged."""
    world = MemoryCluster()
    asked = {"startupTimeout": f"{STARTUP}s", "canary": {"weight": weight, "duration": f"{DURATION}s"}}
    spec |= {} if replicas is None else {"spec__replicas": replicas}
    world.apply(service(spec__engine__image=GOOD, spec__rollout=asked | (rollout or {}), **spec))
    return world


def edit(world: MemoryCluster, image: str = NEXT) -> None:
    world.change(lambda found: found["spec"]["engine"].update(image=image))


def deployed(world: MemoryCluster) -> Object:
    found: Object = world.api.one(DEPLOYMENTS, "chat")["spec"]
    return found


def steps(world: MemoryCluster) -> tuple[int, int]:
    strategy = deployed(world)["strategy"]["rollingUpdate"]
    return strategy["maxSurge"], strategy["maxUnavailable"]


def canary(world: MemoryCluster) -> Object | None:
    """What the tuner is to judge."""
    found: Object | None = world.api.one(INFERENCE_SERVICES, "chat")["status"].get("canary")
    return found


def pods(world: MemoryCluster) -> dict[str, int]:
    """How many pods there are of each image."""
    found: dict[str, int] = {}
    for pod in world.api.find(PODS):
        spec_hash = pod["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH]
        found[spec_hash] = found.get(spec_hash, 0) + 1
    return found


def say(world: MemoryCluster, phase: AnalysisPhase, message: str, **other: str) -> None:
    """The tuner says so of what is judged now, or of something else."""
    judged = canary(world)
    assert judged is not None
    about = {field: judged[field] for field in ("revision", "startTime")} | other

    def write(found: Object) -> None:
        found["status"]["analysis"] = {**about, "phase": phase.value, "message": message}

    world.change(write)


def expect_judged(world: MemoryCluster, *, image: str = NEXT) -> None:
    assert world.image() == image
    assert deployed(world)["minReadySeconds"] >= DURATION + STARTUP + VERDICT_MARGIN
    assert world.condition("Progressing") == ("True", "CanaryAnalysis")
    assert world.condition("Ready") == ("False", "CanaryAnalysis")
    assert world.condition("Available") == ("True", "EndpointsReady")
    assert "Stalled" not in world.conditions()


def expect_complete(world: MemoryCluster, *, image: str = NEXT) -> None:
    assert world.image() == image
    assert "minReadySeconds" not in deployed(world)
    assert world.condition("Ready") == ("True", "Serving")
    assert canary(world) is None
    assert names.ANNOTATION_PROMOTED not in world.api.one(DEPLOYMENTS, "chat")["metadata"]["annotations"]
    assert list(pods(world).values()) == [deployed(world)["replicas"]]


def expect_aborted(world: MemoryCluster) -> None:
    assert world.image() == GOOD
    assert "minReadySeconds" not in deployed(world)
    assert world.condition("Progressing") == ("False", "RolledBack")
    assert world.message("Progressing").startswith("CanaryMissedObjectives: ")
    assert canary(world) is None
    assert list(pods(world).values()) == [deployed(world)["replicas"]]


def told(world: MemoryCluster) -> list[tuple[str, str]]:
    return [(event["type"], event["reason"]) for event in world.api.find(EVENTS)]


def test_the_first_rollout_is_not_judged() -> None:
    world = serving()
    expect_complete(world, image=GOOD)
    assert steps(world) == (1, 0)


def test_a_new_revision_has_its_share_of_pods_beside_all_of_the_earlier_one() -> None:
    world = serving()
    edit(world)
    expect_judged(world)
    assert steps(world) == (2, 0)
    assert sorted(pods(world).values()) == [2, 10]
    judged = canary(world)
    assert judged is not None
    assert judged["pods"] == 2
    assert {judged["revision"], judged["baseline"]} == pods(world).keys()
    assert deployed(world)["progressDeadlineSeconds"] > deployed(world)["minReadySeconds"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"replicas": 1}, (1, 0)),
        ({"replicas": None}, (1, 0)),
        ({"replicas": 4}, (1, 0)),
        ({"replicas": 10, "weight": 50}, (5, 0)),
        ({"replicas": 10, "rollout": {"maxSurge": 1}}, (1, 0)),
        ({"replicas": 10, "rollout": {"maxSurge": 5}}, (2, 0)),
        ({"replicas": 10, "rollout": {"maxSurge": 0, "maxUnavailable": 1}}, (0, 1)),
        ({"replicas": 10, "spec__accelerator": {"resourceName": "nvidia.com/gpu"}}, (0, 2)),
    ],
)
def test_one_pod_at_least_and_no_more_than_the_spec_allows(spec: dict[str, Any], expected: tuple[int, int]) -> None:
    world = serving(**spec)
    edit(world)
    expect_judged(world)
    assert steps(world) == expected


def test_a_revision_that_keeps_its_objectives_is_promoted() -> None:
    world = serving()
    edit(world)
    say(world, AnalysisPhase.SUCCESSFUL, KEPT)
    expect_complete(world)
    assert steps(world) == (1, 0)
    assert {("Normal", "CanaryAnalysis"), ("Normal", "RollingOut"), ("Normal", "RolloutComplete")} <= set(told(world))
    messages = [event["message"] for event in world.api.find(EVENTS) if event["reason"] == "RollingOut"]
    assert f"{KEPT}; the other pods follow" in messages


def test_a_revision_that_misses_its_objectives_is_rolled_back_and_not_tried_again() -> None:
    world = serving()
    edit(world)
    say(world, AnalysisPhase.FAILED, MISSED)
    expect_aborted(world)
    assert MISSED in world.message("Progressing")
    assert ("Warning", "RolledBack") in told(world)
    world.restart()
    world.wait(DAY)
    expect_aborted(world)


def test_what_the_tuner_counts_is_told_meanwhile() -> None:
    world = serving()
    edit(world)
    say(world, AnalysisPhase.RUNNING, "1 pod has the new revision, judged for 10m more")
    expect_judged(world)
    assert world.message("Ready") == "1 pod has the new revision, judged for 10m more"


def test_a_revision_that_cannot_be_judged_says_so_by_its_reason_and_may_be_judged_later() -> None:
    world = serving()
    edit(world)
    say(world, AnalysisPhase.INCONCLUSIVE, "the new revision cannot be judged (PrometheusUnreachable: refused)")
    assert world.condition("Progressing") == ("True", "CanaryNotJudged")
    assert world.condition("Ready") == ("False", "CanaryNotJudged")
    assert "PrometheusUnreachable" in world.message("Ready")
    assert steps(world) == (2, 0)
    say(world, AnalysisPhase.RUNNING, "1 pod has the new revision, judged for 10m more")
    expect_judged(world)


@pytest.mark.parametrize("other", [{"revision": "another"}, {"startTime": "2025-01-01T00:00:00Z"}])
@pytest.mark.parametrize("phase", [AnalysisPhase.FAILED, AnalysisPhase.SUCCESSFUL])
def test_a_verdict_on_another_revision_or_attempt_says_nothing(phase: AnalysisPhase, other: dict[str, str]) -> None:
    world = serving()
    edit(world)
    say(world, phase, MISSED, **other)
    expect_judged(world)


def test_an_edit_meanwhile_is_judged_anew_against_the_same_pods() -> None:
    world = serving()
    edit(world)
    before = canary(world)
    edit(world, LATER)
    expect_judged(world, image=LATER)
    after = canary(world)
    assert before is not None
    assert after is not None
    assert (after["baseline"], after["pods"]) == (before["baseline"], before["pods"])
    assert after["revision"] != before["revision"]


def test_going_back_needs_no_judge() -> None:
    world = serving()
    edit(world)
    edit(world, GOOD)
    expect_complete(world, image=GOOD)


@pytest.mark.parametrize("canaried", [None, {"weight": 20, "duration": "2m"}])
def test_a_revision_that_was_aborted_is_tried_again_by_another_canary_or_none(canaried: Object | None) -> None:
    world = serving()
    edit(world)
    say(world, AnalysisPhase.FAILED, MISSED)

    def ask(found: Object) -> None:
        found["spec"]["rollout"]["canary"] = canaried

    world.change(ask)
    assert world.image() == NEXT
    assert world.condition("Ready")[1] == ("Serving" if canaried is None else "CanaryAnalysis")


def test_removing_the_canary_rolls_the_rest_out() -> None:
    world = serving()
    edit(world)
    world.change(lambda found: found["spec"]["rollout"].pop("canary"))
    expect_complete(world)


def test_without_a_verdict_kubernetes_goes_on_by_itself_once_each_pod_was_ready_for_as_long() -> None:
    """Pods may be Ready as far apart as the start-up time: it holds the first until the last was judged."""
    world = serving()
    edit(world)
    held = deployed(world)["minReadySeconds"]
    world.wait(DURATION + STARTUP)
    expect_judged(world)
    world.wait(held - DURATION - STARTUP)
    expect_complete(world)


def test_a_restart_goes_on_from_what_is_written() -> None:
    world = serving()
    edit(world)
    before = canary(world)
    world.restart()
    world.settle()
    expect_judged(world)
    assert canary(world) == before
    say(world, AnalysisPhase.SUCCESSFUL, KEPT)
    expect_complete(world)


def test_with_no_pod_to_compare_with_all_are_replaced_at_once() -> None:
    world = serving(replicas=0)
    world.change(lambda found: found["spec"].update(replicas=2))
    world.change(lambda found: found["spec"].update(replicas=0))
    edit(world)
    assert "minReadySeconds" not in deployed(world)
    assert canary(world) is None


def fail_readiness(world: MemoryCluster) -> None:
    """Every pod there is says that it is not Ready."""
    for pod in world.api.find(PODS):
        world.api.put(PODS, {**pod, "status": {"conditions": [{"type": "Ready", "status": "False"}]}})


def test_an_earlier_pod_that_is_not_ready_for_a_moment_is_still_compared_with() -> None:
    world = serving(replicas=1)
    edit(world)
    fail_readiness(world)
    world.act()
    assert deployed(world)["minReadySeconds"] > DURATION
    assert canary(world) is not None


def test_a_revision_that_follows_one_that_serves_nothing_is_not_held_up() -> None:
    world = serving()
    fail_readiness(world)
    world.api.edit(INFERENCE_SERVICES, "chat", lambda found: found["spec"]["engine"].update(image=NEXT))
    world.settle()
    expect_complete(world)


def test_while_the_model_is_downloaded_nothing_is_judged_and_then_it_is() -> None:
    world = serving(spec__model={"uri": "hf://org/one", "cache": {"claimName": "models"}})
    world.download = ({"phase": "Pending"}, {"active": 1})
    world.change(lambda found: found["spec"]["model"].update(uri="hf://org/two"))
    assert world.condition("ModelReady")[0] == "False"
    assert "minReadySeconds" not in deployed(world)
    assert canary(world) is None
    world.download = None
    world.settle()
    expect_judged(world, image=GOOD)


def test_what_another_operator_erased_of_it_is_written_again() -> None:
    world = serving()
    edit(world)
    before = canary(world)
    world.change(lambda found: found["status"].pop("canary"))
    assert canary(world) == before


def test_a_revision_whose_pods_never_come_up_is_given_up_as_early_as_without_a_judge() -> None:
    world = serving()
    world.held = PULL_FAILED
    edit(world)
    assert world.condition("Progressing") == ("True", "CanaryAnalysis")
    left = world.look()
    assert left is not None, "nobody else tells when the time is over"
    world.wait(left)
    assert world.image() == GOOD
    assert world.message("Progressing").startswith("ImagePullFailed: ")
    assert left <= deployed(world)["progressDeadlineSeconds"]


@pytest.mark.parametrize("restarted", [False, True])
def test_pods_that_were_ready_once_may_be_evicted_or_not_ready_for_a_moment(*, restarted: bool) -> None:
    """The start-up time ends while they are judged; after it they are no younger."""
    world = serving()
    edit(world)
    world.wait(STARTUP + 300)
    if restarted:
        world.restart()
    fail_readiness(world)
    world.act()
    expect_judged(world)
    world.controllers()
    say(world, AnalysisPhase.SUCCESSFUL, KEPT)
    expect_complete(world)


def test_pods_that_were_ready_once_and_never_again_are_given_up_when_the_deployment_says_so() -> None:
    world = serving()
    edit(world)

    def say_so(found: Object) -> None:
        condition = {"type": "Progressing", "reason": "ProgressDeadlineExceeded", "lastUpdateTime": "2026-02-01"}
        found["status"]["conditions"] = [condition]

    world.now += timedelta(seconds=2 * deployed(world)["progressDeadlineSeconds"])
    fail_readiness(world)
    world.api.edit(DEPLOYMENTS, "chat", say_so)
    world.act()
    assert world.image() == GOOD


def test_where_nothing_is_judged_a_foreign_min_ready_seconds_gives_nothing_up() -> None:
    world = serving(rollout={"canary": None})
    world.api.edit(DEPLOYMENTS, "chat", lambda found: found["spec"].update(minReadySeconds=30))
    world.held = {"containerStatuses": [{"name": "engine", "ready": False, "state": {"running": {}}}]}
    edit(world)
    world.wait(3 * STARTUP)
    assert world.image() == NEXT
    assert world.condition("Progressing") == ("True", "RollingOut")


def test_an_autoscaler_may_scale_meanwhile() -> None:
    world = serving(replicas=None)
    edit(world)
    world.api.edit(DEPLOYMENTS, "chat", lambda found: found["spec"].update(replicas=10))
    world.settle()
    expect_judged(world)
    assert steps(world) == (2, 0)
    assert deployed(world)["replicas"] == 10
