"""What users ask of the queue of running engines: how the tuner sends it, and what it is not taken for."""

from __future__ import annotations

from typing import Any

import pytest

from flyball_engine.contract import (
    AnyKnob,
    Batching,
    BatchingKnob,
    OrderKnob,
    QueueKnob,
    QueueLimits,
    SchedulingPolicy,
    Setpoint,
)
from flyball_engine.knobs import Bucketed, Continuous, Dynamic, NoEvict, Static
from flyball_lab.harness.service_tuners import AWAY, WITH_DEADLINE, Engines, Harness, shown, tuned_for
from flyball_lab.harness.tuning import signals
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import ConditionType, Tuning
from flyball_operator.engines.client import Address
from flyball_operator.tuning.actuate.engine_handle import EngineHandle
from flyball_operator.tuning.queueing import Queueing
from flyball_operator.tuning.service_tuner import ServiceTuner

TUNED = ConditionType.TUNED
STATIC = {"strategy": {"type": "Static", "batchSize": 8}}
DYNAMIC = {"strategy": {"type": "Dynamic", "batchSize": 8, "maxDelay": "50ms"}}
OLD = "this vLLM's scheduler admits no chosen requests"


def asked(**tuning: Any) -> Queueing:
    return Queueing.asked(Tuning.model_validate({"order": "Arrival", **tuning}))


def ask(harness: Harness, **tuning: Any) -> None:
    """The user asks for this, beside objectives that the law keeps."""
    harness.edit(objectives=WITH_DEADLINE, tuning={"order": "Arrival", **tuning})


async def ticks(harness: Harness, tuner: ServiceTuner, number: int = 3) -> None:
    for _ in range(number):
        await harness.tick(tuner, signals(now()))


async def beside_plain_vllm() -> Harness:
    """Of two pods with a static batch the second has become plain vLLM."""
    harness = Harness(Engines("pod-1", "pod-2"))
    ask(harness, batching=STATIC)
    tuner = await tuned_for(harness)
    harness.engines.plain.add("pod-2")
    harness.engines.held["pod-2"] = None
    await ticks(harness, tuner, 80)
    return harness


@pytest.mark.parametrize(
    ("batching", "means"),
    [
        ({}, Batching()),
        ({"strategy": {"type": "Continuous"}}, Batching(strategy=Continuous())),
        (STATIC, Batching(strategy=Static(batch_size=8))),
        (
            {"strategy": {**DYNAMIC["strategy"], "maxBatchTokens": 900}},
            Batching(strategy=Dynamic(batch_size=8, max_delay_seconds=0.05, max_batch_tokens=900)),
        ),
        (
            {"strategy": {"type": "Bucketed", "batchSize": 4, "boundaries": [128, 512]}, "policy": "Priority"},
            Batching(strategy=Bucketed(batch_size=4, boundaries=(128, 512)), policy=SchedulingPolicy.PRIORITY),
        ),
        (
            {"strategy": {"type": "Bucketed", "batchSize": 4, "sorted": True}},
            Batching(strategy=Bucketed(batch_size=4, sorted=True)),
        ),
        (
            {"admissionDelay": "1.5s", "noEvict": {}, "maxConcurrentPrefills": 2, "policy": "FCFS"},
            Batching(
                admission_delay_seconds=1.5,
                no_evict=NoEvict(quantile=0.95),
                max_concurrent_prefills=2,
                policy=SchedulingPolicy.FCFS,
            ),
        ),
        ({"noEvict": {"quantile": "0.5"}}, Batching(no_evict=NoEvict(quantile=0.5))),
    ],
)
def test_a_spec_means_a_setpoint(batching: dict[str, Any], means: Batching) -> None:
    assert asked(batching=batching) == Queueing(batching=means)
    assert Tuning.model_validate({"order": "Arrival", "batching": batching}).batching.chooses == (
        means.chooses() is not None
    )


def test_a_spec_without_it_asks_for_nothing() -> None:
    assert asked() == Queueing()
    assert asked(queue={"maxNumQueuedReqs": 64}).queue == QueueLimits(max_num_queued_reqs=64)


@in_virtual_time
async def test_an_edit_reaches_all_pods_at_once_and_is_taken_back() -> None:
    harness = Harness(Engines("pod-1", "pod-2", "pod-3"))
    ask(harness)
    tuner = await tuned_for(harness)
    limits = harness.held().limits
    ask(harness, batching=DYNAMIC, queue={"maxNumQueuedReqs": 500})
    await ticks(harness, tuner, 1)
    for uid in harness.engines.held:
        assert harness.held(uid).batching == asked(batching=DYNAMIC).batching
        assert harness.held(uid).queue == QueueLimits(max_num_queued_reqs=500)
        assert harness.held(uid).limits == limits, "the law goes on as it was"
    await ticks(harness, tuner)
    assert harness.condition(TUNED) == ("True", "Applied")
    assert harness.events.count("QueueingChanged") == 1
    ask(harness)
    await ticks(harness, tuner, 1)
    assert harness.events.count("QueueingChanged") == 2
    assert {harness.held(uid).batching for uid in harness.engines.held} == {Batching()}
    assert harness.held().queue == QueueLimits()


