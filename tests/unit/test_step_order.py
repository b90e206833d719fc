"""Who has the prompt tokens of a step, where prompts have an order of their own."""

from __future__ import annotations

import math

from flyball_engine.batching.on_time import QUIET, OnTimeOrder
from flyball_engine.batching.prefill_rate import PrefillRate
from flyball_engine.batching.shares import SHARED_AFTER
from flyball_engine.batching.step_order import StepOrder, step_order


def test_nobody_is_parked_for_one_that_has_no_room_in_the_cache() -> None:
    order: OnTimeOrder[str] = OnTimeOrder(late_share=0.0)
    order.add("joins", arrived=1.0, deadline=2.0, tokens=500)
    order.add("begun", arrived=0.0, deadline=3.0, tokens=400)
    assert step_order(order.in_order(), ["begun"], tokens=100, slots=4, most=8, memory=499) == StepOrder(("begun",))
    parked = StepOrder(parked=("begun",), joining=("joins",))
    assert step_order(order.in_order(), ["begun"], tokens=100, slots=4, most=8, memory=500) == parked


def late(requests: int) -> OnTimeOrder[str]:
    """One that can be on time, and some whose deadline has passed."""
    order: OnTimeOrder[str] = OnTimeOrder(late_share=0.1)
    for number in range(requests):
        order.add(f"late {number}", arrived=float(number), deadline=number + 1.0, tokens=100)
    order.add("on time", arrived=9.0, deadline=10.0, tokens=100)
    order.judge(RATE, 9.0)
    return order


RATE = PrefillRate(per_token=1e-3)
BUSY = RATE._replace(of_idle=0.5)


def joining(order: OnTimeOrder[str], rate: PrefillRate) -> tuple[str, ...]:
    return step_order(order.candidates(rate, 8), [], tokens=400, slots=8, most=8).joining


def test_beside_a_small_batch_late_ones_take_what_is_left() -> None:
    assert joining(late(2), RATE) == ("on time", "late 0", "late 1")


def test_late_ones_do_not_join_a_batch_that_slows_prompts_down() -> None:
    assert joining(late(2), BUSY) == ("on time",)


def test_a_late_one_that_waited_for_a_minute_joins_any_batch_that_nobody_on_time_waits_for() -> None:
    order = late(2)
    order.served(tokens=0, behind={}, most=400, now=SHARED_AFTER)
    order.discard("on time")
    order.served(tokens=0, behind={}, most=400, now=SHARED_AFTER + QUIET - 0.01)
    assert joining(order, BUSY) == ()
    order.served(tokens=0, behind={}, most=400, now=SHARED_AFTER + QUIET)
    assert joining(order, BUSY) == ("late 0",)


def test_batch_work_joins_a_larger_batch_than_late_ones_do() -> None:
    order = late(2)
    order.add("batch", arrived=9.0, deadline=math.inf, tokens=100)
    assert joining(order, RATE._replace(of_idle=0.8)) == ("on time", "batch")
    assert joining(order, BUSY) == ("on time",)


def test_batch_work_is_not_hidden_by_late_ones_that_may_not_join() -> None:
    order = late(2)
    for number in range(100):
        order.add(f"later {number}", arrived=1.0, deadline=2.0, tokens=100)
    order.add("batch", arrived=9.0, deadline=math.inf, tokens=100)
    order.judge(RATE, 9.0, most=1000)
    assert joining(order, RATE._replace(of_idle=0.8)) == ("on time", "batch")


def test_a_late_one_that_has_begun_goes_on_beside_any_batch() -> None:
    order = late(2)
    order.progressed("late 1", tokens=50, attention=0.0)
    assert [one.request for one in order.candidates(BUSY, 8)] == ["on time", "late 1"]


def test_the_oldest_late_one_joins_any_batch_once_its_share_is_owed() -> None:
    order = late(2)
    order.served(tokens=400, behind={}, most=400, now=SHARED_AFTER)
    assert joining(order, BUSY) == ("late 0", "on time")
