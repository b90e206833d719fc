"""The law's state in status, and what status says of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from flyball_engine.contract import Limits
from flyball_lab.harness.plant import CPU
from flyball_lab.harness.tuning import GAP, TPOT, TTFT, limits, signals, tuning
from flyball_operator.api.status import LARGEST_NUMBER
from flyball_operator.api.v1alpha1 import (
    ConditionType,
    Mode,
    OrderStatus,
    Overload,
    SetpointStatus,
    StepModelCoefficients,
    StepModelStatus,
    TuningStatus,
)
from flyball_operator.tuning import status_codec
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.observe.signals import Missing, ObjectiveCounts, OrderOutcome, Unobserved
from flyball_operator.tuning.observe.verdict import metrics_verdict
from flyball_operator.tuning.policy import Policy, model_spec
from flyball_operator.tuning.reasons import Reason
from flyball_operator.tuning.report import conditions
from flyball_operator.tuning.report.conditions import SetpointProgress
from flyball_operator.tuning.report.transitions import event_of
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.state import TuningState, start

SPEC = tuning(TTFT, TPOT, GAP)
SHED = replace(SPEC, overload=Overload.SHED)


def test_a_restart_resumes_limits_and_model_from_status() -> None:
    state = start(SPEC)
    for tick in range(8):
        state, _ = decide(state, signals(100.0 + 5 * tick), SPEC, 100.0 + 5 * tick)
    status = TuningStatus(
        setpoint=status_codec.setpoint_status(state.policy),
        model=status_codec.model_status(state.step_time),
        generation=7,
    )
    again = status_codec.resumed(reread(status), SPEC)
    assert again.limits == state.limits
    assert again.step_time.model is not None
    assert state.step_time.model is not None
    for name in ("t0", "c1", "c2", "beta"):
        kept, known = getattr(again.step_time.model, name), getattr(state.step_time.model, name)
        assert kept == pytest.approx(known, rel=0.01)
    _, decision = decide(again, signals(200.0), SPEC, 200.0)
    assert decision.output is not None, "it decides on the first tick"
    later, _ = decide(again, signals(200.0), SPEC, 200.0)
    assert status_codec.model_status(later.step_time).steps >= status.model.steps, "what was learnt is counted on"


def test_steps_beyond_what_status_holds_are_told_as_many_as_it_holds() -> None:
    state = start(SPEC)
    for tick in range(8):
        state, _ = decide(state, signals(100.0 + 5 * tick), SPEC, 100.0 + 5 * tick)
    absurd = replace(state.step_time, steps=9.7e15)
    assert status_codec.model_status(absurd).steps == LARGEST_NUMBER


@pytest.mark.parametrize(
    "model",
    [
        StepModelStatus(t0="0.01", c2="0.0002", trusted=False),
        StepModelStatus(t0="x", c2="0.0002", trusted=True),
        StepModelStatus(t0="-1", c2="0.0002", trusted=True),
        StepModelStatus(t0="nan", trusted=True),
        StepModelStatus(trusted=True),
    ],
)
def test_a_model_that_is_none_is_not_resumed(model: StepModelStatus) -> None:
    assert status_codec.resumed(TuningStatus(model=model), SPEC).step_time.model is None


def test_limits_that_are_none_start_at_the_top() -> None:
    for setpoint in (SetpointStatus(), SetpointStatus(max_num_active_seqs=0, max_num_scheduled_tokens=0)):
        assert status_codec.resumed(TuningStatus(setpoint=setpoint), SPEC).limits == limits(128, 2048)


def test_a_recommendation_is_resumed_before_what_is_live() -> None:
    tuning_status = TuningStatus(
        setpoint=status_codec.setpoint_status(Policy(limits=limits(128, 2048))),
        recommended=status_codec.setpoint_status(Policy(limits=limits(20, 256))),
    )
    assert status_codec.resumed(tuning_status, SPEC).limits == limits(20, 256)


def progress(**changed: object) -> SetpointProgress:
    base = {
        "mode": Mode.AUTO,
        "ready_pods": 2,
        "applied_pods": 2,
        "limits": "16 seqs, 256 tokens",
        "problems": (),
    }
    return SetpointProgress(**(base | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, ("True", Reason.APPLIED)),
        ({"ready_pods": 0}, ("Unknown", Reason.NO_READY_PODS)),
        ({"applied_pods": 1}, ("Unknown", Reason.PUSHING)),
        ({"learning": "no model"}, ("False", Reason.LEARNING)),
        ({"mode": Mode.DISABLED}, ("False", Reason.DISABLED)),
        ({"mode": Mode.RECOMMEND}, ("False", Reason.RECOMMEND_ONLY)),
        ({"problems": ((Reason.UNREACHABLE, "p0"),)}, ("False", Reason.UNREACHABLE)),
    ],
)
def test_the_tuned_condition(changed: dict[str, object], verdict: tuple[str, Reason]) -> None:
    found = conditions.tuned_verdict(progress(**changed))
    assert (found.status, found.reason) == verdict


def test_the_metrics_condition() -> None:
    away = Unobserved(Missing.TIMED_OUT, "no answer")
    assert metrics_verdict(None, ready_pods=1).status == "True"
    assert metrics_verdict(away, ready_pods=1).status == "False"
    assert metrics_verdict(away, ready_pods=1, young=True).status == "Unknown"
    assert metrics_verdict(away, ready_pods=0).reason == Reason.NO_READY_PODS


def test_pods_that_are_scraped_twice_are_observed_and_named_in_one_event() -> None:
    once = metrics_verdict(None, ready_pods=1)
    found = metrics_verdict(None, ready_pods=1, twice="jobs `a`, `b` scrape its pods; only `a` is counted")
    assert (found.status, found.reason) == ("True", Reason.SCRAPED_TWICE)
    assert found.message == "Prometheus has fresh samples; jobs `a`, `b` scrape its pods; only `a` is counted"
    observed = ConditionType.METRICS_AVAILABLE
    assert event_of(observed, (once.status, once.reason), found) == ("Warning", "ScrapedTwice")
    assert event_of(observed, (found.status, found.reason), found) is None
    assert event_of(observed, (found.status, found.reason), once) is None


@pytest.mark.parametrize(
    ("counts", "summary", "verdict"),
    [
        ({TPOT.id: ObjectiveCounts(999, 1), GAP.id: ObjectiveCounts(10, 0)}, "2/2", ("True", Reason.MET)),
        ({TPOT.id: ObjectiveCounts(98, 2), GAP.id: ObjectiveCounts(10, 0)}, "1/2", ("False", Reason.VIOLATED)),
        ({TPOT.id: ObjectiveCounts(99, 1)}, "1/2", ("True", Reason.MET)),
        ({}, "-/2", ("Unknown", Reason.NO_REQUESTS)),
        (Unobserved(Missing.UNREACHABLE, "away"), "-/2", ("Unknown", Reason.NOT_OBSERVED)),
    ],
)
def test_objectives_are_met_by_their_targets(
    counts: dict[str, ObjectiveCounts] | Unobserved, summary: str, verdict: tuple[str, Reason]
) -> None:
    _, met, found = conditions.objectives_status((TPOT, GAP), counts, window="5m")
    assert met == summary
    assert (found.status, found.reason) == verdict


def test_a_budget_says_how_many_violations_are_left() -> None:
    rows, _, _ = conditions.objectives_status((TPOT,), {TPOT.id: ObjectiveCounts(995, 5)}, window="5m")
    assert (rows[0].attained, rows[0].budget_remaining) == ("99.5", "50")


def test_figures_are_quantised_so_that_noise_writes_no_status() -> None:
    one, other = ({TPOT.id: ObjectiveCounts(9951, 49)}, {TPOT.id: ObjectiveCounts(9950, 50)})
    rows = [conditions.objectives_status((TPOT,), counts, window="5m")[0] for counts in (one, other)]
    assert rows[0] == rows[1]


def behind(moved: float, in_time: float, wait: float) -> OrderOutcome:
    return OrderOutcome(moved_behind=moved, in_time_after_all=in_time, longest_wait=wait)


def test_what_the_order_did_is_told_with_two_digits() -> None:
    told = conditions.order_status(None, behind(137.4, 41.8, 28.31), window="5m")
    assert told == OrderStatus(moved_behind=140, in_time_after_all=42, longest_wait="28s", window="5m")
    idle = conditions.order_status(None, behind(0, 0, 0), window="5m")
    assert idle == OrderStatus(longest_wait="0s", window="5m")


@pytest.mark.parametrize(
    ("now", "kept"),
    [
        (behind(120, 36, 24), True),
        (behind(170, 50, 34), True),
        (behind(180, 42, 28), False),
        (behind(140, 30, 28), False),
        (behind(140, 42, 60), False),
        (behind(0, 0, 0), False),
    ],
)
def test_counts_of_the_order_that_scatter_write_no_status(now: OrderOutcome, kept: bool) -> None:
    told = OrderStatus(moved_behind=140, in_time_after_all=42, longest_wait="28s", window="5m")
    assert (conditions.order_status(told, now, window="5m") == told) is kept


def test_the_first_that_is_moved_behind_is_told_and_so_is_that_there_are_none_any_more() -> None:
    nobody = conditions.order_status(None, behind(0, 0, 0), window="5m")
    one = conditions.order_status(nobody, behind(1, 0, 3), window="5m")
    assert one is not None
    assert one.moved_behind == 1
    assert conditions.order_status(one, behind(0, 0, 0), window="5m") == nobody


@pytest.mark.parametrize("wait", ["", "long"])
def test_what_status_says_of_the_order_that_is_none_is_told_anew(wait: str) -> None:
    odd = OrderStatus(moved_behind=140, in_time_after_all=42, longest_wait=wait, window="5m")
    assert conditions.order_status(odd, behind(140, 42, 28), window="5m") != odd


def test_an_order_that_nobody_counts_is_not_told() -> None:
    told = OrderStatus(moved_behind=140, in_time_after_all=42, longest_wait="28s", window="5m")
    assert conditions.order_status(told, None, window="5m") is None


def test_a_policy_survives_the_way_through_status() -> None:
    for given in (limits(16, 256), Limits(max_num_active_seqs=4, max_num_scheduled_tokens=128)):
        assert through_status(Policy(limits=given)) == Policy(limits=given)
    state = shedding()
    assert state.policy.shed is not None
    assert through_status(state.policy) == state.policy
    without_budget = tuning(TTFT, overload=Overload.SHED)
    policy = shedding(without_budget).policy
    assert policy.budget is None
    assert through_status(policy) == policy


def test_the_next_leader_goes_on_with_the_same_policy() -> None:
    state = shedding()
    status = TuningStatus(
        setpoint=status_codec.setpoint_status(state.policy),
        model=status_codec.model_status(state.step_time),
    )
    again = status_codec.resumed(reread(status), SHED)
    assert again.policy == state.policy
    _, decision = decide(again, signals(400.0), SHED, 400.0)
    assert not decision.changed


@pytest.mark.parametrize(
    "changed",
    [
        {"step_budget": "soon"},
        {"first_token_deadline": "-1s"},
        {"first_token_margin": "9"},
        {"first_token_margin": "nan"},
        {"refusal_status": 500},
        {"on_time_deadline": "whenever"},
        {"on_time_margin": "2"},
    ],
)
def test_a_policy_that_is_none_is_not_resumed(changed: dict[str, object]) -> None:
    setpoint = status_codec.setpoint_status(shedding().policy).model_copy(update=changed)
    assert status_codec.policy_of(setpoint) is None


def test_what_was_written_before_refusals_had_a_status_is_resumed() -> None:
    setpoint = status_codec.setpoint_status(shedding().policy).model_copy(update={"refusal_status": None})
    assert status_codec.policy_of(setpoint) == shedding().policy


def test_what_was_written_before_decodes_paid_for_their_context_is_resumed() -> None:
    setpoint = json.loads(status_codec.setpoint_status(shedding().policy).model_dump_json())
    del setpoint["step_model"]["d"]
    policy = status_codec.policy_of(SetpointStatus.model_validate(setpoint))
    assert policy is not None
    assert policy.step is not None
    assert policy.step.model.d == 0.0


def test_what_decodes_pay_for_their_context_is_resumed() -> None:
    policy, reading = shedding().policy, model_spec(replace(CPU, d=5e-8))
    assert policy.step is not None
    written = status_codec.setpoint_status(replace(policy, step=policy.step.model_copy(update={"model": reading})))
    again = status_codec.policy_of(written)
    assert again is not None
    assert again.step is not None
    assert again.step.model == reading


def test_a_budget_without_its_model_is_not_resumed() -> None:
    setpoint = status_codec.setpoint_status(shedding().policy)
    for nothing in (None, StepModelCoefficients(), StepModelCoefficients(t0="9000", c1="1")):
        policy = status_codec.policy_of(setpoint.model_copy(update={"step_model": nothing}))
        assert policy is not None
        assert policy.step is None


def shedding(spec: TuningSpec = SHED) -> TuningState:
    """A state at rest behind a gate."""
    state = start(spec)
    for tick in range(20):
        state, _ = decide(state, signals(100.0 + 5 * tick), spec, 100.0 + 5 * tick)
    return state


def reread(status: TuningStatus) -> TuningStatus:
    """As the API server gives it back."""
    return TuningStatus.model_validate(status.model_dump(by_alias=True, mode="json"))


def through_status(policy: Policy) -> Policy | None:
    return status_codec.policy_of(reread(TuningStatus(setpoint=status_codec.setpoint_status(policy))).setpoint)
