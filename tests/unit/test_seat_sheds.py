"""One service whose overload is shed: what its engines and its status are told, and what they are not."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from flyball_engine.contract import Knob, Limits, ModelSpec, Shed, StepBudget
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.report.metrics import BrainMetrics
from support.seats import AWAY, WITH_DEADLINE, Desk, Engines, shown, told
from support.tuning import signals
from support.virtual_time import in_virtual_time, now

TUNED = ConditionType.TUNED


@in_virtual_time
async def test_engines_get_a_budget_and_a_deadline_and_status_shows_both() -> None:
    desk = Desk()
    desk.sheds()
    await told(desk)
    held, status = desk.held(), shown(desk)
    assert held.step is not None
    assert held.shed == Shed(ttft_deadline_seconds=2.0, margin=0.85)
    assert held.step.seconds == pytest.approx(0.92 * 0.06)
    assert (status.step_budget, status.first_token_deadline, status.first_token_margin) == ("55.2ms", "2s", "0.85")
    assert status.step_model is not None
    assert status.step_model.id == held.step.model.id
    assert desk.condition(TUNED) == ("True", "Applied")
    assert "steps of 55.2ms, first tokens by 0.85 of 2s, else 503" in desk.message(TUNED)
    newest = desk.service.status.tuning.decisions[0]
    assert newest.trigger.endswith("what would miss ttft is refused")
    assert newest.after.step_model is None, "five models more would hide the decisions"


def by_class(name: str, *, mode: str = "Auto") -> dict[str, Any]:
    """What a user asks for whose one class alone has a deadline."""
    first, token = WITH_DEADLINE
    tuning = {"mode": mode, "overload": "Shed", "classes": [{"name": name}]}
    return {"objectives": [first | {"class": name}, token], "tuning": tuning}


@in_virtual_time
async def test_a_class_that_has_another_name_takes_its_deadline_along() -> None:
    desk = Desk()
    desk.edit(**by_class("chat"))
    seat = await told(desk)
    held = desk.held()
    assert held.classes is not None
    assert held.refusal_deadlines["chat"] == pytest.approx(0.85 * 2.0)
    desk.edit(**by_class("talk", mode="Recommend"))
    for _ in range(3):
        await desk.tick(seat, signals(now()))
    assert desk.held().shed is None, "what is live in Recommend is left alone, but for what nobody wants"
    desk.edit(**by_class("talk"))
    for _ in range(30):
        await desk.tick(seat, signals(now()))
    assert desk.held().refusal_deadlines["talk"] == pytest.approx(0.85 * 2.0)


@in_virtual_time
async def test_a_leader_that_finds_a_class_that_is_gone_takes_over_all_the_same() -> None:
    desk = Desk()
    desk.edit(**by_class("chat"))
    await told(desk)
    desk.edit(**by_class("talk"))
    desk.epoch = 2
    again = desk.seat()
    for _ in range(30):
        await desk.tick(again, signals(now()))
    assert desk.held().epoch == 2
    assert desk.held().refusal_deadlines["talk"] == pytest.approx(0.85 * 2.0)


@in_virtual_time
async def test_the_next_leader_pushes_and_writes_nothing_new() -> None:
    desk = Desk()
    desk.sheds()
    await told(desk)
    before, written = desk.held(), len(desk.written)
    desk.epoch = 2
    again = desk.seat()
    for _ in range(10):
        await desk.tick(again, signals(now()))
    assert desk.held() == before.model_copy(update={"epoch": 2})
    assert [s["tuning"]["setpoint"] for s in desk.written[written:]] == []


@in_virtual_time
async def test_a_leader_that_sees_nothing_keeps_the_gate() -> None:
    desk = Desk()
    desk.sheds()
    await told(desk)
    before, desk.epoch = desk.held(), 2
    again = desk.seat()
    for _ in range(10):
        await desk.tick(again, AWAY, AWAY)
    assert (desk.held().step, desk.held().shed) == (before.step, before.shed)


@in_virtual_time
async def test_queue_opens_the_gate_without_waiting_for_a_tick() -> None:
    desk = Desk()
    desk.sheds()
    seat = await told(desk)
    desk.sheds(overload="Queue")
    desk.muster(seat)
    await seat.keep()
    assert desk.held().shed is None
    assert desk.held().on_time is not None, "the order stays"
    assert shown(desk).step_budget == "55.2ms", "and so does the time of a step"
    assert shown(desk).first_token_deadline is None
    assert "no request is refused any more" in desk.service.status.tuning.decisions[0].trigger


@in_virtual_time
async def test_another_status_of_refusals_is_live_without_waiting_for_a_tick() -> None:
    desk = Desk()
    desk.sheds()
    seat = await told(desk)
    before = desk.held()
    assert before.shed is not None
    assert (before.shed.refusal_status, shown(desk).refusal_status) == (503, 503)
    desk.sheds(status=429)
    desk.muster(seat)
    await seat.keep()
    assert desk.held().shed == before.shed.model_copy(update={"refusal_status": 429})
    assert (desk.held().limits, desk.held().step) == (before.limits, before.step)
    assert shown(desk).refusal_status == 429
    assert "first tokens by 0.85 of 2s, else 429" in desk.message(TUNED)
    assert desk.service.status.tuning.decisions[0].trigger == "requests are refused with 429 from now on"


@in_virtual_time
async def test_the_next_leader_keeps_the_status_of_refusals() -> None:
    desk = Desk()
    desk.sheds(status=429)
    await told(desk)
    before, desk.epoch = desk.held(), 2
    await desk.tick(desk.seat(), AWAY, AWAY)
    assert desk.held() == before.model_copy(update={"epoch": 2})


@in_virtual_time
async def test_recommend_shows_the_gate_and_leaves_the_engines_alone() -> None:
    desk = Desk()
    desk.sheds(mode="Recommend")
    await told(desk)
    assert (desk.held().step, desk.held().shed) == (None, None)
    recommended = desk.service.status.tuning.recommended
    assert recommended is not None
    assert (recommended.step_budget, recommended.first_token_deadline) == ("55.2ms", "2s")
    assert shown(desk).step_budget is None


@in_virtual_time
async def test_a_gate_that_recommend_found_live_goes_when_nobody_wants_it() -> None:
    desk = Desk()
    desk.sheds()
    seat = await told(desk)
    desk.sheds(mode="Recommend")
    await desk.tick(seat, signals(now()))
    assert desk.held().shed is not None, "what is live is left alone"
    desk.sheds(mode="Recommend", overload="Queue")
    await desk.tick(seat, signals(now()))
    assert desk.held().shed is None


@in_virtual_time
async def test_disabled_sends_neither() -> None:
    desk = Desk()
    desk.sheds()
    seat = await told(desk)
    desk.sheds(mode="Disabled")
    await desk.tick(seat, signals(now()))
    assert (desk.held().step, desk.held().shed) == (None, None)
    assert desk.engines.limits() == (128, 2048)


@in_virtual_time
async def test_an_engine_that_cannot_refuse_is_named_and_told_the_rest() -> None:
    desk = Desk(engines=Engines("pod-1", ungated="no such method in this vLLM"))
    desk.sheds()
    await told(desk)
    assert desk.held().shed is None
    assert shown(desk).step_budget == "55.2ms", "limits and steps are the same"
    assert desk.held().limits.given()
    assert shown(desk).first_token_deadline is None
    assert desk.condition(TUNED) == ("False", "KnobUnsupported")
    assert desk.message(TUNED) == "overload Shed: no such method in this vLLM"


@in_virtual_time
async def test_a_plugin_that_is_older_than_the_gate_is_taken_to_have_none() -> None:
    desk = Desk()
    desk.engines.untold = True
    desk.sheds()
    await told(desk)
    assert desk.held().shed is None
    assert desk.condition(TUNED) == ("False", "KnobUnsupported")
    assert "the plugin does not say that it can" in desk.message(TUNED)


@in_virtual_time
async def test_one_engine_that_becomes_plain_vllm_takes_nothing_from_the_others() -> None:
    desk = Desk(engines=Engines("pod-1", "pod-2"))
    desk.sheds()
    seat = await told(desk)
    before = desk.held("pod-1")
    desk.engines.plain.add("pod-2")
    desk.engines.held["pod-2"] = None
    for _ in range(80):
        await desk.tick(seat, signals(now()))
    assert (desk.held("pod-1").step, desk.held("pod-1").shed) == (before.step, before.shed)
    assert desk.held("pod-1").limits == before.limits
    assert desk.held("pod-2").objectives == before.objectives, "its requests are counted still"
    assert desk.held("pod-2").limits == Limits()
    assert desk.condition(TUNED) == ("False", "EngineUngoverned")


@in_virtual_time
async def test_an_engine_that_cannot_fit_steps_gets_neither() -> None:
    desk = Desk(engines=Engines("pod-1", unsupported={Knob.MAX_NUM_SCHEDULED_TOKENS: "a step is its batch"}))
    desk.sheds()
    await told(desk)
    assert (desk.held().step, desk.held().shed) == (None, None)
    assert desk.condition(TUNED) == ("False", "KnobUnsupported")


@in_virtual_time
async def test_an_engine_that_cannot_refuse_lacks_nothing_where_all_wait() -> None:
    desk = Desk(engines=Engines("pod-1", ungated="no such method in this vLLM"))
    await told(desk)
    assert desk.condition(TUNED) == ("True", "Applied")


def test_budget_and_deadline_are_series_while_they_are_told() -> None:
    registry = CollectorRegistry()
    metrics, limits = BrainMetrics(registry), Limits(max_num_active_seqs=8, max_num_scheduled_tokens=512)
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
