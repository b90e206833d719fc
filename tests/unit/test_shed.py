"""The law behind a gate: what is refused by when, what a step may take, and when anything is sent anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_engine.contract import Limits, Shed
from flyball_engine.model import StepModel
from flyball_lab.harness.plant import CPU
from flyball_lab.harness.tuning import E2E, TPOT, TTFT, inputs, limits, signals, step_window, tuning
from flyball_operator.api.v1alpha1 import Mode, Overload, TuningStatus
from flyball_operator.tuning.control_input import ControlOutput, Margins, margins
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.estimate.step_time import Doubt, Fit, StepTimeEstimator
from flyball_operator.tuning.filters.filters import HoldReason, Hysteresis, Proposal, Tick
from flyball_operator.tuning.observe.signals import Missing, Observation, Signals, StepWindow, Unobserved
from flyball_operator.tuning.optimise import choose
from flyball_operator.tuning.policy import NO_BUDGET, Policy, asked_deadline, difference, model_spec, wanted_policy
from flyball_operator.tuning.spec import Envelope, LatencyObjective, Span, TuningSpec
from flyball_operator.tuning.state import Decision, TuningState, start
from flyball_operator.tuning.status_codec import resumed, setpoint_status
from flyball_operator.tuning.tunables import TUNABLES

SHED = tuning(TTFT, TPOT, overload=Overload.SHED)
NARROW = Margins(token=0.9, first_token=0.8)
CHOICE = choose(inputs(TTFT, TPOT))
#: What a step may take by the objectives.
ASKED = margins().token * TPOT.seconds


def settled(
    present: Policy, given: Limits, output: ControlOutput, model: StepModel, margins: Margins, spec: TuningSpec
) -> Policy:
    """What of a wish passes the hysteresis."""
    wanted = wanted_policy(given, output, model, margins, spec)
    proposal = Proposal(policy=wanted, hold=HoldReason.GOOD_ENOUGH, trigger="")
    tick = Tick(at=0.0, current=present, spec=spec, observation=Unobserved(Missing.NOT_SCRAPED, ""))
    return Hysteresis().apply(tick, proposal)[1].policy


PRESENT = settled(Policy(limits=limits(16, 2048)), limits(16, 2048), CHOICE, CPU, NARROW, SHED)


def ticks(
    state: TuningState, *observations: Observation, spec: TuningSpec = SHED, now: float = 100.0
) -> list[Decision]:
    """Several ticks, five seconds apart; what was decided."""
    decisions = []
    for number, observation in enumerate(observations):
        state, decision = decide(state, observation, spec, now + 5 * number)
        decisions.append(decision)
    return decisions


def at_rest(spec: TuningSpec = SHED) -> TuningState:
    state = start(spec)
    for tick in range(20):
        state, _ = decide(state, signals(100.0 + 5 * tick), spec, 100.0 + 5 * tick)
    return state


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
    objectives: tuple[LatencyObjective, ...], present: float, asked: float | None
) -> None:
    assert asked_deadline(present, objectives) == asked


def test_an_edited_deadline_reaches_the_gate_though_nothing_is_observed() -> None:
    spec = SHED
    shed = Shed(ttft_deadline_seconds=0.25, margin=0.8)
    before = replace(start(spec), policy=replace(start(spec).policy, shed=shed))
    after, decision = decide(before, Unobserved(Missing.NOT_SCRAPED, ""), spec, now=0.0)
    assert after.policy.shed == Shed(ttft_deadline_seconds=TTFT.seconds, margin=0.8)
    assert decision.changed


# When it is sent.


def test_nothing_is_refused_before_the_model_is_trusted() -> None:
    alike = step_window(decodes=(4,), prefills=(0, 50), steps=10, start=85.0, end=100.0)
    (decision,) = ticks(start(SHED), signals(100.0, window=alike, waiting=500.0))
    assert decision.policy.shed is None
    assert decision.policy.step is None


def full_steps(end: float, *, slower: float = 1.0) -> StepWindow:
    """All that an overloaded engine makes."""
    return step_window(decodes=(40,), prefills=(900,), steps=100, start=end - 15, end=end, slower=slower)


def crowded(count: int, *, begin: float = 100.0) -> list[Signals]:
    """Ticks of an overload that shows full steps alone."""
    return [
        signals(at, window=full_steps(at), waiting=200.0, running=40.0, arrivals=20.0)
        for at in (begin + 5 * number for number in range(count))
    ]


def test_an_overload_that_shows_full_steps_alone_is_refused_by_them() -> None:
    overload = signals(100.0, window=full_steps(100.0), waiting=200.0, running=40.0, arrivals=20.0)
    busy = signals(120.0, running=120.0, waiting=20.0)
    first, _, later = ticks(start(SHED), overload, signals(115.0), busy)
    assert first.policy.shed == Shed(ttft_deadline_seconds=TTFT.seconds, margin=margins().first_token)
    assert start(SHED).limits == limits(128, 512)
    assert first.policy.limits == limits(128, 2048), "the budget holds the steps now"
    assert first.policy.budget == pytest.approx(CPU.seconds(decodes=40, prefill_tokens=900) / 2, rel=0.1), (
        "half steps tell what of a full one is fixed"
    )
    assert "all engine steps seen are of like size" in first.trigger
    assert first.trigger.endswith("what would miss ttft is refused")
    assert later.policy.limits != first.policy.limits


def test_an_overload_is_refused_before_any_request_came_to_its_end() -> None:
    overload = signals(100.0, window=full_steps(100.0), waiting=200.0, running=40.0, arrivals=20.0, finished=0.0)
    (decision,) = ticks(start(SHED), overload)
    assert decision.policy.shed == Shed(ttft_deadline_seconds=TTFT.seconds, margin=margins().first_token)


def test_without_a_deadline_full_steps_alone_decide_nothing() -> None:
    (decision,) = ticks(start(tuning(TPOT)), signals(100.0, window=full_steps(100.0)), spec=tuning(TPOT))
    assert decision.hold is HoldReason.LEARNING


def test_where_all_wait_full_steps_alone_order_the_queue() -> None:
    queue = replace(SHED, overload=Overload.QUEUE)
    overload = signals(100.0, window=full_steps(100.0), waiting=200.0, running=40.0, arrivals=20.0)
    (decision,) = ticks(start(queue), overload, spec=queue)
    assert decision.policy.on_time is not None
    assert decision.policy.shed is None
    assert decision.trigger.endswith("; what can meet ttft is served first")


def test_steps_alike_that_are_badly_explained_foretell_nothing() -> None:
    fit = Fit(model=CPU, error=0.05, steps=100, reach=1000, doubt=Doubt.ALIKE)
    assert fit.usable_for_admission
    assert not replace(fit, doubt=Doubt.LARGE_ERROR).usable_for_admission
    assert not replace(fit, doubt=Doubt.FEW_STEPS).usable_for_admission


def test_a_model_is_not_given_up_for_a_worse_one() -> None:
    before = at_rest()
    contradicted = replace(before, step_time=StepTimeEstimator(until=before.step_time.until))
    (decision,) = ticks(contradicted, signals(400.0, window=full_steps(400.0)), now=400.0)
    assert decision.policy.step is not None
    assert before.policy.step is not None
    assert decision.policy.step.model == before.policy.step.model
    assert decision.policy.limits == before.policy.limits


def test_while_full_steps_alone_are_seen_a_guess_falls_and_then_every_other_window_s_are_half_as_long() -> None:
    first, *others = ticks(start(SHED), *crowded(12))
    assert (first.policy.budget or 0.0) > ASKED, "half of a full step"
    sent = [(number, decision.policy.budget) for number, decision in enumerate(others, start=1) if decision.changed]
    assert [number for number, _ in sent] == [3, 6, 9], "a window spans three decisions"
    assert [budget for _, budget in sent] == pytest.approx([ASKED, ASKED / 2, ASKED])
    assert {decision.policy.shed for decision in others} == {first.policy.shed}


def test_a_shadow_does_not_explore() -> None:
    """Its budgets are no setpoints: no step shows what they do."""
    shadow = replace(SHED, mode=Mode.RECOMMEND)
    first, *others = ticks(start(shadow), *crowded(12), spec=shadow)
    assert first.policy.shed is not None
    assert not any(decision.changed for decision in others)


def test_the_next_leader_goes_on_to_learn_under_a_budget_that_came_before_the_model() -> None:
    before = start(SHED)
    for seen in crowded(6):
        before, _ = decide(before, seen, SHED, seen.at)
    again = resumed(TuningStatus(setpoint=setpoint_status(before.policy)), SHED)
    later = ticks(again, *crowded(12, begin=300.0), now=300.0)
    assert sorted({decision.policy.budget or 0.0 for decision in later}) == pytest.approx([ASKED / 2, ASKED])


def test_with_a_model_budget_deadline_and_margin_are_sent_together() -> None:
    decision = ticks(start(SHED), signals(100.0))[-1]
    step, shed = decision.policy.step, decision.policy.shed
    assert step is not None
    assert shed is not None
    assert step.model.trusted
    assert step.seconds == pytest.approx(margins().token * TPOT.seconds)
    assert (shed.ttft_deadline_seconds, shed.margin) == (TTFT.seconds, margins().first_token)
    assert (decision.policy.limits.max_num_scheduled_tokens or 0) < 512, "the step that the budget allows"
    assert decision.trigger.endswith("; what can meet ttft is served first, what would miss ttft is refused")


def test_at_rest_nothing_is_sent() -> None:
    assert not any(decision.changed for decision in ticks(at_rest(), *(signals(200.0 + 5 * n) for n in range(40))))


def test_a_model_is_sent_anew_when_it_says_something_else() -> None:
    nearly, other = (replace(CPU, c1=CPU.c1 * by, c2=CPU.c2 * by) for by in (1.02, 1.3))
    assert difference(CPU, nearly) < TUNABLES.hysteresis < difference(CPU, other)
    # Of the largest steps it is a small part, of those of a few decodes nearly all.
    assert difference(CPU, replace(CPU, t0=2 * CPU.t0)) > 5 * TUNABLES.hysteresis
    assert settled(PRESENT, PRESENT.limits, CHOICE, nearly, NARROW, SHED) == PRESENT
    sent = settled(PRESENT, PRESENT.limits, CHOICE, other, NARROW, SHED)
    assert sent.step is not None
    assert sent.step.model == model_spec(other)


@pytest.mark.parametrize(
    ("changed", "sent"),
    [
        ({"budget": 1.09}, False),
        ({"budget": 1.11}, True),
        ({"deadline": 0.91}, False),
        ({"deadline": 0.89}, True),
    ],
)
def test_a_budget_or_a_deadline_made_of_lengths_is_sent_when_it_moved(changed: dict[str, float], sent: bool) -> None:
    asked = CHOICE
    if "budget" in changed:
        assert CHOICE.budget is not None
        asked = replace(CHOICE, budget=CHOICE.budget * changed["budget"])
    if "deadline" in changed:
        asked = replace(CHOICE, deadlines={"": CHOICE.deadlines[""] * changed["deadline"]})
    assert (settled(PRESENT, PRESENT.limits, asked, CPU, NARROW, SHED) != PRESENT) is sent


def test_a_margin_is_sent_when_it_moved() -> None:
    for first, sent in ((0.8, False), (0.78, True), (0.85, True)):
        margins = replace(NARROW, first_token=first)
        assert (settled(PRESENT, PRESENT.limits, CHOICE, CPU, margins, SHED) != PRESENT) is sent


def test_limits_that_move_take_the_newest_of_the_rest_with_them() -> None:
    nearly = replace(CPU, c1=CPU.c1 * 1.02)
    sent = settled(PRESENT, limits(20, 2048), CHOICE, nearly, NARROW, SHED)
    assert sent.step is not None
    assert sent.step.model == model_spec(nearly)


def test_without_a_budget_the_model_is_sent_for_the_gate() -> None:
    policy = settled(
        Policy(limits=limits(16, 2048)), limits(16, 2048), replace(CHOICE, budget=None), CPU, margins(), SHED
    )
    assert policy.step is not None
    assert policy.step.seconds == NO_BUDGET
    assert policy.budget is None


# What the user changes.


def test_queue_opens_the_gate_at_once_and_unobserved() -> None:
    queue = replace(SHED, overload=Overload.QUEUE)
    (decision,) = ticks(at_rest(), Unobserved(Missing.UNREACHABLE, "away"), spec=queue)
    assert decision.changed
    assert decision.policy.shed is None
    assert decision.policy.budget == at_rest().policy.budget, "steps are the same"
    assert "no request is refused any more" in decision.trigger


def test_the_status_of_refusals_is_the_user_s_and_nothing_else_moves_with_it() -> None:
    spec = replace(SHED, refusal_status=429)
    before = at_rest()
    assert before.policy.shed is not None
    after, decision = decide(before, Unobserved(Missing.NOT_SCRAPED, ""), spec, 300.0)
    assert decision.trigger == "requests are refused with 429 from now on"
    assert after.policy == replace(before.policy, shed=before.policy.shed.model_copy(update={"refusal_status": 429}))
    assert at_rest(spec).policy == after.policy, "it is what is sent first, too"


def test_a_status_of_refusals_sends_nothing_where_all_wait() -> None:
    spec = replace(SHED, overload=Overload.QUEUE)
    before = at_rest(spec)
    _, decision = decide(before, Unobserved(Missing.NOT_SCRAPED, ""), replace(spec, refusal_status=429), 300.0)
    assert not decision.changed


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
    assert decision.policy == replace(before.policy, limits=limits(2, before.limits.max_num_scheduled_tokens or 0))


def test_a_choice_without_deadline_and_budget_sends_limits_alone() -> None:
    open_choice: ControlOutput = replace(CHOICE, deadlines={}, budget=None)
    assert settled(PRESENT, limits(16, 2048), open_choice, CPU, NARROW, SHED) == Policy(limits=limits(16, 2048))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_guessed_budget_goes_with_the_token_objective(restarted: bool) -> None:
    """First tokens are waited for still, full steps are all that is seen, and none of them has to be short."""
    before = start(SHED)
    for seen in crowded(12):
        before, _ = decide(before, seen, SHED, seen.at)
    alone = replace(SHED, objectives=(TTFT,))
    if restarted:
        before = resumed(TuningStatus(setpoint=setpoint_status(before.policy)), alone)
    assert before.policy.budget is not None
    last = ticks(before, *crowded(12, begin=300.0), spec=alone, now=300.0)[-1]
    assert last.policy.budget is None
    assert last.policy.shed is not None, "first tokens have a deadline still"
