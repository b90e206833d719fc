"""Classes of requests in the operator: deadlines of their own, what engines are told, and the way through status."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_engine.contract import AnyKnob, Classes, Metric, OnTime, OrderKnob, RequestClass, Shed
from flyball_lab.harness.service_tuners import Engines, Harness, tuned_for
from flyball_lab.harness.service_tuners import shown as seen
from flyball_lab.harness.tuning import E2E, TPOT, TTFT, signals, tuning
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import ConditionType, InferenceServiceSpec, Overload, TuningStatus
from flyball_operator.tuning.control_input import margins
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.observe.signals import Missing, Unobserved
from flyball_operator.tuning.policy import asked_deadlines
from flyball_operator.tuning.report.conditions import shown
from flyball_operator.tuning.spec import LatencyObjective, TuningSpec, tuning_spec
from flyball_operator.tuning.state import TuningState, start
from flyball_operator.tuning.status_codec import policy_of, setpoint_status

CHAT = LatencyObjective("chat-first", Metric.TIME_TO_FIRST_TOKEN, 0.5, 0.01, of_class="chat")
WHOLE = LatencyObjective("chat-whole", Metric.END_TO_END_LATENCY, 8.0, 0.01, of_class="chat")
CLASSES = Classes(
    classes=(RequestClass(name="chat", value="chat", weight=10.0), RequestClass(name="batch", value="Low"))
)
MIXED = replace(tuning(TTFT, TPOT, CHAT), classes=CLASSES)
#: Only chats have objectives: all else is batch work.
ALONE = replace(tuning(CHAT, TPOT), classes=CLASSES)
AWAY = Unobserved(Missing.UNREACHABLE, "away")


def at_rest(spec: TuningSpec) -> TuningState:
    state = start(spec)
    for at in (100.0 + 5 * tick for tick in range(20)):
        state, _ = decide(state, signals(at), spec, at)
    return state


def test_each_class_with_a_first_token_objective_has_its_deadline() -> None:
    policy = at_rest(MIXED).policy
    assert policy.on_time == OnTime(first_token_deadline_seconds=TTFT.seconds, margin=margins().first_token)
    assert policy.class_deadlines == (("chat", 0.5),)
    assert "2s, 500ms for chat" in shown(policy)


def test_where_only_a_class_has_objectives_all_other_requests_are_batch_work() -> None:
    policy = at_rest(replace(ALONE, overload=Overload.SHED)).policy
    assert policy.on_time == OnTime(margin=margins().first_token)
    assert policy.shed == Shed(margin=margins().first_token)
    assert policy.class_deadlines == (("chat", 0.5),)


def test_an_end_to_end_objective_of_a_class_leaves_a_deadline_and_keeps_it() -> None:
    spec = replace(tuning(TTFT, TPOT, WHOLE), classes=CLASSES)
    state = at_rest(spec)
    ((name, deadline),) = state.policy.class_deadlines
    assert name == "chat"
    assert 0.25 * WHOLE.seconds <= deadline < WHOLE.seconds
    after, _ = decide(state, signals(200.0), spec, 200.0)
    assert after.policy.class_deadlines == state.policy.class_deadlines


@pytest.mark.parametrize(
    ("objectives", "asked"),
    [
        ((TTFT, CHAT), {"": 2.0, "chat": 0.5}),
        ((TTFT, replace(CHAT, seconds=0.25)), {"": 2.0, "chat": 0.25}),
        ((TTFT,), {"": 2.0}),
        ((CHAT,), {"chat": 0.5}),
        ((TTFT, replace(CHAT, of_class="other")), {"": 2.0, "other": 0.5}),
        ((TTFT, replace(WHOLE, of_class="other")), {"": 2.0, "other": 2.0}),
        ((E2E, CHAT), {"": 2.0, "chat": 0.5}),
    ],
)
def test_edited_objectives_move_the_deadlines_of_their_class_at_once(
    objectives: tuple[LatencyObjective, ...], asked: dict[str, float]
) -> None:
    assert asked_deadlines({"": 2.0, "chat": 0.5}, objectives) == asked
    state = at_rest(MIXED)
    after, _ = decide(state, AWAY, replace(MIXED, objectives=objectives), 300.0)
    assert after.policy.deadlines == asked


def test_a_class_that_has_no_objectives_any_more_leaves_no_deadline_behind() -> None:
    state = at_rest(ALONE)
    after, _ = decide(state, AWAY, replace(ALONE, objectives=(TPOT,)), 300.0)
    assert (after.policy.on_time, after.policy.class_deadlines) == (None, ())


@pytest.mark.parametrize("spec", [MIXED, ALONE, replace(MIXED, overload=Overload.SHED)])
def test_the_next_leader_goes_on_with_the_same_deadlines(spec: TuningSpec) -> None:
    policy = at_rest(spec).policy
    status = setpoint_status(policy)
    assert policy_of(TuningStatus.model_validate({"setpoint": status.model_dump(by_alias=True)}).setpoint) == policy


def test_a_manifest_s_classes_reach_the_law() -> None:
    spec = InferenceServiceSpec.model_validate(
        {
            "model": {"uri": "hf://gpt2"},
            "engine": {"image": "vllm/vllm-openai:v0.32.0"},
            "objectives": [
                {"name": "chat-first", "metric": "TimeToFirstToken", "threshold": "500ms", "class": "chat"},
                {"name": "ttft", "metric": "TimeToFirstToken", "threshold": "500ms"},
            ],
            "tuning": {
                "classHeader": "x-class",
                "classes": [
                    {"name": "chat", "weight": 10},
                    {"name": "batch", "value": "Low", "priority": 5, "prefillShare": 20},
                ],
            },
        }
    )
    read = tuning_spec(spec)
    assert [one.id for one in read.objectives] == ["TimeToFirstToken/0.5@chat", "TimeToFirstToken/0.5"]
    assert read.classes == Classes(
        header="x-class",
        classes=(
            RequestClass(name="chat", value="chat", weight=10.0),
            RequestClass(name="batch", value="Low", priority=5, prefill_share=0.2),
        ),
    )


# What engines are told.


def a_desk(*pods: str, unsupported: dict[AnyKnob, str] | None = None) -> Harness:
    harness = Harness(engines=Engines(*(pods or ("pod-1",)), unsupported=unsupported or {}))
    harness.orders()
    objectives = [
        *harness.raw["spec"]["objectives"],
        {**harness.raw["spec"]["objectives"][0], "name": "c", "class": "chat"},
    ]
    objectives.append({"name": "f", "metric": "TimeToFirstToken", "threshold": "500ms", "class": "chat"})
    harness.edit(objectives=objectives, tuning={**harness.raw["spec"]["tuning"], "classes": [{"name": "chat"}, BATCH]})
    return harness


BATCH = {"name": "batch", "weight": 2, "prefillShare": 20, "priority": 5}


@in_virtual_time
async def test_engines_are_told_the_classes_and_status_shows_their_deadlines() -> None:
    harness = a_desk()
    await tuned_for(harness)
    held = harness.held()
    assert held.classes == Classes(
        classes=(
            RequestClass(name="chat", value="chat", first_token_deadline_seconds=0.5),
            RequestClass(name="batch", value="batch", weight=2.0, prefill_share=0.2, priority=5),
        )
    )
    assert {one.of_class for one in held.objectives} == {"", "chat"}
    assert [(one.name, one.deadline) for one in seen(harness).class_deadlines or ()] == [("chat", "500ms")]


@in_virtual_time
async def test_an_edited_class_reaches_the_engines_by_itself() -> None:
    harness = a_desk()
    tuner = await tuned_for(harness)
    for change in ({"weight": 7}, {"priority": 9}, {"value": "other"}, {"prefillShare": 30}):
        before, tuned = harness.held(), harness.raw["spec"]["tuning"]
        harness.edit(tuning={**tuned, "classes": [tuned["classes"][0], tuned["classes"][1] | change]})
        for _ in range(4):
            await harness.tick(tuner, signals(now()))
        held = harness.held()
        assert held.classes != before.classes, change
        assert held.generation > before.generation


@in_virtual_time
async def test_a_plugin_older_than_priorities_is_tuned_without_classes() -> None:
    harness = a_desk()
    harness.engines.untold_priorities = True
    await tuned_for(harness)
    held = harness.held()
    assert held.on_time == OnTime(first_token_deadline_seconds=2.0, margin=0.85)
    assert held.classes is None
    assert harness.message(ConditionType.TUNED).endswith(
        "the plugin in the pod is older than these classes of requests"
    )


@in_virtual_time
async def test_an_engine_that_cannot_tell_classes_apart_gets_the_rest() -> None:
    harness = a_desk(unsupported={OrderKnob.CLASSES: "reads none"})
    await tuned_for(harness)
    held = harness.held()
    assert held.on_time == OnTime(first_token_deadline_seconds=2.0, margin=0.85)
    assert held.classes is None
    assert harness.message(ConditionType.TUNED).endswith("all requests are of one class: reads none")
    assert {one.of_class for one in held.objectives} == {""}
