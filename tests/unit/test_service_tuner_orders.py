"""One service whose prompts are served in the on-time order: what its engines and its status are told."""

from __future__ import annotations

import pytest

from flyball_engine.contract import OnTime, OrderKnob
from flyball_lab.harness.service_tuners import AWAY, Engines, Harness, shown, tuned_for
from flyball_lab.harness.tuning import signals
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import ConditionType, OrderStatus
from flyball_operator.tuning.observe.signals import OrderOutcome

TUNED = ConditionType.TUNED
ORDER = OnTime(first_token_deadline_seconds=2.0, margin=0.85)


def behind(moved: float, in_time: float, wait: float) -> OrderOutcome:
    return OrderOutcome(moved_behind=moved, in_time_after_all=in_time, longest_wait=wait)


def moved_behind(harness: Harness) -> set[int]:
    """What was ever written of those that were moved behind."""
    orders = [part["tuning"].get("order") for part in harness.written]
    return {order["movedBehind"] for order in orders if order is not None}


@in_virtual_time
async def test_engines_get_the_order_and_status_shows_it() -> None:
    harness = Harness()
    harness.orders()
    await tuned_for(harness)
    assert harness.held().on_time == ORDER
    assert harness.held().step is not None, "the order needs the model"
    status = shown(harness)
    assert (status.on_time_deadline, status.on_time_margin) == ("2s", "0.85")
    assert (status.step_budget, status.first_token_deadline) == ("55.2ms", None)
    assert harness.condition(TUNED) == ("True", "Applied")
    assert "prompts that can be on time first (by 0.85 of 2s)" in harness.message(TUNED)
    (begun,) = [one for one in harness.service.status.tuning.decisions if one.before.on_time_deadline is None][:1]
    assert begun.after.on_time_deadline == "2s"


@in_virtual_time
async def test_status_says_what_the_order_did_and_not_anew_for_noise() -> None:
    harness = Harness(ordered=behind(140, 42, 28.0))
    harness.orders()
    tuner = await tuned_for(harness)
    assert harness.service.status.tuning.order == OrderStatus(
        moved_behind=140, in_time_after_all=42, longest_wait="28s", window="5m"
    )
    for tick in range(40):
        harness.ordered = behind(140 + tick % 3 * 10, 42, 28.0 - tick % 2)
        await harness.tick(tuner, signals(now()))
    assert moved_behind(harness) == {140}
    harness.ordered = behind(300, 42, 28.0)
    for _ in range(15):
        await harness.tick(tuner, signals(now()))
    assert moved_behind(harness) == {140, 300}


@in_virtual_time
async def test_the_next_leader_goes_on_with_what_status_says_of_the_order() -> None:
    harness = Harness(ordered=behind(140, 42, 28.0))
    harness.orders()
    await tuned_for(harness)
    harness.epoch, harness.ordered = 2, behind(150, 40, 27.0)
    again = harness.tuner()
    for _ in range(20):
        await harness.tick(again, signals(now()))
    assert moved_behind(harness) == {140}


@in_virtual_time
async def test_of_an_order_that_is_not_in_force_nothing_is_said() -> None:
    harness = Harness(ordered=behind(140, 42, 28.0))
    harness.orders()
    tuner = await tuned_for(harness)
    harness.orders(order="Arrival")
    await harness.tick(tuner, signals(now()))
    assert harness.service.status.tuning.order is None


@in_virtual_time
async def test_it_is_the_default_where_an_objective_bounds_the_first_token() -> None:
    harness = Harness()
    harness.orders()
    harness.edit(tuning={})
    await tuned_for(harness)
    assert harness.held().on_time == ORDER


@in_virtual_time
async def test_the_next_leader_pushes_the_same_though_it_sees_nothing() -> None:
    harness = Harness()
    harness.orders()
    await tuned_for(harness)
    before, harness.epoch = harness.held(), 2
    again = harness.tuner()
    for _ in range(10):
        await harness.tick(again, AWAY, AWAY)
    assert harness.held() == before.model_copy(update={"epoch": 2})


@in_virtual_time
async def test_arrival_gives_vllms_order_back_without_waiting_for_a_tick() -> None:
    harness = Harness()
    harness.orders()
    tuner = await tuned_for(harness)
    harness.orders(order="Arrival")
    harness.update_pods(tuner)
    await tuner.keep()
    assert harness.held().on_time is None
    assert shown(harness).step_budget == "55.2ms", "steps are held to their time all the same"
    assert "order of arrival" in harness.service.status.tuning.decisions[0].trigger
    harness.orders()
    await harness.tick(tuner, signals(now()))
    assert harness.held().on_time == ORDER


@pytest.mark.parametrize("mode", ["Recommend", "Disabled"])
@in_virtual_time
async def test_the_other_modes_leave_vllms_order(mode: str) -> None:
    harness = Harness()
    harness.orders()
    tuner = await tuned_for(harness)
    harness.orders(mode=mode)
    await harness.tick(tuner, signals(now()))
    assert harness.held().on_time is None
    recommended = harness.service.status.tuning.recommended
    assert (recommended is not None and recommended.on_time_deadline == "2s") is (mode == "Recommend")


@in_virtual_time
async def test_an_engine_that_cannot_order_gets_the_rest_and_tuned_says_why() -> None:
    lacking = Engines("pod-1", unsupported={OrderKnob.ON_TIME: "a padded batch takes its prompts whole"})
    harness, able = Harness(engines=lacking), Harness()
    for one in (harness, able):
        one.orders()
        await tuned_for(one)
    assert harness.held().on_time is None
    assert harness.held().limits == able.held().limits
    assert harness.condition(TUNED) == ("True", "Applied")
    assert harness.message(TUNED).endswith(
        "; prompts are served in order of arrival: a padded batch takes its prompts whole"
    )


@in_virtual_time
async def test_of_several_pods_one_that_cannot_order_keeps_the_others_alike() -> None:
    harness = Harness(engines=Engines("pod-1", "pod-2"))
    harness.orders()
    tuner = await tuned_for(harness)
    assert {harness.held(uid).on_time for uid in ("pod-1", "pod-2")} == {ORDER}
    harness.engines.plain.add("pod-2")
    harness.engines.held["pod-2"] = None
    for _ in range(80):
        await harness.tick(tuner, signals(now()))
    assert harness.held("pod-1").on_time == ORDER, "plain vLLM is no engine of ours"
    assert harness.held("pod-2").on_time is None


@in_virtual_time
async def test_a_plugin_older_than_the_order_is_tuned_without_it() -> None:
    harness = Harness()
    harness.engines.untold = True
    harness.orders()
    await tuned_for(harness)
    assert harness.held().limits.given(), "what it knows it is told"
    assert harness.held().on_time is None
    assert harness.condition(TUNED) == ("True", "Applied")
    assert harness.message(TUNED).endswith("the plugin in the pod is older than the on-time order")


@in_virtual_time
async def test_without_an_objective_that_bounds_the_first_token_nothing_lacks() -> None:
    harness = Harness(
        engines=Engines("pod-1", unsupported={OrderKnob.ON_TIME: "a padded batch takes its prompts whole"})
    )
    await tuned_for(harness)
    assert harness.condition(TUNED) == ("True", "Applied")
    assert "order" not in harness.message(TUNED)
