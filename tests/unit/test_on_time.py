"""Who of a queue can be on time, and who is served first."""

from __future__ import annotations

import math

import pytest

from flyball_engine.batching.on_time import QUIET, OnTimeOrder
from flyball_engine.batching.prefill_rate import PrefillRate, SlotTurnover
from flyball_engine.batching.shares import SHARED_AFTER
from flyball_engine.batching.step_order import StepOrder, step_order
from flyball_engine.batching.step_token_budgeter import prefill_rate
from flyball_engine.model import StepModel

#: A millisecond per token.
RATE = PrefillRate(per_token=0.001)
#: When those that came at first have waited for their share.
LATER = SHARED_AFTER + 9.0


def an_order(*, late_share: float = 0.1) -> OnTimeOrder[str]:
    return OnTimeOrder(late_share=late_share)


def queued(order: OnTimeOrder[str], **requests: tuple[float, float]) -> OnTimeOrder[str]:
    """Requests with their deadlines and tokens, that came one after the other."""
    for number, (name, (deadline, tokens)) in enumerate(requests.items()):
        order.add(name, arrived=float(number), deadline=deadline, tokens=tokens)
    return order


def judged(order: OnTimeOrder[str], *, now: float = 0.0, rate: PrefillRate = RATE) -> list[str]:
    """Look at all of them; their order then."""
    order.judge(rate, now, most=1000)
    return names(order)


def names(order: OnTimeOrder[str]) -> list[str]:
    return [pending.request for pending in order.in_order()]


def test_who_has_the_first_deadline_is_served_first() -> None:
    assert judged(queued(an_order(), late=(9.0, 10), soon=(1.0, 10), then=(5.0, 10))) == ["soon", "then", "late"]


def test_equal_deadlines_are_served_as_they_came() -> None:
    order = queued(an_order(), first=(9.0, 10), second=(9.0, 10), third=(9.0, 10))
    assert judged(order) == ["first", "second", "third"]


def test_where_not_all_can_be_on_time_the_longest_is_given_up() -> None:
    order = queued(an_order(), long=(1.0, 900), short=(1.1, 300), shorter=(1.2, 200))
    assert judged(order) == ["short", "shorter", "long"]
    assert (order.behind(), order.moved_behind) == (1, 1)


def test_who_comes_now_waits_for_all_that_can_be_on_time_and_for_nobody_else() -> None:
    order = queued(an_order(), long=(1.0, 900), short=(1.1, 300), shorter=(1.2, 200))
    judged(order)
    assert order.wait == pytest.approx(0.5)
    order.discard("short")
    judged(order)
    assert order.wait == pytest.approx(1.1), "the longest is back in time"
    order.discard("long")
    order.discard("shorter")
    judged(order)
    assert order.wait == 0.0


def test_who_comes_while_no_slot_is_free_waits_for_one_at_least() -> None:
    full = RATE._replace(free_slots=0, per_slot=2.0)
    order = an_order()
    judged(order, rate=full)
    assert order.wait == 2.0
    queued(order, soon=(9.0, 500))
    judged(order, rate=full)
    assert order.wait == 4.0
    order.progressed("soon", tokens=500, attention=0.0)
    judged(order, rate=full)
    assert order.wait == 2.0


def test_what_cannot_be_on_time_alone_costs_nobody_else_its_place() -> None:
    order = queued(an_order(), hopeless=(0.5, 600), good=(0.6, 500))
    assert judged(order) == ["good", "hopeless"]


def test_who_is_refused_before_long_has_no_share_while_requests_are_refused() -> None:
    order = an_order(late_share=0.5)
    for name, refusable in (("first", True), ("second", False)):
        order.add(name, arrived=0.0, deadline=math.inf, tokens=500, refusable=refusable)
    order.add("in time", arrived=0.0, deadline=10.0, tokens=500)
    order.refuses = True
    order.served(tokens=100, behind={}, most=100, now=0.0)
    assert [one.request for one in order.in_order()] == ["second", "in time", "first"]
    order.discard("second")
    assert order.owed is None
    order.stays("first")
    assert order.owed is order.get("first")


