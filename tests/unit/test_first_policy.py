"""What engines are told before anything is known of them, and what becomes of it when the user wants something else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_engine.contract import LARGEST_LIMIT, Shed
from flyball_lab.harness.service_tuners import AWAY, Harness
from flyball_lab.harness.tuning import E2E, ENVELOPE, TPOT, TTFT, signals, tuning
from flyball_lab.harness.virtual_time import in_virtual_time
from flyball_operator.api.v1alpha1 import Mode, Overload, TuningStatus
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.observe.signals import Missing, Unobserved
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.state import Decision, TuningState, start
from flyball_operator.tuning.status_codec import policy_of, resumed, setpoint_status
from flyball_operator.tuning.tunables import TUNABLES

SHED = tuning(TTFT, TPOT, overload=Overload.SHED)


def test_before_a_gate_so_many_prompt_tokens_wait_as_first_steps_serve_in_time() -> None:
    first = start(SHED).policy
    assert first.limits.max_num_scheduled_tokens == TUNABLES.first_tokens
    assert first.queued_tokens == int(TUNABLES.first_tokens * TTFT.seconds / TPOT.seconds)
    assert policy_of(setpoint_status(first)) == first, "the next leader goes on with it"
    _, decision = decide(start(SHED), signals(100.0), SHED, 100.0)
    assert decision.policy.shed is not None
    assert decision.policy.queued_tokens is None, "the gate knows better"


def test_where_all_wait_or_no_objective_says_how_long_the_queue_is_unlimited() -> None:
    for spec in (replace(SHED, overload=Overload.QUEUE), replace(SHED, mode=Mode.RECOMMEND), tuning(TTFT), tuning(E2E)):
        assert start(spec).policy.queued_tokens is None


def test_objectives_that_are_far_apart_ask_for_no_more_than_a_setpoint_takes() -> None:
    hours = replace(SHED, objectives=(replace(TTFT, seconds=7200.0), replace(TPOT, seconds=0.001)))
    assert start(hours).policy.queued_tokens == LARGEST_LIMIT


def edited(spec: TuningSpec, *, state: TuningState | None = None) -> tuple[TuningState, Decision]:
    """The tick after an edit, of a service that nothing is known of and nothing is seen of."""
    return decide(state or start(SHED), Unobserved(Missing.UNREACHABLE, "away"), spec, 100.0)


@pytest.mark.parametrize(
    "spec",
    [
        replace(SHED, overload=Overload.QUEUE),
        replace(SHED, objectives=()),
        replace(SHED, objectives=(TPOT,)),
        replace(SHED, objectives=(TTFT,)),
    ],
    ids=["queue", "no objectives", "no deadline", "no token objective"],
)
@pytest.mark.parametrize("restarted", [False, True])
def test_the_first_queue_and_its_steps_go_with_what_asked_for_them(spec: TuningSpec, restarted: bool) -> None:
    state = resumed(TuningStatus(setpoint=setpoint_status(start(SHED).policy)), spec) if restarted else start(SHED)
    after, decision = edited(spec, state=state)
    assert after.policy == Policy(limits=ENVELOPE.upper()) == start(spec).policy
    assert decision.trigger == "what is asked for changed, and the first policy with it"
    assert not edited(spec, state=after)[1].changed


@pytest.mark.parametrize("times", [0.5, 10.0])
def test_an_edited_objective_says_at_once_how_many_may_wait(times: float) -> None:
    spec = replace(SHED, objectives=(replace(TTFT, seconds=times * TTFT.seconds), TPOT))
    after, _ = edited(spec)
    assert after.policy.queued_tokens == pytest.approx(times * (start(SHED).policy.queued_tokens or 0), rel=0.001)
    assert after.policy.limits == start(SHED).limits


def test_limits_that_a_trusted_model_moves_stay_where_they_are() -> None:
    step_time = decide(start(SHED), signals(100.0), SHED, 100.0)[0].step_time
    assert step_time.model is not None
    after, _ = edited(replace(SHED, overload=Overload.QUEUE), state=replace(start(SHED), step_time=step_time))
    assert after.policy == Policy(limits=start(SHED).limits)


def test_a_gate_that_stands_is_left_alone() -> None:
    shed = Shed(ttft_deadline_seconds=TTFT.seconds, margin=0.8)
    gated = replace(start(SHED), policy=replace(start(SHED).policy, shed=shed))
    after, _ = edited(replace(SHED, objectives=(TTFT,)), state=gated)
    assert after.policy == gated.policy


@in_virtual_time
async def test_engines_that_cannot_gate_lose_the_first_queue_once_they_say_so() -> None:
    harness = Harness()
    harness.sheds()
    tuner = harness.tuner()
    await harness.tick(tuner, AWAY, AWAY)
    assert harness.held().queue.max_num_queued_tokens is not None
    harness.engines.ungated = "no such method in this vLLM"
    for _ in range(30):
        await harness.tick(tuner, AWAY, AWAY)
    assert harness.held().queue.max_num_queued_tokens is None
    assert harness.engines.limits() == (128, 2048)
