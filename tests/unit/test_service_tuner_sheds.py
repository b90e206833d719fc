"""One service whose overload is shed: what its engines and its status are told, and what they are not."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from flyball_engine.contract import Knob, Limits, ModelSpec, Shed, StepBudget
from flyball_lab.harness.service_tuners import AWAY, WITH_DEADLINE, Engines, Harness, shown, tuned_for
from flyball_lab.harness.tuning import signals
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.tuning.metrics import TunerMetrics
from flyball_operator.tuning.policy import Policy

TUNED = ConditionType.TUNED


@in_virtual_time
async def test_engines_get_a_budget_and_a_deadline_and_status_shows_both() -> None:
    harness = Harness()
    harness.sheds()
    await tuned_for(harness)
    held, status = harness.held(), shown(harness)
    assert held.step is not None
    assert held.shed == Shed(ttft_deadline_seconds=2.0, margin=0.85)
    assert held.step.seconds == pytest.approx(0.92 * 0.06)
    assert (status.step_budget, status.first_token_deadline, status.first_token_margin) == ("55.2ms", "2s", "0.85")
    assert status.step_model is not None
    assert status.step_model.id == held.step.model.id
    assert harness.condition(TUNED) == ("True", "Applied")
    assert "steps of 55.2ms, first tokens by 0.85 of 2s, else 503" in harness.message(TUNED)
    newest = harness.service.status.tuning.decisions[0]
    assert newest.trigger.endswith("what would miss ttft is refused")
    assert newest.after.step_model is None, "five models more would hide the decisions"


def by_class(name: str, *, mode: str = "Auto") -> dict[str, Any]:
    """What a user asks for whose one class alone has a deadline."""
    first, token = WITH_DEADLINE
    tuning = {"mode": mode, "overload": "Shed", "classes": [{"name": name}]}
    return {"objectives": [first | {"class": name}, token], "tuning": tuning}


@in_virtual_time
async def test_a_class_that_has_another_name_takes_its_deadline_along() -> None:
    harness = Harness()
    harness.edit(**by_class("chat"))
    tuner = await tuned_for(harness)
    held = harness.held()
    assert held.classes is not None
    assert held.refusal_deadlines["chat"] == pytest.approx(0.85 * 2.0)
    harness.edit(**by_class("talk", mode="Recommend"))
    for _ in range(3):
        await harness.tick(tuner, signals(now()))
    assert harness.held().shed is None, "what is live in Recommend is left alone, but for what nobody wants"
    harness.edit(**by_class("talk"))
    for _ in range(30):
        await harness.tick(tuner, signals(now()))
    assert harness.held().refusal_deadlines["talk"] == pytest.approx(0.85 * 2.0)


@in_virtual_time
async def test_a_leader_that_finds_a_class_that_is_gone_takes_over_all_the_same() -> None:
    harness = Harness()
    harness.edit(**by_class("chat"))
    await tuned_for(harness)
    harness.edit(**by_class("talk"))
    harness.epoch = 2
    again = harness.tuner()
    for _ in range(30):
        await harness.tick(again, signals(now()))
    assert harness.held().epoch == 2
    assert harness.held().refusal_deadlines["talk"] == pytest.approx(0.85 * 2.0)


@in_virtual_time
async def test_the_next_leader_pushes_and_writes_nothing_new() -> None:
    harness = Harness()
    harness.sheds()
    await tuned_for(harness)
    before, written = harness.held(), len(harness.written)
    harness.epoch = 2
    again = harness.tuner()
    for _ in range(10):
        await harness.tick(again, signals(now()))
    assert harness.held() == before.model_copy(update={"epoch": 2})
    assert [s["tuning"]["setpoint"] for s in harness.written[written:]] == []


@in_virtual_time
async def test_a_leader_that_sees_nothing_keeps_the_gate() -> None:
    harness = Harness()
    harness.sheds()
    await tuned_for(harness)
    before, harness.epoch = harness.held(), 2
    again = harness.tuner()
    for _ in range(10):
        await harness.tick(again, AWAY, AWAY)
    assert (harness.held().step, harness.held().shed) == (before.step, before.shed)


@in_virtual_time
async def test_queue_opens_the_gate_without_waiting_for_a_tick() -> None:
    harness = Harness()
    harness.sheds()
    tuner = await tuned_for(harness)
    harness.sheds(overload="Queue")
    harness.update_pods(tuner)
    await tuner.keep()
    assert harness.held().shed is None
    assert harness.held().on_time is not None, "the order stays"
    assert shown(harness).step_budget == "55.2ms", "and so does the time of a step"
    assert shown(harness).first_token_deadline is None
    assert "no request is refused any more" in harness.service.status.tuning.decisions[0].trigger


@in_virtual_time
async def test_another_status_of_refusals_is_live_without_waiting_for_a_tick() -> None:
    harness = Harness()
    harness.sheds()
    tuner = await tuned_for(harness)
    before = harness.held()
    assert before.shed is not None
    assert (before.shed.refusal_status, shown(harness).refusal_status) == (503, 503)
    harness.sheds(status=429)
    harness.update_pods(tuner)
    await tuner.keep()
    assert harness.held().shed == before.shed.model_copy(update={"refusal_status": 429})
    assert (harness.held().limits, harness.held().step) == (before.limits, before.step)
    assert shown(harness).refusal_status == 429
    assert "first tokens by 0.85 of 2s, else 429" in harness.message(TUNED)
    assert harness.service.status.tuning.decisions[0].trigger == "requests are refused with 429 from now on"


@in_virtual_time
async def test_the_next_leader_keeps_the_status_of_refusals() -> None:
    harness = Harness()
    harness.sheds(status=429)
    await tuned_for(harness)
    before, harness.epoch = harness.held(), 2
    await harness.tick(harness.tuner(), AWAY, AWAY)
    assert harness.held() == before.model_copy(update={"epoch": 2})


@in_virtual_time
async def test_recommend_shows_the_gate_and_leaves_the_engines_alone() -> None:
    harness = Harness()
    harness.sheds(mode="Recommend")
    await tuned_for(harness)
    assert (harness.held().step, harness.held().shed) == (None, None)
    recommended = harness.service.status.tuning.recommended
    assert recommended is not None
    assert (recommended.step_budget, recommended.first_token_deadline) == ("55.2ms", "2s")
    assert shown(harness).step_budget is None


@in_virtual_time
async def test_a_gate_that_recommend_found_live_goes_when_nobody_wants_it() -> None:
    harness = Harness()
    harness.sheds()
    tuner = await tuned_for(harness)
    harness.sheds(mode="Recommend")
    await harness.tick(tuner, signals(now()))
    assert harness.held().shed is not None, "what is live is left alone"
    harness.sheds(mode="Recommend", overload="Queue")
    await harness.tick(tuner, signals(now()))
    assert harness.held().shed is None


@in_virtual_time
async def test_disabled_sends_neither() -> None:
    harness = Harness()
    harness.sheds()
    tuner = await tuned_for(harness)
    harness.sheds(mode="Disabled")
    await harness.tick(tuner, signals(now()))
    assert (harness.held().step, harness.held().shed) == (None, None)
    assert harness.engines.limits() == (128, 2048)


@in_virtual_time
async def test_an_engine_that_cannot_refuse_is_named_and_told_the_rest() -> None:
    harness = Harness(engines=Engines("pod-1", ungated="no such method in this vLLM"))
    harness.sheds()
    await tuned_for(harness)
    assert harness.held().shed is None
    assert shown(harness).step_budget == "55.2ms", "limits and steps are the same"
    assert harness.held().limits.given()
    assert shown(harness).first_token_deadline is None
    assert harness.condition(TUNED) == ("False", "KnobUnsupported")
    assert harness.message(TUNED) == "overload Shed: no such method in this vLLM"


@in_virtual_time
async def test_a_plugin_that_is_older_than_the_gate_is_taken_to_have_none() -> None:
    harness = Harness()
    harness.engines.untold = True
    harness.sheds()
    await tuned_for(harness)
    assert harness.held().shed is None
    assert harness.condition(TUNED) == ("False", "KnobUnsupported")
    assert "the plugin does not say that it can" in harness.message(TUNED)


@in_virtual_time
async def test_one_engine_that_becomes_plain_vllm_takes_nothing_from_the_others() -> None:
    harness = Harness(engines=Engines("pod-1", "pod-2"))
    harness.sheds()
    tuner = await tuned_for(harness)
    before = harness.held("pod-1")
    harness.engines.plain.add("pod-2")
    harness.engines.held["pod-2"] = None
    for _ in range(80):
        await harness.tick(tuner, signals(now()))
    assert (harness.held("pod-1").step, harness.held("pod-1").shed) == (before.step, before.shed)
    assert harness.held("pod-1").limits == before.limits
    assert harness.held("pod-2").objectives == before.objectives, "its requests are counted still"
    assert harness.held("pod-2").limits == Limits()
    assert harness.condition(TUNED) == ("False", "EngineUngoverned")


@in_virtual_time
async def test_an_engine_that_cannot_fit_steps_gets_neither() -> None:
    harness = Harness(engines=Engines("pod-1", unsupported={Knob.MAX_NUM_SCHEDULED_TOKENS: "a step is its batch"}))
    harness.sheds()
    await tuned_for(harness)
    assert (harness.held().step, harness.held().shed) == (None, None)
    assert harness.condition(TUNED) == ("False", "KnobUnsupported")


@in_virtual_time
async def test_an_engine_that_cannot_refuse_lacks_nothing_where_all_wait() -> None:
    harness = Harness(engines=Engines("pod-1", ungated="no such method in this vLLM"))
    await tuned_for(harness)
    assert harness.condition(TUNED) == ("True", "Applied")


def test_budget_and_deadline_are_series_while_they_are_told() -> None:
    registry = CollectorRegistry()
    metrics, limits = TunerMetrics(registry), Limits(max_num_active_seqs=8, max_num_scheduled_tokens=512)
    model = ModelSpec(id="m", trusted=True, t0=0.01, h=0, c1=1e-4, c2=1e-4, beta=0, g=0, kappa=1)
    step, shed = StepBudget(seconds=0.05, model=model), Shed(ttft_deadline_seconds=2.0, margin=0.8)
    labels = '{namespace="team",service="chat"}'
    metrics.policy("team", "chat", Policy(limits=limits, step=step, shed=shed))
    text = generate_latest(registry).decode()
    for figure in (
        "step_budget_seconds%s 0.05",
        "first_token_deadline_seconds%s 2.0",
        "first_token_margin_ratio%s 0.8",
    ):
        assert "flyball_operator_" + figure % labels in text
    metrics.policy("team", "chat", Policy(limits=limits))
    text = generate_latest(registry).decode()
    assert "_seconds" + labels not in text
    assert "ratio" + labels not in text


def test_a_limit_that_is_no_longer_told_is_shown_no_longer() -> None:
    registry = CollectorRegistry()
    metrics = TunerMetrics(registry)
    metrics.policy("ns", "chat", Policy(limits=Limits(max_num_active_seqs=8, max_num_scheduled_tokens=512)))
    metrics.policy("ns", "chat", Policy(limits=Limits(max_num_active_seqs=8)))
    shown = generate_latest(registry).decode()
    assert shown.count("flyball_operator_limit{") == 1
    assert 'flyball_operator_limit{knob="max_num_active_seqs"' in shown