def test_where_nobody_is_refused_all_share() -> None:
    order = an_order(late_share=0.5)
    order.add("behind", arrived=0.0, deadline=math.inf, tokens=500, refusable=True)
    order.add("in time", arrived=0.0, deadline=10.0, tokens=500)
    order.served(tokens=100, behind={}, most=100, now=LATER)
    assert order.owed is order.get("behind")


def test_the_least_weight_per_second_is_given_up() -> None:
    order = an_order()
    order.add("dear", arrived=0.0, deadline=1.0, tokens=900, weight=10.0)
    order.add("cheap", arrived=0.0, deadline=1.1, tokens=300)
    assert judged(order) == ["dear", "cheap"]
    assert order.behind() == 1


def test_who_was_given_up_comes_back_when_there_is_time() -> None:
    order = queued(an_order(), long=(1.0, 900), short=(1.0, 300))
    assert judged(order) == ["short", "long"]
    order.discard("short")
    assert judged(order) == ["long"]
    assert (order.behind(), order.moved_behind) == (0, 1)


def test_who_was_given_up_and_is_in_time_after_all_is_counted() -> None:
    order = queued(an_order(), long=(1.0, 900), short=(1.0, 300), other=(1.0, 800))
    judged(order)
    order.started("short", now=0.3)
    order.started("long", now=0.99)
    order.started("other", now=1.01)
    assert (order.moved_behind, order.in_time_after_all) == (2, 1)


def test_whose_deadline_has_passed_stays_behind() -> None:
    order = queued(an_order(), late=(1.0, 10), good=(9.0, 10))
    assert judged(order, now=2.0) == ["good", "late"]
    assert judged(order, now=3.0) == ["good", "late"]


def test_work_without_a_deadline_is_served_behind_and_counts_as_nobody_late() -> None:
    order = queued(an_order(), batch=(math.inf, 10), good=(9.0, 10))
    assert judged(order) == ["good", "batch"]
    assert order.moved_behind == 0


def test_those_behind_are_served_as_they_came() -> None:
    order = queued(an_order(), b=(0.2, 900), a=(0.1, 900), good=(9.0, 10))
    assert judged(order) == ["good", "b", "a"]


def test_a_queue_is_judged_in_parts_and_the_set_is_made_when_all_were_looked_at() -> None:
    order = queued(an_order(), **{f"r{number}": (1.0, 400.0) for number in range(10)})
    for _ in range(2):
        order.judge(RATE, 0.0, most=4)
        assert order.behind() == 0
    order.judge(RATE, 0.0, most=4)
    assert order.behind() == 8


def test_many_that_change_places_at_once_stand_where_one_after_the_other_would() -> None:
    """Every second is of a class that keeps a share, which has the oldest of it."""
    order, slow = an_order(late_share=0.0), PrefillRate(per_token=1.0)
    order.keep(0.0, {"a": 0.1})
    for number in range(300):
        of_class, deadline = ("", "a")[number % 2], 500.0 - number
        order.add(f"{number:03}", arrived=float(number), deadline=deadline, tokens=2, of_class=of_class)
    came = names(order)[::-1]
    for _ in range(4):
        order.judge(slow, 0.0, most=1000)
    on_time = names(order)[: -order.behind()]
    assert 0 < order.behind() < 300
    assert on_time == sorted(on_time, reverse=True)
    assert names(order)[len(on_time) :] == [name for name in came if name not in on_time]
    order.served(tokens=100, behind={}, most=100, now=0.0)
    assert order.owed is not None
    assert order.owed.request == next(name for name in came if name not in on_time and int(name) % 2)
    for _ in range(4):
        order.judge(RATE, 0.0, most=1000)
    assert order.behind() == 0
    assert names(order) == came[::-1]


