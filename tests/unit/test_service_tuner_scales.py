"""One service whose pods the operator scales: the number in status, what holds it, and what a restart keeps of it."""

from __future__ import annotations

from typing import Any

import pytest

from flyball_lab.harness.service_tuners import AWAY, WITH_DEADLINE, Harness
from flyball_lab.harness.tuning import signals
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import ConditionType, ScalingStatus
from flyball_operator.kube.errors import UnavailableError
from flyball_operator.tuning.observe.signals import Attainment, Observation, Signals

SCALING = ConditionType.SCALING_ACTIVE


def calm() -> Signals:
    return signals(now())


def crowded() -> Signals:
    """Far more than one pod carries."""
    return signals(now(), refused=60.0)


def idle() -> Signals:
    """Nobody asks for anything, and nothing is left of who did."""
    return signals(
        now(), arrivals=0.0, finished=0.0, prompt_tokens=0.0, generated_tokens=0.0, running=0.0, held_tokens=0.0
    )  # fmt: skip


async def minutes(harness: Harness, tuner: Any, count: float, seen: Any = calm) -> None:
    for _ in range(int(12 * count)):
        observation: Observation = seen()
        await harness.tick(tuner, observation)


def scaled(**scaling: Any) -> Harness:
    harness = Harness()
    harness.sheds()
    harness.edit(scaling={"maxReplicas": 8, **scaling})
    return harness


def set_to(harness: Harness) -> int | None:
    """The number that the reconciler follows."""
    found = harness.service.status.scaling
    return None if found is None else found.replicas


@in_virtual_time
async def test_replicas_follow_the_load_up_at_once_and_down_after_the_window() -> None:
    harness = scaled()
    tuner = harness.tuner()
    await minutes(harness, tuner, 0.5)
    assert harness.condition(SCALING) == ("False", "NoCapacityEstimate")
    assert set_to(harness) is None, "the pods stay as many as they are"
    await minutes(harness, tuner, 3)
    assert harness.condition(SCALING) == ("True", "AsNeeded")
    assert set_to(harness) == 1
    await minutes(harness, tuner, 3, crowded)
    added = set_to(harness) or 0
    assert added > 1
    assert harness.service.status.desired_replicas == added
    assert harness.condition(SCALING)[0] == "True"
    await minutes(harness, tuner, 4)
    assert harness.condition(SCALING) == ("True", "Stabilizing")
    assert set_to(harness) == added
    await minutes(harness, tuner, 4)
    assert set_to(harness) == 1
    assert harness.service.status.scaling is not None
    assert harness.service.status.scaling.last_scale_time is not None
    assert harness.events.count("Rescaled") >= 2


@in_virtual_time
async def test_the_first_number_is_told_where_it_is_not_what_runs() -> None:
    for seen, told in ((calm, 0), (crowded, 1)):
        harness = scaled()
        await minutes(harness, harness.tuner(), 1.5, seen)
        assert (set_to(harness) == 1, harness.events.count("Rescaled")) == (not told, told)


@in_virtual_time
async def test_bounds_hold_the_number_and_that_is_said() -> None:
    harness = scaled(maxReplicas=2, minReplicas=2)
    tuner = harness.tuner()
    await minutes(harness, tuner, 3)
    assert set_to(harness) == 2
    await minutes(harness, tuner, 4)
    assert harness.condition(SCALING) == ("True", "AtMinimum")
    await minutes(harness, tuner, 3, crowded)
    assert (set_to(harness), harness.condition(SCALING)) == (2, ("True", "AtMaximum"))


@in_virtual_time
async def test_where_requests_that_wait_ask_for_pods_the_message_says_so_until_they_are_gone() -> None:
    harness = scaled()
    tuner = harness.tuner()
    await minutes(harness, tuner, 3)
    assert harness.message(SCALING) == "1 replica: as many as the load needs"
    await minutes(harness, tuner, 1, lambda: signals(now(), waiting=900.0))
    assert (set_to(harness) or 0) > 1
    assert (
        harness.message(SCALING) == f"{set_to(harness)} replicas: as many as the load and the requests that wait need"
    )
    await minutes(harness, tuner, 3)
    assert harness.message(SCALING) == f"{set_to(harness)} replicas: the load needs fewer, which must last for 300s"


