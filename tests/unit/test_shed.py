"""The law behind a gate: what is refused by when, what a step may take, and when anything is sent anew."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from flyball_engine.contract import Shed
from flyball_operator.api.v1alpha1 import Mode, Overload, TuningStatus
from flyball_operator.governor import guard
from flyball_operator.governor.canary import Canary, Ended, undecided, undone
from flyball_operator.governor.governor import Decision, State, decide, start
from flyball_operator.governor.guard import ROLLBACK_HOLD, TOKEN_MARGIN, Hold
from flyball_operator.governor.identify import Doubt, Fit, Learner
from flyball_operator.governor.law import GAP_SHARE
from flyball_operator.governor.policy import (
    MODEL_MOVED,
    NO_BUDGET,
    Policy,
    asked_deadline,
    difference,
    model_spec,
    settled,
)
from flyball_operator.governor.record import resumed, setpoint_status
from flyball_operator.governor.shed import GATED_MARGINS, LEAST_FIRST_SHARE, choose_gated
from flyball_operator.governor.signals import Missing, Observation, StepWindow, Unobserved
from flyball_operator.governor.situation import Choice, Margins, Regime
from flyball_operator.governor.spec import Envelope, Objective, Span, TuningSpec
from flyball_operator.governor.standstill import FALL_BACK_HOLD, Proven, fall_back
from support.plant import CPU
from support.tuning import E2E, GAP, TPOT, TTFT, limits, outcome, signals, situation, step_window, tuning

SHED = tuning(TTFT, TPOT, overload=Overload.SHED)
MARGINS = Margins(token=0.9, first_token=0.8)
CHOICE = choose_gated(situation(TTFT, TPOT))
PRESENT = settled(Policy(limits=limits(16, 2048)), limits(16, 2048), CHOICE, CPU, MARGINS)


def ticks(state: State, *observations: Observation, spec: TuningSpec = SHED, now: float = 100.0) -> list[Decision]:
    """Several ticks, five seconds apart; what was decided."""
    decisions = []
    for number, observation in enumerate(observations):
        state, decision = decide(state, observation, spec, now + 5 * number)
        decisions.append(decision)
    return decisions


def at_rest(spec: TuningSpec = SHED) -> State:
    state = start(spec)
    for tick in range(20):
        state, _ = decide(state, signals(100.0 + 5 * tick), spec, 100.0 + 5 * tick)
    return state


# What is chosen.


def test_an_overload_is_shed_and_never_drained() -> None:
    choice = choose_gated(situation(TTFT, TPOT, arrivals=40.0, waiting=200.0, running=40.0, draining=True))
    assert choice.regime is Regime.SHEDDING
    assert choice.deadline == TTFT.seconds
    assert choice.binding == "tpot"


def test_the_batch_is_not_enlarged_for_the_queue() -> None:
    calm, crowded = (choose_gated(situation(TTFT, TPOT, arrivals=n, waiting=5 * n, running=30.0)) for n in (1.0, 14.0))
    assert calm.seqs == crowded.seqs


def test_memory_bounds_the_batch() -> None:
    assert choose_gated(situation(TTFT, TPOT, kv_tokens=4_000.0)).seqs * 140 <= 0.92 * 4_000


@pytest.mark.parametrize(
    ("objectives", "seconds"),
    [
        ((TTFT, TPOT), 0.9 * TPOT.seconds),
        ((TTFT, GAP), 0.9 * GAP_SHARE * GAP.seconds),
        ((TTFT, GAP, replace(TPOT, seconds=0.5)), 0.9 * GAP_SHARE * GAP.seconds),
        ((E2E,), 0.8 * E2E.seconds / 41),
        ((TTFT,), None),
    ],
)
def test_a_step_may_take_what_the_tightest_token_objective_leaves(
    objectives: tuple[Objective, ...], seconds: float | None
) -> None:
    choice = choose_gated(replace(situation(*objectives), margins=MARGINS))
    assert choice.budget == (pytest.approx(seconds) if seconds is not None else None)
    assert choice.tokens == 2048, "the budget holds each step, not the limit"


def test_a_token_objective_that_leaves_prompts_no_room_bounds_no_step() -> None:
    choice = choose_gated(situation(TTFT, replace(TPOT, seconds=0.009)))
    assert choice.budget is None, "every request would be refused"
    assert choice.regime is Regime.TOKEN_BOUND
    assert choice.binding == "tpot"


def test_violations_do_not_trim_a_budget_until_its_objective_is_given_up() -> None:
    tight = situation(TTFT, replace(TPOT, seconds=0.01))
    trimmed = choose_gated(replace(tight, margins=replace(GATED_MARGINS, token=TOKEN_MARGIN[0])))
    assert trimmed.regime is Regime.SHEDDING
    assert trimmed.budget == choose_gated(replace(tight, margins=GATED_MARGINS)).budget


@pytest.mark.parametrize(
    ("objectives", "present", "asked"),
    [
        ((TTFT, TPOT), TTFT.seconds, None),
        ((TTFT, TPOT), 3 * TTFT.seconds, TTFT.seconds),
        ((TTFT, TPOT), TTFT.seconds / 3, TTFT.seconds),
        ((TTFT, E2E), TTFT.seconds / 3, None),
        ((TTFT, E2E), 3 * TTFT.seconds, TTFT.seconds),
        ((E2E, TPOT), 0.1, None),
    ],
)
def test_an_edited_first_token_objective_is_the_deadline_at_once(
    objectives: tuple[Objective, ...], present: float, asked: float | None
) -> None:
    assert asked_deadline(present, objectives) == asked


def test_an_edited_deadline_reaches_the_gate_though_nothing_is_observed() -> None:
    spec = SHED
    shed = Shed(ttft_deadline_seconds=0.25, margin=0.8)
    before = replace(start(spec), policy=replace(start(spec).policy, shed=shed))
    after, decision = decide(before, Unobserved(Missing.NOT_SCRAPED, ""), spec, now=0.0)
    assert after.policy.shed == Shed(ttft_deadline_seconds=TTFT.seconds, margin=0.8)
    assert decision.changed


def test_an_end_to_end_objective_leaves_the_first_token_what_the_others_do_not_take() -> None:
    short, long = (choose_gated(situation(E2E, output=output, ratio=120 / output)) for output in (10.0, 60.0))
    assert short.deadline is not None
    assert long.deadline is not None
    assert E2E.seconds > short.deadline > long.deadline >= LEAST_FIRST_SHARE * E2E.seconds
    assert choose_gated(situation(E2E, TTFT)).deadline == TTFT.seconds


def test_a_deadline_made_of_lengths_is_kept_while_it_is_near() -> None:
    first = choose_gated(situation(E2E)).deadline
    assert first is not None
    near = replace(situation(E2E), deadline=first * 1.1)
    assert choose_gated(near).deadline == first * 1.1
    assert choose_gated(replace(near, deadline=first * 1.5)).deadline == first


# When it is sent.


def test_nothing_is_refused_before_the_model_is_trusted() -> None:
    alike = step_window(decodes=(4,), prefills=(0, 50), steps=10, start=85.0, end=100.0)
    (decision,) = ticks(start(SHED), signals(100.0, window=alike, waiting=500.0))
    assert decision.policy.shed is None
    assert decision.policy.step is None


def full_steps(end: float, *, slower: float = 1.0) -> StepWindow:
    """All that an overloaded engine makes."""
    return step_window(decodes=(40,), prefills=(900,), steps=100, start=end - 15, end=end, slower=slower)


def test_an_overload_that_shows_full_steps_alone_is_refused_by_them() -> None:
    overload = signals(100.0, window=full_steps(100.0), waiting=200.0, running=40.0, arrivals=20.0)
    busy = signals(120.0, running=120.0, waiting=20.0)
    first, _, later = ticks(start(SHED), overload, signals(115.0), busy)
    assert first.policy.shed == Shed(ttft_deadline_seconds=TTFT.seconds, margin=guard.FIRST_TOKEN_MARGIN[1])
    assert start(SHED).limits == limits(128, 512)
    assert first.policy.limits == limits(128, 2048), "the budget holds the steps now"
    assert first.policy.budget == pytest.approx(CPU.seconds(decodes=40, prefill_tokens=900) / 2, rel=0.1), (
        "half steps tell what of a full one is fixed"
    )
    assert "AlikeSteps" in first.trigger
    assert first.trigger.endswith("what would miss ttft is refused")
    assert later.policy.limits != first.policy.limits


def test_an_overload_is_refused_before_any_request_came_to_its_end() -> None:
    overload = signals(100.0, window=full_steps(100.0), waiting=200.0, running=40.0, arrivals=20.0, finished=0.0)
    (decision,) = ticks(start(SHED), overload)
    assert decision.policy.shed == Shed(ttft_deadline_seconds=TTFT.seconds, margin=guard.FIRST_TOKEN_MARGIN[1])


def test_where_all_wait_full_steps_alone_decide_nothing() -> None:
    (decision,) = ticks(start(tuning(TTFT)), signals(100.0, window=full_steps(100.0)), spec=tuning(TTFT))
    assert decision.hold is Hold.LEARNING


def test_steps_alike_that_are_badly_explained_foretell_nothing() -> None:
    fit = Fit(model=CPU, error=0.05, condition=1.0, steps=100, reach=1000, doubt=Doubt.ALIKE)
    assert fit.foretells
    assert not replace(fit, error=0.2).foretells
    assert not replace(fit, doubt=Doubt.LARGE_ERROR).foretells
    assert not replace(fit, doubt=Doubt.FEW_STEPS).foretells


def test_a_model_is_not_given_up_for_a_worse_one() -> None:
    before = replace(at_rest(), explore_at=405.0)
    contradicted = replace(before, learner=Learner(until=before.learner.until))
    (decision,) = ticks(contradicted, signals(400.0, window=full_steps(400.0)), now=400.0)
    assert decision.policy == before.policy


def test_while_full_steps_alone_are_seen_every_other_window_s_are_half_as_long() -> None:
    overload = [
        signals(100.0 + 5 * n, window=full_steps(100.0 + 5 * n), waiting=200.0, running=40.0, arrivals=20.0)
        for n in range(12)
    ]
    first, *others = ticks(start(SHED), *overload)
    full = first.policy.budget
    assert full is not None
    sent = [(number, decision.policy.budget) for number, decision in enumerate(others, start=1) if decision.changed]
    assert [number for number, _ in sent] == [3, 6, 9], "a window spans three decisions"
    assert [budget for _, budget in sent] == pytest.approx([full / 2, full, full / 2])
    assert {decision.policy.shed for decision in others} == {first.policy.shed}


def test_with_a_model_budget_deadline_and_margin_are_sent_together() -> None:
    decision = ticks(start(SHED), signals(100.0))[-1]
    step, shed = decision.policy.step, decision.policy.shed
    assert step is not None
    assert shed is not None
    assert step.model.trusted
    assert step.seconds == pytest.approx(GATED_MARGINS.token * TPOT.seconds)
    assert (shed.ttft_deadline_seconds, shed.margin) == (TTFT.seconds, guard.FIRST_TOKEN_MARGIN[1])
    assert decision.policy.limits.max_num_scheduled_tokens == 2048
    assert decision.trigger.endswith("; what would miss ttft is refused")


def test_at_rest_nothing_is_sent() -> None:
    assert not any(decision.changed for decision in ticks(at_rest(), *(signals(200.0 + 5 * n) for n in range(40))))


def test_a_model_is_sent_anew_when_it_says_something_else() -> None:
    nearly, other = (replace(CPU, c1=CPU.c1 * by, c2=CPU.c2 * by) for by in (1.02, 1.3))
    assert difference(CPU, nearly) < MODEL_MOVED < difference(CPU, other)
    # Of the largest steps it is a small part, of those of a few decodes nearly all.
    assert difference(CPU, replace(CPU, t0=2 * CPU.t0)) > 10 * MODEL_MOVED
    assert settled(PRESENT, PRESENT.limits, CHOICE, nearly, MARGINS) == PRESENT
    sent = settled(PRESENT, PRESENT.limits, CHOICE, other, MARGINS)
    assert sent.step is not None
    assert sent.step.model == model_spec(other)


@pytest.mark.parametrize(
    ("changed", "sent"),
    [
        ({"budget": 1.04}, False),
        ({"budget": 1.06}, True),
        ({"deadline": 1.0}, False),
        ({"deadline": 0.999}, True),
    ],
)
def test_a_budget_is_sent_when_it_moved_and_an_edited_deadline_at_once(changed: dict[str, float], sent: bool) -> None:
    asked = replace(CHOICE, **{name: getattr(CHOICE, name) * by for name, by in changed.items()})
    assert (settled(PRESENT, PRESENT.limits, asked, CPU, MARGINS) != PRESENT) is sent


def test_a_margin_is_sent_when_it_moved() -> None:
    for first, sent in ((0.79, False), (0.78, True), (0.82, True)):
        margins = replace(MARGINS, first_token=first)
        assert (settled(PRESENT, PRESENT.limits, CHOICE, CPU, margins) != PRESENT) is sent


def test_limits_that_move_take_the_newest_of_the_rest_with_them() -> None:
    nearly = replace(CPU, c1=CPU.c1 * 1.02)
    sent = settled(PRESENT, limits(20, 2048), CHOICE, nearly, MARGINS)
    assert sent.step is not None
    assert sent.step.model == model_spec(nearly)


def test_without_a_budget_the_model_is_sent_for_the_gate() -> None:
    policy = settled(Policy(limits=limits(16, 2048)), limits(16, 2048), replace(CHOICE, budget=None), CPU, MARGINS)
    assert policy.step is not None
    assert policy.step.seconds == NO_BUDGET
    assert policy.budget is None


# What the user changes.


def test_queue_opens_the_gate_at_once_and_unobserved() -> None:
    queue = replace(SHED, overload=Overload.QUEUE)
    (decision,) = ticks(at_rest(), Unobserved(Missing.UNREACHABLE, "away"), spec=queue)
    assert decision.changed
    assert (decision.policy.step, decision.policy.shed) == (None, None)
    assert "no request is refused any more" in decision.trigger


def test_shed_waits_for_what_can_be_observed() -> None:
    queue = replace(SHED, overload=Overload.QUEUE)
    away = Unobserved(Missing.UNREACHABLE, "away")
    unseen, seen = ticks(at_rest(queue), away, signals(205.0), now=200.0)
    assert unseen.policy.shed is None
    assert seen.policy.shed is not None


def test_bounds_move_the_limits_and_leave_the_gate() -> None:
    narrow = replace(SHED, envelope=Envelope(Span(1, 2), Span(128, 2048)))
    before = at_rest()
    (decision,) = ticks(before, Unobserved(Missing.UNREACHABLE, "away"), spec=narrow)
    assert decision.policy == replace(before.policy, limits=limits(2, 2048))


# Margins.


def test_violations_behind_the_gate_tighten_what_it_lets_in() -> None:
    late = {TTFT.id: outcome(60, 40)}
    decisions = ticks(at_rest(), *(replace(signals(200.0 + 5 * n), outcomes=late) for n in range(12)), now=200.0)
    shed = decisions[-1].policy.shed
    assert shed is not None
    assert shed.margin < guard.FIRST_TOKEN_MARGIN[1]


def test_what_was_let_in_before_the_gate_is_no_verdict_on_it() -> None:
    late = {TTFT.id: outcome(10, 90), TPOT.id: outcome(10, 90)}
    decisions = ticks(start(SHED), *(replace(signals(100.0 + 5 * n), outcomes=late) for n in range(6)))
    shed = decisions[-1].policy.shed
    assert shed is not None
    assert shed.margin == guard.FIRST_TOKEN_MARGIN[1]


def test_a_recommendation_shows_the_gate_and_learns_nothing_of_it() -> None:
    recommend = replace(SHED, mode=Mode.RECOMMEND)
    late = {TTFT.id: outcome(60, 40)}
    decisions = ticks(
        start(recommend), *(replace(signals(100.0 + 5 * n), outcomes=late) for n in range(20)), spec=recommend
    )
    shed = decisions[-1].policy.shed
    assert shed is not None
    assert shed.margin == guard.FIRST_TOKEN_MARGIN[1]


def test_a_choice_without_a_deadline_sends_limits_alone() -> None:
    open_choice: Choice = replace(CHOICE, deadline=None, budget=None)
    assert settled(PRESENT, limits(16, 2048), open_choice, CPU, MARGINS) == Policy(limits=limits(16, 2048))


def overload_until_halved() -> tuple[State, State]:
    """The states before and after a budget is halved for the first time."""
    before = after = start(SHED)
    for at in (100.0 + 5 * n for n in range(12)):
        full = signals(at, window=full_steps(at), waiting=200.0, running=40.0, arrivals=20.0)
        before, (after, _) = after, decide(after, full, SHED, at)
        if after.halved:
            return before, after
    raise AssertionError("no budget was halved")


def budgets_after(state: State, *, held: float = 0.0) -> list[float]:
    """The budgets of a minute of full steps that begins so many seconds later."""
    overload = [
        signals(at, window=full_steps(at), waiting=200.0, running=40.0, arrivals=20.0)
        for at in (200.0 + held + 5 * n for n in range(12))
    ]
    return sorted({decision.policy.budget or math.inf for decision in ticks(state, *overload, now=200.0 + held)})


def test_no_budget_is_more_than_it_should_be_whatever_became_of_a_half_one() -> None:
    before, half = overload_until_halved()
    full, tried = before.policy.budget, Canary(pod="uid", name="chat-0", before=before.policy, since=0.0)
    assert full is not None
    decision = Decision(at=180.0, before=half.policy, policy=half.policy, hold=Hold.LEARNING, trigger="")
    fallen, _ = fall_back(half, decision, SHED, Proven(policy=before.policy), "chat-0")
    undecided_, (undone_, _) = undecided(before, half), undone(half, tried, Ended("it tripped"), 180.0)
    for state, held in ((half, 0.0), (undecided_, 0.0), (undone_, ROLLBACK_HOLD), (fallen, FALL_BACK_HOLD)):
        assert budgets_after(state, held=held) == pytest.approx([full / 2, full])


def test_the_next_leader_goes_on_to_learn_under_a_budget_that_came_before_the_model() -> None:
    before, _ = overload_until_halved()
    full = before.policy.budget
    assert full is not None
    again = resumed(TuningStatus(setpoint=setpoint_status(before.policy)), SHED)
    assert budgets_after(again) == pytest.approx([full / 2, full])


def test_what_is_undone_to_half_a_budget_is_half_of_it() -> None:
    before, half = overload_until_halved()
    tried = Canary(pod="uid", name="chat-0", before=half.policy, since=0.0, halved=True)
    moved, _ = undone(before, tried, Ended("it tripped"), 180.0)
    assert max(budgets_after(moved, held=ROLLBACK_HOLD)) == pytest.approx(before.policy.budget)