def test_who_leaves_while_the_queue_is_judged_is_not_moved() -> None:
    order = queued(an_order(), **{f"r{number}": (1.0, 400.0) for number in range(10)})
    order.judge(RATE, 0.0, most=8)
    order.discard("r9")
    order.discard("r5")
    judged(order)
    assert len(names(order)) == 8
    assert order.behind() == 6


def test_who_comes_while_the_queue_is_judged_counts_as_on_time() -> None:
    order = queued(an_order(), **{f"r{number}": (1.0, 400.0) for number in range(10)})
    order.judge(RATE, 0.0, most=8)
    order.add("new", arrived=9.0, deadline=9.0, tokens=10)
    assert judged(order)[:3] == ["r0", "r1", "new"]


def test_who_finds_no_slot_in_time_is_given_up_and_who_has_one_is_not() -> None:
    order = queued(an_order(), begun=(1.0, 10), first=(1.0, 10), second=(1.0, 10))
    order.progressed("begun", tokens=10, attention=0.0)
    full = PrefillRate(per_token=0.001, free_slots=0, per_slot=0.6)
    assert judged(order, rate=full) == ["begun", "first", "second"]
    assert order.behind() == 1


def test_the_memory_of_free_slots_is_spent_once() -> None:
    order = queued(an_order(), **{f"r{number}": (1.0, 10.0) for number in range(4)})
    judged(order, rate=PrefillRate(per_token=0.001, free_slots=2, per_slot=0.9))
    assert order.behind() == 1, "the third gets the slot that comes free in time"


def test_attention_counts() -> None:
    order = an_order()
    order.add("deep", arrived=0.0, deadline=1.0, tokens=100, attention=1e6)
    judged(order, rate=PrefillRate(per_token=0.001, per_attention=1e-6))
    assert order.behind() == 1


def test_all_deadlines_are_moved_together() -> None:
    order = queued(an_order(), long=(1.0, 900), short=(1.1, 300))
    judged(order)
    order.redate(lambda one: (one.deadline + 0.5, 1.0))
    assert judged(order) == ["long", "short"]
    assert order.behind() == 0
    order.redate(lambda one: (one.deadline - 0.5, 1.0))
    assert judged(order) == ["short", "long"]


def test_the_oldest_of_those_behind_gets_its_share() -> None:
    order = queued(an_order(), old=(0.1, 5_000), young=(0.1, 5_000), good=(99.0, 100))
    judged(order)
    seen = []
    for _ in range(100):
        first = names(order)[0]
        seen.append(first)
        order.served(tokens=100, behind={"": 100 * (first != "good")}, most=100, now=LATER)
    assert seen.count("old") == pytest.approx(10, abs=1)
    assert "young" not in seen


def test_the_share_begins_once_the_oldest_has_waited_for_a_minute() -> None:
    order = queued(an_order(late_share=0.5), old=(0.1, 5_000), young=(0.1, 5_000), good=(1e9, 100))
    judged(order)
    order.served(tokens=100, behind={}, most=100, now=SHARED_AFTER - 0.01)
    assert names(order) == ["good", "old", "young"]
    order.served(tokens=100, behind={}, most=100, now=SHARED_AFTER)
    assert names(order) == ["old", "good", "young"]
    order.discard("old")
    assert names(order) == ["good", "young"], "the next has not waited as long"


def test_what_those_behind_get_while_nobody_else_wants_it_is_not_held_against_them() -> None:
    order = queued(an_order(), old=(0.1, 5_000), good=(99.0, 100))
    judged(order)
    for _ in range(1000):
        order.served(tokens=100, behind={"": 90}, most=100, now=LATER)
    steps = 0
    while order.owed is None:
        steps += 1
        order.served(tokens=100, behind={}, most=100, now=LATER)
    assert steps <= 11, "a step's tokens at a tenth of each"


