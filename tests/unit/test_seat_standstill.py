"""One service whose engines let nobody in though places are free: it is named, and what worked before comes back."""

from __future__ import annotations

from typing import Any

from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.tuning.filters.stall import FALL_BACK_HOLD
from flyball_operator.tuning.observe.signals import Signals
from support.seats import Desk, Engines
from support.tuning import signals, step_window
from support.virtual_time import in_virtual_time, now

TUNED = ConditionType.TUNED


def busy() -> Signals:
    return signals(now())


def slower() -> Signals:
    """Steps that take twice as long: the law wants other limits."""
    return signals(now(), window=step_window(start=now() - 15, end=now(), slower=2.0))


async def seconds(desk: Desk, seat: Any, count: float, seen: Any = busy) -> None:
    for _ in range(int(count / 5)):
        await desk.tick(seat, seen())


def reasons(desk: Desk) -> list[str]:
    return [decision.trigger for decision in desk.service.status.tuning.decisions]


@in_virtual_time
async def test_what_worked_before_comes_back_and_is_held() -> None:
    desk = Desk()
    seat = desk.seat()
    await seconds(desk, seat, 180)
    worked = desk.engines.limits()
    while desk.engines.limits() == worked:
        await seconds(desk, seat, 5, slower)
    desk.engines.stuck = {"pod-1"}
    await seconds(desk, seat, 60, slower)
    assert desk.condition(TUNED) == ("True", "Applied"), "the engine's own watchdog goes first"
    await seconds(desk, seat, 60, slower)
    assert desk.condition(TUNED) == ("False", "AdmissionStuck")
    assert "pod-1: requests wait, places are free" in desk.message(TUNED)
    assert desk.engines.limits() == worked
    assert "stand still on pod-1 with places free: what worked before" in reasons(desk)[0]
    desk.engines.stuck = set()
    await seconds(desk, seat, FALL_BACK_HOLD - 120, slower)
    assert desk.engines.limits() == worked
    assert desk.condition(TUNED) == ("True", "Applied")
    assert desk.events.count("AdmissionStuck") == 1
    await seconds(desk, seat, 240, slower)
    assert desk.engines.limits() != worked, "the law may try again"


@in_virtual_time
async def test_where_that_is_what_stands_still_the_gate_opens_and_limits_are_those_of_the_start() -> None:
    desk = Desk()
    desk.sheds()
    seat = desk.seat()
    await seconds(desk, seat, 180)
    assert desk.held().shed is not None
    desk.engines.stuck = {"pod-1"}
    await seconds(desk, seat, 120)
    assert (desk.engines.limits(), desk.held().shed, desk.held().step) == ((128, 2048), None, None)
    assert "start values" in reasons(desk)[0]
    changes = len(reasons(desk))
    await seconds(desk, seat, 3 * FALL_BACK_HOLD)
    assert len(reasons(desk)) == changes, "there is nothing else to fall back to"


@in_virtual_time
async def test_one_of_many_pods_is_named_and_the_policy_left_alone() -> None:
    desk = Desk(engines=Engines("pod-1", "pod-2", "pod-3"))
    seat = desk.seat()
    await seconds(desk, seat, 180)
    held = desk.held().generation
    desk.engines.stuck = {"pod-2"}
    await seconds(desk, seat, 180)
    assert desk.condition(TUNED) == ("False", "AdmissionStuck")
    assert desk.message(TUNED).startswith("pod-2: ")
    assert desk.held().generation == held


@in_virtual_time
async def test_a_core_that_makes_no_step_is_helped_by_no_policy() -> None:
    desk = Desk()
    seat = desk.seat()
    await seconds(desk, seat, 180)
    held = desk.held().generation
    desk.engines.stuck = desk.engines.frozen = {"pod-1"}
    await seconds(desk, seat, 180)
    assert desk.condition(TUNED) == ("False", "AdmissionStuck")
    assert desk.message(TUNED).endswith("no step was made")
    assert desk.held().generation == held


@in_virtual_time
async def test_the_start_values_that_a_watchdog_put_in_force_stay() -> None:
    desk = Desk()
    seat = desk.seat()
    await seconds(desk, seat, 180)
    held = desk.held().generation
    desk.engines.stuck = {"pod-1"}
    desk.engines.trip()
    await seconds(desk, seat, 180)
    assert desk.condition(TUNED) == ("False", "WatchdogTripped")
    assert (desk.engines.limits(), desk.held().generation) == ((128, 2048), held)


@in_virtual_time
async def test_while_it_is_paused_it_is_only_said() -> None:
    desk = Desk()
    seat = desk.seat()
    await seconds(desk, seat, 180)
    held = desk.held().generation
    desk.annotate(tuning="Paused")
    desk.engines.stuck = {"pod-1"}
    await seconds(desk, seat, 240)
    assert desk.held().generation == held
    assert "pod-1: requests wait, places are free" in desk.message(TUNED)