@pytest.mark.parametrize("mode", ["Auto", "Recommend", "Disabled"])
@in_virtual_time
async def test_it_is_sent_in_every_mode(mode: str) -> None:
    harness = Harness()
    ask(harness, mode=mode, batching=STATIC, queue={"maxNumQueuedTokens": 9000})
    tuner = await tuned_for(harness, ticks=3)
    assert harness.held().batching.strategy == Static(batch_size=8)
    assert harness.held().queue == QueueLimits(max_num_queued_tokens=9000)
    assert shown(harness).queued_tokens is None, "status holds the law's policy, and a new leader takes it for that"
    ask(harness, mode=mode)
    await ticks(harness, tuner)
    assert (harness.held().batching, harness.held().queue) == (Batching(), QueueLimits())


@in_virtual_time
async def test_while_tuning_is_paused_an_edit_waits() -> None:
    harness = Harness()
    ask(harness, batching=STATIC)
    tuner = await tuned_for(harness, ticks=3)
    harness.annotate(tuning="paused")
    ask(harness, batching=DYNAMIC)
    await ticks(harness, tuner)
    assert harness.held().batching.strategy == Static(batch_size=8)
    harness.epoch = 2
    tuner = harness.tuner()
    await ticks(harness, tuner)
    assert harness.held().epoch == 2
    assert harness.held().batching.strategy == Static(batch_size=8), "under a new leader, too"
    harness.annotate()
    await ticks(harness, tuner)
    assert harness.held().batching.strategy == Dynamic(batch_size=8, max_delay_seconds=0.05)


@in_virtual_time
async def test_while_tuning_is_paused_an_edit_waits_though_one_pod_runs_as_plain_vllm() -> None:
    harness = await beside_plain_vllm()
    harness.annotate(tuning="paused")
    ask(harness, batching=DYNAMIC)
    harness.epoch = 2
    tuner = harness.tuner()
    await ticks(harness, tuner)
    assert harness.held("pod-1").epoch == 2
    assert harness.held("pod-1").batching.strategy == Static(batch_size=8)


@in_virtual_time
async def test_while_tuning_is_paused_in_a_trial_an_edit_waits_in_all_pods() -> None:
    harness = Harness(Engines("pod-1", "pod-2", "pod-3"))
    ask(harness, overload="Shed", batching=STATIC)
    tuner = harness.tuner()
    while harness.condition(TUNED) != ("Unknown", "OnePodFirst"):
        await ticks(harness, tuner, 1)
    harness.annotate(tuning="paused")
    ask(harness, overload="Shed", batching=DYNAMIC)
    harness.epoch = 2
    tuner = harness.tuner()
    await ticks(harness, tuner)
    held = [harness.held(uid) for uid in harness.engines.held]
    assert {one.batching.strategy for one in held} == {Static(batch_size=8)}


@in_virtual_time
async def test_a_new_leader_goes_on_with_it_and_says_no_second_number() -> None:
    harness = Harness()
    ask(harness, batching=STATIC, queue={"maxNumQueuedTokens": 9000})
    await tuned_for(harness)
    before = harness.held()
    harness.epoch = 2
    tuner = harness.tuner()
    await ticks(harness, tuner)
    after = harness.held()
    assert (after.epoch, after.generation) == (2, before.generation)
    assert after.model_copy(update={"epoch": 1}) == before


@in_virtual_time
async def test_a_leader_that_finds_an_order_in_status_sends_none_beside_a_strategy() -> None:
    harness = Harness()
    harness.orders()
    await tuned_for(harness)
    assert harness.held().on_time is not None
    ask(harness, batching=STATIC)
    harness.epoch = 2
    tuner = harness.tuner()
    await ticks(harness, tuner)
    assert harness.held().on_time is None
    assert harness.held().batching.strategy == Static(batch_size=8)


@in_virtual_time
async def test_the_limit_of_queued_tokens_is_the_user_s_where_both_have_one() -> None:
    harness = Harness()
    ask(harness, overload="Shed")
    tuner = harness.tuner()
    await harness.tick(tuner, AWAY, AWAY)
    assert harness.held().queue.max_num_queued_tokens is not None, "before there is a model"
    ask(harness, overload="Shed", queue={"maxNumQueuedTokens": 77, "maxNumQueuedReqs": 5})
    await ticks(harness, tuner, 30)
    assert harness.held().queue == QueueLimits(max_num_queued_reqs=5, max_num_queued_tokens=77)
    assert harness.held().shed is not None


@in_virtual_time
async def test_without_the_user_s_limit_of_queued_tokens_the_first_one_is_back() -> None:
    harness = Harness()
    ask(harness, overload="Shed")
    tuner = harness.tuner()
    await harness.tick(tuner, AWAY, AWAY)
    first = harness.held()
    ask(harness, overload="Shed", queue={"maxNumQueuedTokens": 77})
    await harness.tick(tuner, AWAY, AWAY)
    assert harness.held().queue.max_num_queued_tokens == 77
    ask(harness, overload="Shed")
    await harness.tick(tuner, AWAY, AWAY)
    assert harness.held().queue == first.queue
    assert harness.held().limits == first.limits


