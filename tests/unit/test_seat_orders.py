"""One service whose prompts are served in the on-time order: what its engines and its status are told."""

from __future__ import annotations

import pytest

from flyball_engine.contract import OnTime, OrderKnob
from flyball_operator.api.v1alpha1 import ConditionType, OrderStatus
from flyball_operator.tuning.observe.signals import OrderOutcome
from support.seats import AWAY, Desk, Engines, shown, told
from support.tuning import signals
from support.virtual_time import in_virtual_time, now

TUNED = ConditionType.TUNED
ORDER = OnTime(first_token_deadline_seconds=2.0, margin=0.85)


def behind(moved: float, in_time: float, wait: float) -> OrderOutcome:
    return OrderOutcome(moved_behind=moved, in_time_after_all=in_time, longest_wait=wait)


def moved_behind(desk: Desk) -> set[int]:
    """What was ever written of those that were moved behind."""
    orders = [part["tuning"].get("order") for part in desk.written]
    return {order["movedBehind"] for order in orders if order is not None}


@in_virtual_time
async def test_engines_get_the_order_and_status_shows_it() -> None:
    desk = Desk()
    desk.orders()
    await told(desk)
    assert desk.held().on_time == ORDER
    assert desk.held().step is not None, "the order needs the model"
    status = shown(desk)
    assert (status.on_time_deadline, status.on_time_margin) == ("2s", "0.85")
    assert (status.step_budget, status.first_token_deadline) == ("55.2ms", None)
    assert desk.condition(TUNED) == ("True", "Applied")
    assert "prompts that can be on time first (by 0.85 of 2s)" in desk.message(TUNED)
    (begun,) = [one for one in desk.service.status.tuning.decisions if one.before.on_time_deadline is None][:1]
    assert begun.after.on_time_deadline == "2s"


@in_virtual_time
async def test_status_says_what_the_order_did_and_not_anew_for_noise() -> None:
    desk = Desk(ordered=behind(140, 42, 28.0))
    desk.orders()
    seat = await told(desk)
    assert desk.service.status.tuning.order == OrderStatus(
        moved_behind=140, in_time_after_all=42, longest_wait="28s", window="5m"
    )
    for tick in range(40):
        desk.ordered = behind(140 + tick % 3 * 10, 42, 28.0 - tick % 2)
        await desk.tick(seat, signals(now()))
    assert moved_behind(desk) == {140}
    desk.ordered = behind(300, 42, 28.0)
    for _ in range(15):
        await desk.tick(seat, signals(now()))
    assert moved_behind(desk) == {140, 300}


@in_virtual_time
async def test_the_next_leader_goes_on_with_what_status_says_of_the_order() -> None:
    desk = Desk(ordered=behind(140, 42, 28.0))
    desk.orders()
    await told(desk)
    desk.epoch, desk.ordered = 2, behind(150, 40, 27.0)
    again = desk.seat()
    for _ in range(20):
        await desk.tick(again, signals(now()))
    assert moved_behind(desk) == {140}


@in_virtual_time
async def test_of_an_order_that_is_not_in_force_nothing_is_said() -> None:
    desk = Desk(ordered=behind(140, 42, 28.0))
    desk.orders()
    seat = await told(desk)
    desk.orders(order="Arrival")
    await desk.tick(seat, signals(now()))
    assert desk.service.status.tuning.order is None


@in_virtual_time
async def test_it_is_the_default_where_an_objective_bounds_the_first_token() -> None:
    desk = Desk()
    desk.orders()
    desk.edit(tuning={})
    await told(desk)
    assert desk.held().on_time == ORDER


@in_virtual_time
async def test_the_next_leader_pushes_the_same_though_it_sees_nothing() -> None:
    desk = Desk()
    desk.orders()
    await told(desk)
    before, desk.epoch = desk.held(), 2
    again = desk.seat()
    for _ in range(10):
        await desk.tick(again, AWAY, AWAY)
    assert desk.held() == before.model_copy(update={"epoch": 2})


@in_virtual_time
async def test_arrival_gives_vllms_order_back_without_waiting_for_a_tick() -> None:
    desk = Desk()
    desk.orders()
    seat = await told(desk)
    desk.orders(order="Arrival")
    desk.muster(seat)
    await seat.keep()
    assert desk.held().on_time is None
    assert shown(desk).step_budget == "55.2ms", "steps are held to their time all the same"
    assert "order of arrival" in desk.service.status.tuning.decisions[0].trigger
    desk.orders()
    await desk.tick(seat, signals(now()))
    assert desk.held().on_time == ORDER


@pytest.mark.parametrize("mode", ["Recommend", "Disabled"])
@in_virtual_time
async def test_the_other_modes_leave_vllms_order(mode: str) -> None:
    desk = Desk()
    desk.orders()
    seat = await told(desk)
    desk.orders(mode=mode)
    await desk.tick(seat, signals(now()))
    assert desk.held().on_time is None
    recommended = desk.service.status.tuning.recommended
    assert (recommended is not None and recommended.on_time_deadline == "2s") is (mode == "Recommend")


@in_virtual_time
async def test_an_engine_that_cannot_order_gets_the_rest_and_tuned_says_why() -> None:
    lacking = Engines("pod-1", unsupported={OrderKnob.ON_TIME: "a padded batch takes its prompts whole"})
    desk, able = Desk(engines=lacking), Desk()
    for one in (desk, able):
        one.orders()
        await told(one)
    assert desk.held().on_time is None
    assert desk.held().limits == able.held().limits
    assert desk.condition(TUNED) == ("True", "Applied")
    assert desk.message(TUNED).endswith(
        "; prompts are served in order of arrival: a padded batch takes its prompts whole"
    )


@in_virtual_time
async def test_of_several_pods_one_that_cannot_order_keeps_the_others_alike() -> None:
    desk = Desk(engines=Engines("pod-1", "pod-2"))
    desk.orders()
    seat = await told(desk)
    assert {desk.held(uid).on_time for uid in ("pod-1", "pod-2")} == {ORDER}
    desk.engines.plain.add("pod-2")
    desk.engines.held["pod-2"] = None
    for _ in range(80):
        await desk.tick(seat, signals(now()))
    assert desk.held("pod-1").on_time == ORDER, "plain vLLM is no engine of ours"
    assert desk.held("pod-2").on_time is None


@in_virtual_time
async def test_a_plugin_older_than_the_order_is_tuned_without_it() -> None:
    desk = Desk()
    desk.engines.untold = True
    desk.orders()
    await told(desk)
    assert desk.held().limits.given(), "what it knows it is told"
    assert desk.held().on_time is None
    assert desk.condition(TUNED) == ("True", "Applied")
    assert desk.message(TUNED).endswith("the plugin in the pod is older than the on-time order")


@in_virtual_time
async def test_without_an_objective_that_bounds_the_first_token_nothing_lacks() -> None:
    desk = Desk(engines=Engines("pod-1", unsupported={OrderKnob.ON_TIME: "a padded batch takes its prompts whole"}))
    await told(desk)
    assert desk.condition(TUNED) == ("True", "Applied")
    assert "order" not in desk.message(TUNED)
