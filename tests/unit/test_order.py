"""The order of prompts, as the law decides on it: when it is sent, what it says, and when it is taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_engine.contract import OnTime, Shed
from flyball_lab.harness.tuning import E2E, GAP, TPOT, TTFT, signals, step_window, tuning
from flyball_operator.api.v1alpha1 import Mode, Order, Overload, TuningStatus
from flyball_operator.tuning.control_input import margins
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.observe.signals import Missing, Unobserved
from flyball_operator.tuning.policy import NO_BUDGET
from flyball_operator.tuning.spec import LatencyObjective, TuningSpec
from flyball_operator.tuning.state import TuningState, start
from flyball_operator.tuning.status_codec import policy_of, resumed, setpoint_status

QUEUE = tuning(TTFT, TPOT)
SHED = replace(QUEUE, overload=Overload.SHED)
AWAY = Unobserved(Missing.UNREACHABLE, "away")


def at_rest(spec: TuningSpec = QUEUE) -> TuningState:
    state = start(spec)
    for at in (100.0 + 5 * tick for tick in range(20)):
        state, _ = decide(state, signals(at), spec, at)
    return state


def after_an_edit(state: TuningState, **changed: object) -> tuple[TuningState, str]:
    """The state one tick after the user changed the spec, nothing being observed; and what is said of it."""
    after, decision = decide(state, AWAY, replace(QUEUE, **changed), 300.0)  # type: ignore[arg-type]
    return after, decision.trigger


# What is sent.


def test_with_a_model_prompts_are_ordered_by_the_first_token_objective() -> None:
    policy = at_rest().policy
    assert policy.on_time == OnTime(first_token_deadline_seconds=TTFT.seconds, margin=margins().first_token)
    assert policy.shed is None
    assert policy.step is not None, "the order needs the model"
    assert policy.step.model.trusted


def test_where_no_token_has_an_objective_the_model_is_sent_for_the_order_alone() -> None:
    policy = at_rest(tuning(TTFT)).policy
    assert policy.on_time is not None
    assert policy.step is not None
    assert (policy.step.seconds, policy.budget) == (NO_BUDGET, None)


def test_who_refuses_and_who_lets_wait_gets_the_same_limits_and_budget() -> None:
    queue, shed = at_rest().policy, at_rest(SHED).policy
    assert (queue.limits, queue.step, queue.on_time) == (shed.limits, shed.step, shed.on_time)


def test_behind_a_gate_both_have_the_same_deadline() -> None:
    policy, margin = at_rest(SHED).policy, margins().first_token
    assert policy.shed == Shed(ttft_deadline_seconds=TTFT.seconds, margin=margin)
    assert policy.on_time == OnTime(first_token_deadline_seconds=TTFT.seconds, margin=margin)


def test_an_end_to_end_objective_leaves_the_first_token_what_the_others_do_not_take() -> None:
    on_time = at_rest(tuning(E2E)).policy.on_time
    assert on_time is not None
    deadline = on_time.first_token_deadline_seconds
    assert deadline is not None
    assert 0.25 * E2E.seconds <= deadline < E2E.seconds


@pytest.mark.parametrize("spec", [tuning(TPOT), tuning(GAP, TPOT), tuning(), tuning(TTFT, order=Order.ARRIVAL)])
def test_where_nothing_bounds_the_first_token_or_arrival_is_asked_for_there_is_no_order(spec: TuningSpec) -> None:
    policy = at_rest(spec).policy
    assert (policy.on_time, policy.shed) == (None, None)


def test_nothing_is_ordered_before_the_model_is_trusted() -> None:
    alike = step_window(decodes=(4,), prefills=(0, 50), steps=10, start=85.0, end=100.0)
    state, _ = decide(start(QUEUE), signals(100.0, window=alike, waiting=500.0), QUEUE, 100.0)
    assert state.policy.on_time is None


def test_the_sentence_says_who_is_served_first_and_who_is_refused() -> None:
    _, queue = decide(at_rest(), signals(300.0), QUEUE, 300.0)
    _, shed = decide(at_rest(SHED), signals(300.0), SHED, 300.0)
    assert queue.trigger.endswith("; what can meet ttft is served first")
    assert shed.trigger.endswith("; what can meet ttft is served first, what would miss ttft is refused")


def test_at_rest_nothing_is_sent_anew() -> None:
    state = at_rest()
    for at in (300.0 + 5 * tick for tick in range(40)):
        state, decision = decide(state, signals(at), QUEUE, at)
        assert not decision.changed


# What the user changes.


def test_arrival_takes_the_order_back_at_once_and_leaves_the_limits() -> None:
    before = at_rest()
    after, said = after_an_edit(before, order=Order.ARRIVAL)
    assert after.policy.on_time is None
    assert (after.limits, after.policy.step) == (before.limits, before.policy.step)
    assert "order of arrival" in said


def test_arrival_leaves_the_gate() -> None:
    before = at_rest(SHED)
    after, _ = after_an_edit(before, overload=Overload.SHED, order=Order.ARRIVAL)
    assert after.policy.on_time is None
    assert (after.policy.shed, after.policy.step) == (before.policy.shed, before.policy.step)


def test_on_time_comes_with_the_next_look_at_the_engines() -> None:
    arrival = replace(QUEUE, order=Order.ARRIVAL)
    state, _ = decide(at_rest(arrival), signals(300.0), QUEUE, 300.0)
    assert state.policy.on_time is not None


def test_an_edited_deadline_reaches_the_order_though_nothing_is_observed() -> None:
    sooner = replace(TTFT, seconds=0.5)
    for spec in (QUEUE, SHED):
        after, said = after_an_edit(at_rest(spec), overload=spec.overload, objectives=(sooner, TPOT))
        assert after.policy.on_time is not None
        assert after.policy.on_time.first_token_deadline_seconds == 0.5
        assert after.policy.deadline == 0.5
        assert "the first-token objective changed" in said


@pytest.mark.parametrize("objectives", [(TPOT,), ()])
def test_without_an_objective_of_first_tokens_the_order_goes(objectives: tuple[LatencyObjective, ...]) -> None:
    after, _ = after_an_edit(at_rest(), objectives=objectives)
    assert after.policy.on_time is None


def test_recommend_decides_the_same() -> None:
    assert at_rest(replace(QUEUE, mode=Mode.RECOMMEND)).policy.on_time == at_rest().policy.on_time


# The way through status.


@pytest.mark.parametrize("spec", [QUEUE, SHED, tuning(E2E), replace(SHED, order=Order.ARRIVAL)])
def test_the_next_leader_goes_on_with_the_same_order(spec: TuningSpec) -> None:
    policy = at_rest(spec).policy
    status = setpoint_status(policy)
    assert policy_of(status) == policy
    assert resumed(TuningStatus(setpoint=status), spec).policy == policy