@in_virtual_time
async def test_without_an_estimate_replicas_stay() -> None:
    harness = scaled()
    tuner = harness.tuner()
    await minutes(harness, tuner, 3)
    await minutes(harness, tuner, 3, crowded)
    before = set_to(harness)
    await minutes(harness, tuner, 30, lambda: AWAY)
    assert harness.condition(SCALING) == ("False", "NoCapacityEstimate")
    assert set_to(harness) == before
    assert harness.service.status.desired_replicas is None, "what another autoscaler would follow is too old"


@in_virtual_time
async def test_the_first_look_after_a_gap_removes_nothing() -> None:
    harness = scaled()
    tuner = harness.tuner()
    await minutes(harness, tuner, 3)
    await minutes(harness, tuner, 3, crowded)
    before = set_to(harness) or 0
    await minutes(harness, tuner, 6, lambda: AWAY)
    await minutes(harness, tuner, 4.5)
    assert set_to(harness) == before > 1
    await minutes(harness, tuner, 2)
    assert set_to(harness) == 1


@in_virtual_time
async def test_a_restart_goes_on_with_the_window_that_was_begun() -> None:
    harness = scaled()
    tuner = harness.tuner()
    await minutes(harness, tuner, 3)
    await minutes(harness, tuner, 3, crowded)
    added = set_to(harness)
    await minutes(harness, tuner, 3)
    harness.epoch = 2
    again = harness.tuner()
    await minutes(harness, again, 1)
    assert set_to(harness) == added
    await minutes(harness, again, 3.5)
    assert set_to(harness) == 1, "three minutes before the restart count"


@in_virtual_time
async def test_objectives_that_no_number_keeps_scale_nothing() -> None:
    harness = scaled()
    first, token = WITH_DEADLINE
    tuner = harness.tuner()
    await minutes(harness, tuner, 3)
    harness.edit(objectives=[first | {"threshold": "5ms"}, token])
    await minutes(harness, tuner, 4, crowded)
    assert harness.condition(SCALING) == ("False", "Infeasible")
    assert set_to(harness) == 1


@in_virtual_time
async def test_while_nothing_is_made_live_no_number_is_either() -> None:
    harness = scaled()
    tuner = harness.tuner()
    await minutes(harness, tuner, 3)
    harness.annotate(tuning="Paused")
    await minutes(harness, tuner, 3, crowded)
    assert harness.condition(SCALING) == ("False", "Paused")
    assert set_to(harness) == 1
    assert (harness.service.status.desired_replicas or 0) > 1, "it is shown all the same"
    harness.annotate()
    await minutes(harness, tuner, 1, crowded)
    assert (set_to(harness) or 0) > 1


@in_virtual_time
async def test_the_operator_begins_with_the_pods_there_are_and_ends_with_nothing_said() -> None:
    harness = Harness()
    harness.sheds()
    tuner = harness.tuner()
    await minutes(harness, tuner, 10)
    assert harness.condition(SCALING) == ("", "")
    harness.raw = {**harness.raw, "status": {**harness.raw["status"], "replicas": 4}}
    harness.edit(scaling={"maxReplicas": 8})
    await minutes(harness, tuner, 2)
    assert set_to(harness) == 4, "though one pod was advised for long"
    await minutes(harness, tuner, 5)
    assert set_to(harness) == 1
    spec = {field: value for field, value in harness.raw["spec"].items() if field != "scaling"}
    harness.raw = {**harness.raw, "spec": spec}
    await minutes(harness, tuner, 2)
    assert harness.service.status.scaling is None
    assert harness.condition(SCALING) == ("", "")


@in_virtual_time
async def test_a_number_of_when_the_service_was_tuned_last_is_not_taken_up_again() -> None:
    harness = scaled()
    left = {"replicas": 7, "scaleDown": [{"replicas": 7}]}
    told = {"type": SCALING.value, "status": "Unknown", "reason": "NotTuned"}
    harness.raw = {**harness.raw, "status": {"replicas": 2, "scaling": left, "conditions": [told]}}
    tuner = harness.tuner()
    await harness.tick(tuner, calm())
    assert set_to(harness) is None, "the pods stay as many as they are"
    await minutes(harness, tuner, 3)
    assert set_to(harness) == 2
    await minutes(harness, tuner, 5)
    assert set_to(harness) == 1