@pytest.mark.parametrize("of_class", [0.03, 0.07, 0.1, 0.25])
def test_the_share_of_a_class_leaves_the_late_theirs(of_class: float) -> None:
    order = queued(an_order(late_share=0.05), late=(0.1, 5_000), good=(1e9, 100))
    order.keep(0.05, {"batch": of_class})
    order.add("batch", arrived=5.0, deadline=math.inf, tokens=1e9, of_class="batch")
    judged(order)
    seen = []
    for _ in range(400):
        seen.append(names(order)[0])
        behind = {"late": {"": 100}, "batch": {"batch": 100}}.get(seen[-1], {})
        order.served(tokens=100, behind=behind, most=100, now=LATER)
    assert seen.count("late") == pytest.approx(20, abs=2)
    assert seen.count("batch") == pytest.approx(400 * of_class, abs=2)


def test_a_small_step_after_large_ones_charges_the_late_with_nothing() -> None:
    order = queued(an_order(late_share=0.1), late=(0.1, 5_000), good=(1e9, 100))
    order.keep(0.1, {"batch": 0.05})
    order.add("batch", arrived=5.0, deadline=math.inf, tokens=1e9, of_class="batch")
    judged(order)
    # The class got all of a large step, and owes much of it.
    order.served(tokens=2048, behind={"batch": 2048}, most=2048, now=LATER)
    assert names(order)[0] == "late"
    order.served(tokens=300, behind={}, most=300, now=LATER)
    assert names(order)[0] == "late", "it is owed a tenth of both steps, and had nothing"


def test_who_joins_since_nobody_on_time_waits_is_owed_all_that_it_needs() -> None:
    order = queued(an_order(), late=(0.1, 5_000))
    judged(order)
    order.served(tokens=0, behind={}, most=100, now=LATER - QUIET)
    assert order.owed is order.get("late")
    assert order.owes_all


def test_with_no_share_nobody_behind_comes_first() -> None:
    order = queued(an_order(late_share=0.0), old=(0.1, 5_000), good=(99.0, 100))
    judged(order)
    for _ in range(100):
        order.served(tokens=100, behind={}, most=100, now=LATER)
    assert names(order) == ["good", "old"]
    assert not order.owes_all


def test_the_longest_wait_is_that_of_the_oldest_behind() -> None:
    order = queued(an_order(), good=(99.0, 10), old=(0.1, 500), young=(0.1, 500))
    judged(order)
    assert order.longest_wait(11.0) == 10.0
    assert an_order().longest_wait(11.0) == 0.0


def test_nothing_is_kept_of_those_that_are_gone() -> None:
    order = queued(an_order(), late=(0.1, 500), good=(9.0, 10), batch=(math.inf, 10))
    judged(order)
    for name in ("late", "good", "batch", "stranger"):
        order.discard(name)
    assert (len(order), names(order), order.behind()) == (0, [], 0)


def test_a_cleared_order_keeps_its_counts() -> None:
    order = queued(an_order(), late=(0.1, 500), good=(9.0, 10))
    judged(order)
    order.clear()
    assert (len(order), judged(order), order.moved_behind) == (0, [], 1)


def step(order: OnTimeOrder[str], *begun: str, tokens: int, slots: int = 99, **least: int) -> StepOrder[str]:
    return step_order(order.in_order(), begun, tokens=tokens, slots=slots, most=8, **least)


def test_prompts_join_until_the_tokens_are_spoken_for() -> None:
    order = queued(an_order(), a=(1.0, 60), b=(2.0, 60), c=(3.0, 60))
    assert step(order, tokens=100) == StepOrder(joining=("a", "b"))


def test_no_more_join_than_there_are_slots() -> None:
    order = queued(an_order(), a=(1.0, 10), b=(2.0, 10), c=(3.0, 10))
    assert step(order, tokens=100, slots=1).joining == ("a",)
    assert step(order, tokens=100, slots=0).joining == ()


def test_who_has_begun_and_comes_first_goes_on() -> None:
    order = queued(an_order(), begun=(1.0, 60), new=(2.0, 60))
    assert step(order, "begun", tokens=100) == StepOrder(running=("begun",), joining=("new",))


