"""`hack/bench law --part order`: who is served first, and who is refused, under setpoints that never move."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from flyball_lab.benches.law import order
from flyball_lab.benches.law.contenders import RunFigures
from flyball_lab.benches.law.orders import (
    BY_HAND,
    DEFAULTS,
    FIRST_COME,
    LATE_LAST,
    QUEUE,
    SHED,
    WRONGLY,
    Crowd,
    QueueDiscipline,
    crowds,
    gates,
    perfect,
)
from flyball_lab.benches.law.two_classes import TwoClasses
from flyball_lab.benches.options import Options
from flyball_lab.simulator.requests import Request

BY_NAME = {crowd.name: crowd for crowd in crowds()}
#: A minute of chats beyond what the engine carries.
OVERLOAD = replace(BY_NAME["chat, Poisson, 2 × capacity"], phases=BY_NAME["chat, Poisson, 2 × capacity"].phases[:1])


@cache
def overloaded(discipline: QueueDiscipline) -> RunFigures:
    """What comes of that minute: the same each time, and several tests ask for it."""
    return discipline.play(OVERLOAD, 1)


def test_every_kind_of_load_comes_evenly_and_in_bursts_below_and_beyond_what_is_carried() -> None:
    assert len([crowd for crowd in BY_NAME.values() if not crowd.rough]) == 3 * 2 * 4
    assert {crowd.load for crowd in BY_NAME.values()} == {0.7, 1.0, 1.3, 2.0}
    quick = crowds(quick=True)
    assert {crowd.name for crowd in quick} < BY_NAME.keys()
    assert {crowd.name.split(",")[0] for crowd in quick if crowd.load == 1.3 and crowd.bursts} == {
        "chat",
        "code",
        "long",
    }


def test_beyond_what_is_carried_the_order_serves_what_first_come_first_served_loses() -> None:
    first_come, queue = overloaded(FIRST_COME), overloaded(QUEUE)
    assert queue.goodput > 10 * first_come.goodput
    assert queue.kept > 0.5


def test_late_ones_last_keeps_less_than_who_gives_up_the_longest() -> None:
    late_last = overloaded(LATE_LAST)
    assert overloaded(FIRST_COME).goodput < late_last.goodput < overloaded(QUEUE).goodput


def test_of_those_let_in_nearly_all_keep_everything_where_the_others_are_refused() -> None:
    shed = overloaded(SHED)
    assert shed.first > 0.985
    assert shed.tokens > 0.985
    assert shed.goodput >= overloaded(QUEUE).goodput


@pytest.mark.parametrize("discipline", WRONGLY, ids=lambda discipline: discipline.name)
def test_a_wrong_model_costs_little(discipline: QueueDiscipline) -> None:
    right = SHED if discipline.sheds else QUEUE
    assert overloaded(discipline).goodput > 0.95 * overloaded(right).goodput


def test_on_a_plant_that_no_model_describes_the_order_still_keeps_what_the_engine_carries() -> None:
    rough = BY_NAME["chat, Poisson, 1.3 × capacity, rough plant"]
    assert QUEUE.play(rough, 1).goodput > 15.0
    assert SHED.play(rough, 1).first > 0.985


def an_outcome(goodput: float, *, first: float = 1.0, kept: float = 1.0) -> RunFigures:
    return RunFigures(goodput=goodput, kept=kept, changes=0, first=first)


def test_the_worst_of_all_seeds_and_scenarios_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made of outcomes alone: these were never played."""
    goodput = {FIRST_COME: 2.0, QUEUE: 9.5, SHED: 9.8, WRONGLY[0]: 9.0} | {perfect(quick=True)[0]: 10.0}
    goodput |= dict(zip(BY_HAND, (1.0, 1.9, 1.5), strict=True))

    def finish(jobs: list[order._Job], _: object) -> tuple[dict[str, RunFigures], bool]:
        worse = {job.key: 0.9 if job.seed == 2 and job.discipline == SHED else 1.0 for job in jobs}
        values = {job.key: goodput.get(job.discipline, 9.8) * worse[job.key] for job in jobs}
        return {key: an_outcome(value, first=0.99) for key, value in values.items()}, True

    monkeypatch.setattr(order, "finish", finish)
    worst = order.measure(Options(quick=True, seeds=2))["worst"]
    assert worst["queue_over_perfect_worst"] == pytest.approx(0.95)
    assert worst["shed_over_perfect_worst"] == pytest.approx(0.98 * 0.9)
    assert worst["shed_over_fixed_worst"] == pytest.approx(0.9)
    assert worst["queue_over_fcfs_overload"] == worst["queue_over_fcfs_overload_mean"] == pytest.approx(9.5 / 2.0)
    assert worst["queue_over_default_overload"] == pytest.approx(9.5 / 1.0)
    assert worst["queue_over_by_hand_overload"] == pytest.approx(9.5 / 1.9)
    assert worst["perfect_over_by_hand_overload"] == pytest.approx(10.0 / 1.9)
    assert worst["perfect_over_fixed_hard_mean"] == pytest.approx(10.0 / 9.8)
    assert worst["admitted_ok_worst"] == 0.99
    assert worst["model_error_loss_worst"] == pytest.approx(1 - 9.0 / 9.5)
    assert (worst["interactive_kept"], worst["batch_of_the_rest"], worst["batch_ended"]) == (1.0, 9.5, 0.99)


def test_a_gate_and_a_perfect_scheduler_may_choose_of_the_same_limits() -> None:
    for quick in (False, True):
        assert [(one.seqs, one.budget) for one in perfect(quick=quick)] == [
            (one.seqs, one.budget) for one in gates(quick=quick)
        ]


@pytest.mark.parametrize("kind", ["chat", "code", "long"])
def test_beyond_what_is_carried_people_are_served_as_without_the_batch_work_that_fills_the_rest(kind: str) -> None:
    came = TwoClasses(kind).play(QUEUE, 1)
    assert came.kept > {"chat": 0.99, "code": 0.99, "long": 0.95}[kind]
    assert came.goodput > 0.9
    assert came.first == 1.0, "batch work loses nothing"


def test_the_perfect_scheduler_of_two_classes_has_the_same_people_and_no_batch_work() -> None:
    both = TwoClasses("long")
    people = [request for request in both.requests(1) if request.of_class == "interactive"]
    alone = both.alone.requests(1)
    assert [(one.arrival, one.prompt) for one in alone] == [(one.arrival, one.prompt) for one in people]
    assert both.alone.name != both.name


def test_who_is_late_on_an_idle_engine_is_held_against_no_order() -> None:
    both = TwoClasses("code")
    assert both.feasible(Request(0.0, 2000, 10, of_class="interactive"))
    assert not both.feasible(Request(0.0, 30_000, 10, of_class="interactive"))


def test_vllms_defaults_have_no_time_for_a_step_but_tokens() -> None:
    told = DEFAULTS.setpoint(a_crowd())
    assert told.step is None
    assert told.on_time is None
    assert (told.limits.max_num_active_seqs, told.limits.max_num_scheduled_tokens) == (256, 8192)


def a_crowd() -> Crowd:
    return BY_NAME["code, bursts, 1.3 × capacity"]


def test_a_setpoint_says_what_the_rule_is() -> None:
    shed, queue, gate = (discipline.setpoint(a_crowd()) for discipline in (SHED, QUEUE, gates(quick=True)[0]))
    assert shed.on_time is not None
    assert shed.shed is not None
    assert queue.on_time is not None
    assert queue.shed is None
    assert gate.on_time is None
    assert gate.shed is not None