@in_virtual_time
async def test_a_service_that_nobody_asks_needs_no_estimate_to_be_scaled_down() -> None:
    harness = scaled(minReplicas=2)
    harness.raw = {**harness.raw, "status": {"replicas": 4}}
    tuner = harness.tuner()
    await minutes(harness, tuner, 4.5, idle)
    assert set_to(harness) == 4
    await minutes(harness, tuner, 1, idle)
    assert (set_to(harness), harness.condition(SCALING)) == (2, ("True", "AtMinimum"))
    await minutes(harness, tuner, 30, lambda: AWAY)
    assert harness.condition(SCALING) == ("False", "NoCapacityEstimate")


@in_virtual_time
async def test_requests_of_which_nothing_is_known_end_the_time_in_which_nobody_asked() -> None:
    harness = scaled()
    harness.raw = {**harness.raw, "status": {"replicas": 4}}
    tuner = harness.tuner()
    await minutes(harness, tuner, 4, idle)
    await minutes(harness, tuner, 0.5, lambda: signals(now(), finished=0.0, prompt_tokens=0.0, generated_tokens=0.0))
    assert harness.condition(SCALING) == ("False", "NoCapacityEstimate")
    await minutes(harness, tuner, 4, idle)
    assert set_to(harness) == 4
    await minutes(harness, tuner, 1.5, idle)
    assert set_to(harness) == 1


def reconciled(harness: Harness, *, replicas: int, reason: str) -> None:
    """The reconciler writes its part: pods there are, surge pods among them, and how far a rollout has come."""
    status = harness.raw.get("status") or {}
    others = [one for one in status.get("conditions", ()) if one["type"] != "Progressing"]
    told = {"type": "Progressing", "status": "True", "reason": reason}
    harness.raw = {**harness.raw, "status": {**status, "replicas": replicas, "conditions": [*others, told]}}


@pytest.mark.parametrize("edited", [False, True])
@in_virtual_time
async def test_in_the_middle_of_a_rollout_the_operator_does_not_begin_to_scale(edited: bool) -> None:
    harness = Harness()
    harness.sheds()
    if not edited:
        harness.edit(scaling={"maxReplicas": 8})
    reconciled(harness, replicas=3, reason="RollingOut")
    tuner = harness.tuner()
    harness.edit(scaling={"maxReplicas": 8})
    for _ in range(36):
        reconciled(harness, replicas=3, reason="RollingOut")
        await harness.tick(tuner, crowded())
    assert harness.condition(SCALING) == ("False", "RolloutUnderWay")
    assert set_to(harness) is None, "the pods stay as many as they are"
    numbers = set()
    for _ in range(48):
        reconciled(harness, replicas=2, reason="RolloutComplete")
        await harness.tick(tuner, calm())
        numbers.add(set_to(harness))
    assert numbers == {2}
    assert harness.condition(SCALING)[0] == "True"


@in_virtual_time
async def test_scaling_that_begins_while_a_write_fails_begins_with_the_pods_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    harness.sheds()
    reconciled(harness, replicas=3, reason="RolloutComplete")
    tuner = harness.tuner()
    await minutes(harness, tuner, 9)
    assert harness.service.status.desired_replicas == 1

    async def fail(*_: Any, **__: Any) -> None:
        harness.edit(scaling={"maxReplicas": 8})
        harness.update_pods(tuner)
        raise UnavailableError("the API server is away")

    harness.sheds(status=429)
    harness.update_pods(tuner)
    with monkeypatch.context() as away:
        away.setattr(harness, "apply", fail)
        with pytest.raises(UnavailableError):
            await tuner.tick(calm(), Attainment(outcomes={}))
    await minutes(harness, tuner, 2)
    assert set_to(harness) == 3


@in_virtual_time
async def test_a_status_that_is_no_memory_begins_anew() -> None:
    harness = scaled()
    harness.raw = {**harness.raw, "status": {"scaling": {"replicas": 3, "lastScaleTime": "never"}}}
    assert harness.service.status.scaling == ScalingStatus(replicas=3, last_scale_time="never")
    tuner = harness.tuner()
    await minutes(harness, tuner, 3)
    assert set_to(harness) == 3
    await minutes(harness, tuner, 5)
    assert set_to(harness) == 1


@in_virtual_time
async def test_a_load_that_stays_writes_of_scaling_nothing() -> None:
    harness = scaled()
    tuner = harness.tuner()
    await minutes(harness, tuner, 15)
    before = len(harness.written)
    await minutes(harness, tuner, 15)
    said = [one["scaling"] for one in harness.written[before:]]
    assert len(said) > 1, "the model's steps are counted on"
    assert said == [said[0]] * len(said)