def test_who_has_begun_and_comes_after_one_that_joins_is_parked() -> None:
    order = queued(an_order(), new=(1.0, 60), begun=(2.0, 600))
    assert step(order, "begun", tokens=60) == StepOrder(parked=("begun",), joining=("new",))


def test_where_tokens_are_left_it_runs_behind_a_cap_that_leaves_others_theirs() -> None:
    order = queued(an_order(), new=(1.0, 60), begun=(2.0, 600), last=(3.0, 500))
    told = step(order, "begun", "last", tokens=160)
    assert told == StepOrder(running=("begun",), parked=("last",), joining=("new",), threshold=100)


def test_a_cap_below_what_an_engine_can_run_with_is_none() -> None:
    order = queued(an_order(), new=(1.0, 60), begun=(2.0, 600))
    assert step(order, "begun", tokens=130, least_cap=71) == StepOrder(parked=("begun",), joining=("new",))
    assert step(order, "begun", tokens=130, least_cap=70).threshold == 70


def test_a_cap_that_would_cut_others_is_none() -> None:
    order = queued(an_order(), new=(1.0, 90), begun=(2.0, 600))
    assert step(order, "begun", tokens=100) == StepOrder(parked=("begun",), joining=("new",))


def test_where_nobody_joins_nobody_is_parked() -> None:
    order = queued(an_order(), a=(1.0, 60), b=(2.0, 600))
    assert step(order, "a", "b", tokens=50) == StepOrder(running=("a", "b"))


def test_who_has_begun_and_is_far_behind_is_not_looked_for() -> None:
    order = queued(an_order(), begun=(500.0, 1e6), **{f"r{number}": (1.0 + number, 1.0) for number in range(100)})
    told = step(order, "begun", tokens=1000)
    assert told.joining == tuple(f"r{number}" for number in range(8))
    assert told.running + told.parked == ("begun",)


def test_slots_that_come_free_are_counted_over_the_last_seconds() -> None:
    turnover = SlotTurnover()
    assert turnover.per_slot == 0.0
    for _ in range(1000):
        turnover.observe(0.1, 1)
    assert turnover.per_slot == pytest.approx(0.1)
    for _ in range(1000):
        turnover.observe(0.1, 0)
        turnover.observe(0.1, 1)
    assert turnover.per_slot == pytest.approx(0.2, rel=0.01)


def test_what_a_step_costs_anyway_is_spread_over_the_tokens_that_fit_into_it() -> None:
    model = StepModel(t0=0.01, h=0.002, c1=1e-4, c2=1e-4, beta=1e-5, g=1e-9, kappa=1)
    asked = {"bias": 1.0, "decodes": 10, "decode_tokens": 10, "tokens": 8192, "least_chunk": 16}
    rate = prefill_rate(model, budget=0.05, **asked)  # type: ignore[arg-type] # numbers
    chunk = model.largest_chunk(seconds=0.05, tokens=10, decodes=10)
    assert chunk * rate.per_token + rate.per_attention * chunk**2 / 2 == pytest.approx(0.05, rel=0.01)
    slow = prefill_rate(model, budget=0.05, **asked | {"bias": 2.0})  # type: ignore[arg-type]
    assert slow.per_token > 2 * rate.per_token, "smaller chunks beside it"
    capped = prefill_rate(model, budget=60.0, **asked | {"tokens": 110})  # type: ignore[arg-type]
    assert capped.per_token == pytest.approx(
        model.step_seconds(tokens=110, decodes=10, prefills=True, attention=0) / 100
    )


def test_a_model_that_charges_nothing_knows_of_no_batch_that_slows_prompts_down() -> None:
    free = StepModel(t0=0.0, h=0.0, c1=0.0, c2=0.0, beta=0.0, g=0.0, kappa=1)
    rate = prefill_rate(free, budget=0.05, bias=1.0, decodes=10, decode_tokens=10, tokens=8192, least_chunk=16)
    assert (rate.per_token, rate.of_idle) == (0.0, 1.0)