@in_virtual_time
async def test_all_that_an_engine_lacks_is_in_one_message() -> None:
    harness = Harness(Engines("pod-1", unsupported={BatchingKnob.STATIC: OLD}, ungated="a launcher of others"))
    ask(harness, overload="Shed", batching=STATIC)
    await tuned_for(harness)
    assert harness.condition(TUNED) == ("False", "KnobUnsupported")
    assert f"spec.tuning.batching.strategy: {OLD}" in harness.message(TUNED)
    assert "overload Shed: a launcher of others" in harness.message(TUNED)


@in_virtual_time
async def test_what_an_engine_lacks_is_named_and_the_rest_holds() -> None:
    lacks: dict[AnyKnob, str] = {BatchingKnob.DYNAMIC: OLD, QueueKnob.MAX_NUM_QUEUED_REQS: "no such limit"}
    harness = Harness(Engines("pod-1", unsupported=lacks | {OrderKnob.ON_TIME: OLD}))
    ask(
        harness,
        batching={**DYNAMIC, "maxConcurrentPrefills": 3},
        queue={"maxNumQueuedReqs": 5, "maxNumQueuedTokens": 77},
    )
    await tuned_for(harness)
    held = harness.held()
    assert held.batching == Batching(max_concurrent_prefills=3)
    assert held.queue == QueueLimits(max_num_queued_tokens=77)
    assert held.step is not None, "the law goes on"
    assert harness.condition(TUNED) == ("False", "KnobUnsupported")
    assert f"spec.tuning.batching.strategy: {OLD}; spec.tuning.queue.maxNumQueuedReqs: no such limit" in (
        harness.message(TUNED)
    )
    assert not harness.engines.refused


@in_virtual_time
async def test_what_engines_lack_is_told_as_no_change_neither_at_the_edit_nor_at_the_next_retune() -> None:
    harness = Harness(Engines("pod-1", unsupported={BatchingKnob.DYNAMIC: OLD}))
    ask(harness)
    tuner = await tuned_for(harness)
    ask(harness, batching=DYNAMIC)
    await ticks(harness, tuner)
    before = harness.events.count("Retuned")
    ask(harness, batching=DYNAMIC, bounds={"maxNumActiveSeqs": {"max": 7}})
    await ticks(harness, tuner)
    assert harness.events.count("Retuned") > before
    assert "QueueingChanged" not in harness.events


@in_virtual_time
async def test_an_engine_that_runs_as_plain_vllm_is_told_none_of_it() -> None:
    harness = await beside_plain_vllm()
    assert harness.held("pod-1").batching.strategy is not None
    assert harness.held("pod-2").batching == Batching()


@pytest.mark.parametrize(
    ("batching", "stalls"),
    [
        ({}, True),
        ({"maxConcurrentPrefills": 4}, True),
        (STATIC, False),
        ({"admissionDelay": "60s"}, False),
        ({"noEvict": {}}, False),
    ],
)
@in_virtual_time
async def test_requests_that_are_kept_back_by_intent_are_no_stall(batching: dict[str, Any], stalls: bool) -> None:
    harness = Harness()
    ask(harness, batching=batching)
    tuner = await tuned_for(harness)
    harness.engines.stuck.add("pod-1")
    await ticks(harness, tuner, 30)
    assert (harness.condition(TUNED)[1] == "AdmissionStuck") == stalls
    assert (tuner.state.held_until > now()) == stalls


@pytest.mark.parametrize(
    ("batching", "running", "waiting", "busy"),
    [
        (Batching(), 0, 3, True),
        (Batching(), 0, 0, False),
        (Batching(admission_delay_seconds=60.0), 0, 3, False),
        (Batching(strategy=Dynamic(batch_size=8, max_delay_seconds=60.0)), 0, 3, False),
        (Batching(strategy=Dynamic(batch_size=8, max_delay_seconds=60.0)), 1, 3, True),
    ],
)
@in_virtual_time
async def test_a_trial_does_not_fail_while_a_batch_gathers(
    batching: Batching, running: int, waiting: int, busy: bool
) -> None:
    engines = Engines("pod-1")
    engines.held["pod-1"] = Setpoint(service="s1", epoch=1, generation=1, batching=batching)
    read_back = await engines.read(Address(key="pod-1", tenant="ns", ip="10.0.0.1"))
    (core,) = read_back.cores
    core = core.model_copy(update={"running": running, "waiting": waiting})
    handle = EngineHandle(("c", 0))
    handle.take(read_back.model_copy(update={"cores": (core,)}), now())
    assert handle.busy == busy


def test_the_fields_that_an_edit_changes_are_named_as_users_wrote_them() -> None:
    before, after = asked(batching=STATIC), asked(batching=DYNAMIC, queue={"maxNumQueuedReqs": 500})
    assert after.changed(before) == "batching.strategy, queue.maxNumQueuedReqs"
    assert after.changed(after) == ""
