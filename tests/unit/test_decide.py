"""The governor's decisions, tick by tick: when it holds, and why."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from flyball_operator.api.v1alpha1 import Mode
from flyball_operator.governor.governor import STALE_SECONDS, Decision, State, decide, start
from flyball_operator.governor.guard import Hold
from flyball_operator.governor.policy import Policy
from flyball_operator.governor.signals import Missing, Observation, Unobserved, blind_spot
from flyball_operator.governor.spec import Envelope, Span, TuningSpec
from support.tuning import GAP, TPOT, TTFT, limits, outcome, signals, step_window, tuning

AUTO = tuning(TTFT, TPOT, GAP)


def ticks(
    state: State, *observations: Observation, spec: TuningSpec = AUTO, now: float = 100.0
) -> tuple[State, Decision]:
    """Several ticks, five seconds apart; the last decision."""
    assert observations
    for number, observation in enumerate(observations):
        state, decision = decide(state, observation, spec, now + 5 * number)
    return state, decision


def tuned(spec: TuningSpec = AUTO, count: int = 12) -> State:
    """A state that has seen enough to be at rest."""
    state, _ = ticks(start(spec), *(signals(100.0 + 5 * n) for n in range(count)), spec=spec)
    return state


def test_it_starts_where_the_pods_do() -> None:
    assert start(AUTO).limits == limits(128, 2048)


@pytest.mark.parametrize("reason", list(Missing))
def test_what_was_not_observed_is_not_acted_on(reason: Missing) -> None:
    before = tuned()
    after, decision = ticks(before, Unobserved(reason, "away"), now=500.0)
    assert after == before
    assert decision.hold is Hold.NOT_OBSERVED


@pytest.mark.parametrize(("age", "fresh"), [(100.0, True), (130.0, False)])
def test_samples_of_a_prometheus_that_scrapes_once_a_minute_are_fresh_for_two(age: float, fresh: bool) -> None:
    seldom = replace(signals(1000.0, age=age), window_seconds=180.0)
    assert (blind_spot(seldom, STALE_SECONDS) is None) is fresh


def test_stale_samples_are_not_acted_on() -> None:
    before = tuned()
    after, decision = ticks(before, signals(500.0, age=60.0, waiting=500.0), now=500.0)
    assert after == before
    assert decision.hold is Hold.NOT_OBSERVED


def test_counters_without_two_scrapes_are_not_acted_on() -> None:
    before = tuned()
    blind = replace(signals(500.0), load=Unobserved(Missing.TOO_FEW_SAMPLES, "one scrape"))
    after, decision = ticks(before, blind, now=500.0)
    assert (after, decision.hold) == (before, Hold.NOT_OBSERVED)


def test_an_idle_service_is_left_alone() -> None:
    before = tuned()
    after, decision = ticks(before, signals(500.0, arrivals=0.0, running=0.0), now=500.0)
    assert after.limits == before.limits
    assert decision.hold is Hold.IDLE


def test_nothing_moves_before_the_model_is_trusted() -> None:
    alike = step_window(decodes=(4,), prefills=(0, 50), steps=10, start=85.0, end=100.0)
    state, decision = ticks(start(AUTO), signals(100.0, window=alike))
    assert state.limits == limits(128, 2048)
    assert decision.hold is Hold.LEARNING
    assert "FewSteps" in decision.trigger


def test_at_rest_equal_signals_change_nothing() -> None:
    state = tuned(count=40)
    after, decision = ticks(state, signals(300.0), now=300.0)
    assert after.limits == state.limits
    assert decision.hold is Hold.GOOD_ENOUGH


def test_changed_bounds_move_the_limits_at_once_and_unobserved() -> None:
    narrow = replace(AUTO, envelope=Envelope(Span(4, 16), Span(128, 256)))
    state, decision = ticks(start(AUTO), Unobserved(Missing.UNREACHABLE, "away"), spec=narrow)
    assert state.limits == limits(16, 256)
    assert decision.changed


def test_overlapping_windows_teach_nothing_twice() -> None:
    first, _ = ticks(start(AUTO), signals(100.0))
    second, _ = ticks(first, signals(105.0), now=105.0)
    third, _ = ticks(second, signals(115.0), now=115.0)
    assert second.learner == first.learner
    assert third.learner != first.learner


def test_a_change_that_makes_things_worse_is_undone() -> None:
    good, bad = outcome(100, 0), outcome(50, 50)
    state = tuned(count=40)
    state = replace(state, last_outcome=good, counted_until=295.0)
    heavier = signals(300.0, window=step_window(start=285, end=300, slower=1.0), generated_tokens=60 * 160.0)
    worse = replace(state, policy=Policy(limits=limits(128, 2048)))
    state, decision = ticks(worse, replace(heavier, goodput=good), now=300.0)
    assert decision.changed
    at, undone = 300.0, None
    for _ in range(40):
        at += 5.0
        state, decision = ticks(state, replace(signals(at), goodput=bad, at=at), now=at)
        if state.held_until > at:
            undone = decision
            break
    assert undone is not None
    assert undone.policy.limits == limits(128, 2048)
    _, held = ticks(state, signals(at + 5), now=at + 5)
    assert held.hold is Hold.ROLLED_BACK


def test_a_shadow_is_neither_tried_nor_trimmed() -> None:
    recommend = replace(AUTO, mode=Mode.RECOMMEND)
    bad = {TPOT.id: outcome(50, 50)}
    observations = [replace(signals(100.0 + 5 * n), outcomes=bad, goodput=outcome(50, 50)) for n in range(20)]
    state, _ = ticks(start(recommend), *observations, spec=recommend)
    assert state.limits != limits(128, 2048), "it recommends"
    assert state.trial is None
    assert state.margins == start(recommend).margins


def test_violations_tighten_the_margin_while_the_law_is_live() -> None:
    bad = {TPOT.id: outcome(80, 20)}
    observations = [replace(signals(100.0 + 5 * n), outcomes=bad) for n in range(20)]
    state, _ = ticks(start(AUTO), *observations)
    assert state.margins.token < start(AUTO).margins.token


def test_every_decision_says_why_in_a_sentence() -> None:
    _, decision = ticks(start(AUTO), signals(100.0))
    assert re.fullmatch(r"\w+ binds at 4/s per core of \d+\+40 tokens, 0 waiting", decision.trigger)
