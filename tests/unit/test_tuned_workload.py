"""The tuner of pods that others make: their engines say the ceilings, and get their start values back at the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_engine.contract import Batching, Limits, QueueLimits, Setpoint
from flyball_engine.knobs import Static
from flyball_lab.harness.service_tuners import Engines, Harness
from flyball_lab.harness.tuning import signals
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import ConditionType, InferenceService
from flyball_operator.engines.errors import UnreachableError
from flyball_operator.tuning.service_tuner import ServiceTuner

NOTHING = {
    "limits": Limits(),
    "step": None,
    "shed": None,
    "on_time": None,
    "objectives": (),
    "batching": Batching(),
    "queue": QueueLimits(),
}


def foreign(*pods: str) -> Harness:
    """A service whose pods others made."""
    harness = Harness(engines=Engines(*pods))
    spec = {key: value for key, value in harness.raw["spec"].items() if key == "objectives"}
    harness.raw["spec"] = spec | {"workload": {"selector": {"matchLabels": {"app": "llm"}}}}
    return harness


def without(harness: Harness, tuner: ServiceTuner, uid: str) -> None:
    """The service has this pod no more, and it runs on."""
    tuner.update(harness.service, [pod for pod in harness.pods("s1") if pod.uid != uid])


def says_nothing(setpoint: Setpoint | None) -> bool:
    """Whether the setpoint leaves an engine as it was started, and is soon forgotten."""
    return setpoint is not None and all(getattr(setpoint, field) == value for field, value in NOTHING.items())


@in_virtual_time
async def test_limits_begin_at_what_the_engines_were_started_with() -> None:
    harness = foreign("pod-1")
    tuner = harness.tuner()
    await harness.tick(tuner, signals(now(), arrivals=0, running=0))
    assert harness.engines.limits() == (128, 2048)
    assert harness.held().limits.max_num_scheduled_tokens == 2048


@in_virtual_time
async def test_before_an_engine_has_said_its_ceilings_nothing_is_sent() -> None:
    harness = foreign("pod-1")
    answers, harness.engines.read = harness.engines.read, _unreachable  # type: ignore[method-assign, assignment]
    tuner = harness.tuner()
    for _ in range(3):
        await harness.tick(tuner, signals(now()))
    assert not harness.engines.writes
    harness.engines.read = answers  # type: ignore[method-assign]
    await harness.tick(tuner, signals(now()))
    assert harness.engines.writes


async def _unreachable(_: object) -> None:
    raise UnreachableError("connection refused", closed=True)


@pytest.mark.parametrize("closed", [True, False], ids=["nothing listens", "nobody answers"])
@in_virtual_time
async def test_a_pod_that_cannot_be_reached_is_named_with_what_to_do(closed: bool) -> None:
    """What does not let the operator in may have the plugin: installing it anew mends nothing."""

    async def unreachable(_: object) -> None:
        raise UnreachableError("10.1.2.3:8001: so it is", closed=closed)

    harness = foreign("pod-1")
    harness.engines.read = unreachable  # type: ignore[method-assign, assignment]
    tuner = harness.tuner()
    await harness.tick(tuner, signals(now()))
    assert harness.condition(ConditionType.TUNED) == ("False", "EngineUnreachable")
    said = harness.message(ConditionType.TUNED)
    assert said.startswith("pod-1: 10.1.2.3:8001: so it is")
    assert ("install the plugin and restart the pod" in said) is closed


@in_virtual_time
async def test_the_law_moves_them_as_it_moves_its_own() -> None:
    harness = foreign("pod-1")
    tuner = harness.tuner()
    for _ in range(30):
        await harness.tick(tuner, signals(now(), waiting=0.0))
    assert harness.condition(ConditionType.TUNED) == ("True", "Applied")
    assert harness.engines.limits() != (128, 2048)


@in_virtual_time
async def test_a_pod_that_is_the_services_no_more_gets_its_start_values_back() -> None:
    harness = foreign("pod-1", "pod-2")
    strategy = {"type": "Static", "batchSize": 8}
    asked = {"batching": {"strategy": strategy}, "queue": {"maxNumQueuedReqs": 500}}
    harness.edit(tuning={"order": "Arrival", **asked})
    tuner = harness.tuner()
    for _ in range(30):
        await harness.tick(tuner, signals(now(), waiting=0.0))
    kept = harness.held("pod-1")
    assert kept.batching.strategy == Static(batch_size=8)
    without(harness, tuner, "pod-2")
    assert tuner.to_be_kept()
    await tuner.keep()
    assert says_nothing(harness.held("pod-2"))
    assert harness.held("pod-2").expires_seconds == 60.0
    assert harness.held("pod-1") == kept
    assert not tuner.to_be_kept()


@in_virtual_time
async def test_each_pod_is_told_at_its_own_control_port_be_it_ready_or_not_or_given_back() -> None:
    harness = foreign("pod-1", "pod-2", "pod-3")
    harness.engines.ports = {"pod-1": 8101, "pod-3": 9000}
    harness.engines.starting = {"pod-3"}
    tuner = harness.tuner()
    for _ in range(30):
        await harness.tick(tuner, signals(now(), waiting=0.0))
    assert harness.held("pod-1") == harness.held("pod-2") == harness.held("pod-3")
    without(harness, tuner, "pod-1")
    await tuner.keep()
    assert says_nothing(harness.held("pod-1"))


@in_virtual_time
async def test_one_that_comes_back_is_tuned_again() -> None:
    harness = foreign("pod-1", "pod-2")
    tuner = harness.tuner()
    await harness.tick(tuner, signals(now()))
    without(harness, tuner, "pod-2")
    await tuner.keep()
    for _ in range(3):
        await harness.tick(tuner, signals(now()))
    assert not says_nothing(harness.held("pod-2"))
    assert harness.held("pod-2") == harness.held("pod-1")


@in_virtual_time
async def test_a_pod_that_is_being_deleted_keeps_its_setpoint_while_it_drains() -> None:
    harness = foreign("pod-1", "pod-2")
    tuner = ServiceTuner(harness.service, replace(harness.dependencies(), is_leaving=lambda uid: uid == "pod-2"))
    await harness.tick(tuner, signals(now()))
    without(harness, tuner, "pod-2")
    assert not tuner.to_be_kept()


@in_virtual_time
async def test_the_address_of_a_pod_that_is_gone_may_be_another_pods_by_now() -> None:
    harness = foreign("pod-1", "pod-2", "pod-3")
    tuner = harness.tuner()
    await harness.tick(tuner, signals(now()))
    kept, gone, other = harness.pods("s1")
    tuner.update(harness.service, [kept, replace(other, ip=gone.ip)])
    await tuner.keep()
    assert not says_nothing(harness.held("pod-2")), "what is written there reaches the other pod"


@in_virtual_time
async def test_a_pod_that_does_not_answer_is_left_to_the_expiry_of_its_setpoint() -> None:
    harness = foreign("pod-1", "pod-2")
    tuner = harness.tuner()
    await harness.tick(tuner, signals(now()))
    harness.engines.loading.add("pod-2")
    without(harness, tuner, "pod-2")
    numbers = set()
    for _ in range(5):
        assert tuner.to_be_kept()
        await tuner.keep()
        numbers.add(harness.held("pod-1").generation)
    assert not tuner.to_be_kept()
    assert len(numbers) <= 2, "each try would renumber the whole service"


@in_virtual_time
async def test_a_service_that_is_deleted_before_it_sent_anything_gives_nothing_back() -> None:
    harness = foreign("pod-1")

    async def is_deleted(_: InferenceService) -> bool:
        return True

    tuner = ServiceTuner(harness.service, replace(harness.dependencies(), is_deleted=is_deleted))
    tuner.update(harness.service, harness.pods("s1"))
    await tuner.release()
    assert not harness.engines.writes


@pytest.mark.parametrize("deleted", [True, False])
def test_engines_are_released_with_a_service_that_is_deleted_not_with_one_that_is_only_out_of_sight(
    deleted: bool,
) -> None:
    @in_virtual_time
    async def released() -> None:
        harness = foreign("pod-1")

        async def is_deleted(_: InferenceService) -> bool:
            return deleted

        tuner = ServiceTuner(harness.service, replace(harness.dependencies(), is_deleted=is_deleted))
        await harness.tick(tuner, signals(now()))
        await tuner.release()
        assert says_nothing(harness.held()) is deleted

    released()
