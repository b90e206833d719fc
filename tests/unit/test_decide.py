"""Decisions, tick by tick: when it holds, and why."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from flyball_engine.contract import StepKind
from flyball_lab.harness.tuning import GAP, TPOT, TTFT, limits, outcome, signals, step_window, tuning
from flyball_operator.api.v1alpha1 import Mode, Overload
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.filters.filters import FILTERS, Filter, HoldReason, Pace
from flyball_operator.tuning.observe.signal_history import SignalHistory
from flyball_operator.tuning.observe.signals import (
    CellKey,
    Missing,
    ObjectiveCounts,
    Observation,
    RequestLoad,
    StepWindow,
    Sums,
    Unobserved,
    blind_spot,
)
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.spec import Envelope, Span, TuningSpec
from flyball_operator.tuning.state import Decision, TuningState, start
from flyball_operator.tuning.tunables import TUNABLES

AUTO = tuning(TTFT, TPOT, GAP)


def changed_at(at: float) -> tuple[Filter, ...]:
    """The filters of a service whose policy changed then."""
    return tuple(Pace(at) if isinstance(one, Pace) else one for one in FILTERS)


def ticks(
    state: TuningState, *observations: Observation, spec: TuningSpec = AUTO, now: float = 100.0
) -> tuple[TuningState, Decision]:
    """Several ticks, five seconds apart; the last decision."""
    assert observations
    for number, observation in enumerate(observations):
        state, decision = decide(state, observation, spec, now + 5 * number)
    return state, decision


def tuned(spec: TuningSpec = AUTO, count: int = 12) -> TuningState:
    """A state that has seen enough to be at rest."""
    state, _ = ticks(start(spec), *(signals(100.0 + 5 * n) for n in range(count)), spec=spec)
    return state


def test_it_starts_where_the_pods_do() -> None:
    assert start(AUTO).limits == limits(128, 2048)


@pytest.mark.parametrize(("envelope", "first"), [((128, 8192), 512), ((1024, 8192), 1024), ((128, 256), 256)])
def test_where_a_gate_will_stand_its_first_steps_are_short(envelope: tuple[int, int], first: int) -> None:
    seqs, tokens = envelope
    spec = tuning(TTFT, TPOT, overload=Overload.SHED, envelope=Envelope(Span(4, seqs), Span(128, tokens)))
    assert start(spec).limits == limits(seqs, first)
    # Nothing is gained by that where no token has an objective, and nothing is sent in the other modes.
    for other in (replace(spec, objectives=(TTFT,)), replace(spec, mode=Mode.RECOMMEND)):
        assert start(other).limits == limits(seqs, tokens)


def test_a_tick_that_asks_for_no_steps_decides_by_what_is_known() -> None:
    before = tuned()
    after, decision = decide(before, replace(signals(500.0, arrivals=9.0), steps=None), AUTO, 500.0)
    assert (after.step_time, after.workload) == (before.step_time, before.workload)
    assert decision.hold is not HoldReason.NOT_OBSERVED
    assert "9/s per core" in decision.trigger


@pytest.mark.parametrize("absurd", [math.nan, math.inf, -1.0])
def test_figures_that_cannot_be_are_not_acted_on(absurd: float) -> None:
    before = tuned()
    for seen in (
        signals(500.0, arrivals=absurd),
        signals(500.0, window=step_window(start=485, end=500, slower=absurd)),
        replace(signals(500.0), outcomes={TPOT.id: outcome(absurd, 0)}),
    ):
        after, decision = ticks(before, seen, now=500.0)
        assert (after, decision.hold) == (before, HoldReason.NOT_OBSERVED)


def test_requests_of_overlapping_windows_count_once() -> None:
    longer = 60 * 80.0
    first, _ = ticks(start(AUTO), signals(100.0))
    second, _ = ticks(first, signals(105.0, generated_tokens=longer), now=105.0)
    third, _ = ticks(second, signals(115.0, generated_tokens=longer), now=115.0)
    assert second.workload.recent == first.workload.recent
    recent = third.workload.recent
    assert recent.output / recent.requests == pytest.approx((0.9 * 40 + 80) / 1.9)


def test_a_clock_set_back_does_not_freeze_what_is_known_of_requests() -> None:
    state, _ = ticks(start(AUTO), signals(10_000.0, generated_tokens=400.0), now=10_000.0)
    late, _ = ticks(state, signals(9_997.0, generated_tokens=800.0), now=10_002.0)
    assert late.workload.recent == state.workload.recent, "another Prometheus may be some seconds behind"
    after, _ = ticks(state, signals(6_400.0, generated_tokens=800.0), now=6_400.0)
    assert after.workload.recent.output > state.workload.recent.output


def test_a_clock_set_back_does_not_end_the_windows_of_read_backs() -> None:
    ten, thirty = (
        {"engine": {CellKey(1, StepKind.DECODE): Sums(steps=count, seconds=0.02 * count, tokens=count, decodes=count)}}
        for count in (10.0, 30.0)
    )
    history = SignalHistory(lambda: 0.0, 60.0, seen=False)
    unobserved = Unobserved(Missing.UNREACHABLE, "away")
    assert history.steps_read_back(unobserved, lambda: ten, 10_000.0) is None
    assert history.steps_read_back(unobserved, lambda: ten, 6_400.0) is None, "how long it took is not known"
    window = history.steps_read_back(unobserved, lambda: thirty, 6_430.0)
    assert window is not None
    assert (window.start, window.end, window.total().steps) == (6_400.0, 6_430.0, 20.0)


@pytest.mark.parametrize("reason", list(Missing))
def test_what_was_not_observed_is_not_acted_on(reason: Missing) -> None:
    before = tuned()
    after, decision = ticks(before, Unobserved(reason, "away"), now=500.0)
    assert after == before
    assert decision.hold is HoldReason.NOT_OBSERVED


@pytest.mark.parametrize(("age", "fresh"), [(100.0, True), (130.0, False)])
def test_samples_of_a_prometheus_that_scrapes_once_a_minute_are_fresh_for_two(age: float, fresh: bool) -> None:
    seldom = replace(signals(1000.0, age=age), window_seconds=180.0)
    assert (blind_spot(seldom, TUNABLES.stale_seconds) is None) is fresh


def test_stale_samples_are_not_acted_on() -> None:
    before = tuned()
    after, decision = ticks(before, signals(500.0, age=60.0, waiting=500.0), now=500.0)
    assert after == before
    assert decision.hold is HoldReason.NOT_OBSERVED


@pytest.mark.parametrize("figure", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("field", ["arrivals", "running", "held_tokens", "used_tokens", "generated_tokens"])
def test_a_figure_that_is_no_number_is_not_acted_on_and_named(field: str, figure: float) -> None:
    state, seen = start(AUTO), signals(100.0)
    assert isinstance(seen.load, RequestLoad)
    after, decision = decide(state, replace(seen, load=replace(seen.load, **{field: figure})), AUTO, 100.0)
    assert decision.hold is HoldReason.NOT_OBSERVED
    assert decision.trigger == f"{field} is below zero, infinite or no number"
    assert after == state


def test_nor_is_one_of_the_steps_or_of_the_counts() -> None:
    seen = signals(100.0)
    assert isinstance(seen.steps, StepWindow)
    key, sums = next(iter(seen.steps.cells.items()))
    cells = {**seen.steps.cells, key: sums._replace(seconds=math.nan)}
    for changed, field in (
        (replace(seen, steps=replace(seen.steps, cells=cells)), "steps.seconds"),
        (replace(seen, outcomes={"tpot": ObjectiveCounts(math.inf, 0.0)}), "tpot.met"),
        (replace(seen, outcomes={"ttft": ObjectiveCounts(1.0, math.nan)}), "ttft.violated"),
    ):
        _, decision = decide(start(AUTO), changed, AUTO, 100.0)
        assert (decision.hold, decision.trigger) == (
            HoldReason.NOT_OBSERVED,
            f"{field} is below zero, infinite or no number",
        )


def test_counters_without_two_scrapes_are_not_acted_on() -> None:
    before = tuned()
    blind = replace(signals(500.0), load=Unobserved(Missing.TOO_FEW_SAMPLES, "one scrape"))
    after, decision = ticks(before, blind, now=500.0)
    assert (after, decision.hold) == (before, HoldReason.NOT_OBSERVED)


def test_an_idle_service_is_left_alone() -> None:
    before = tuned()
    after, decision = ticks(before, signals(500.0, arrivals=0.0, running=0.0), now=500.0)
    assert after.limits == before.limits
    assert decision.hold is HoldReason.IDLE


def test_nothing_moves_before_the_model_is_trusted() -> None:
    alike = step_window(decodes=(4,), prefills=(0, 50), steps=10, start=85.0, end=100.0)
    state, decision = ticks(start(AUTO), signals(100.0, window=alike))
    assert state.limits == limits(128, 2048)
    assert decision.hold is HoldReason.LEARNING
    assert "too few engine steps were seen" in decision.trigger


def test_at_rest_equal_signals_change_nothing() -> None:
    state = tuned(count=40)
    after, decision = ticks(state, signals(300.0), now=300.0)
    assert after.limits == state.limits
    assert decision.hold is HoldReason.GOOD_ENOUGH


def test_changed_bounds_move_the_limits_at_once_and_unobserved() -> None:
    narrow = replace(AUTO, envelope=Envelope(Span(4, 16), Span(128, 256)))
    state, decision = ticks(start(AUTO), Unobserved(Missing.UNREACHABLE, "away"), spec=narrow)
    assert state.limits == limits(16, 256)
    assert (decision.changed, decision.cause) == (True, "SpecEdited")


def flapping(number: int, at: float) -> Observation:
    """A window in which each decode had three drafts, or none, in turns: a step makes as many tokens, and may last."""
    window = step_window(start=at - 15, end=at)
    drafts = 3 * (number // 2 % 2)
    cells = {
        key: sums._replace(tokens=sums.tokens + drafts * sums.decodes) if key.kind is StepKind.DECODE else sums
        for key, sums in window.cells.items()
    }
    return signals(at, window=replace(window, cells=cells), finished=5.0, generated_tokens=1e6)


def test_signals_that_flap_change_it_six_times_a_minute_at_most() -> None:
    state, changed, held = tuned(), [], []
    for number in range(120):
        at = 200.0 + 5 * number
        state, decision = ticks(state, flapping(number, at), now=at)
        if decision.changed:
            changed.append(at)
        if decision.hold is HoldReason.CHANGED_OFTEN:
            held.append(decision)
    assert all(sum(start <= at < start + 60.0 for at in changed) <= 6 for start in changed)
    assert held
    assert held[-1].trigger.endswith("this change waits")


def test_a_change_that_waits_is_weighed_anew_and_made_when_it_may_be() -> None:
    state = replace(tuned(), filters=changed_at(195.0), policy=Policy(limits=limits(128, 2048)))
    state, early = ticks(state, signals(200.0), now=200.0)
    assert (early.hold, early.changed) == (HoldReason.CHANGED_OFTEN, False)
    assert early.output is not None
    _, later = ticks(state, signals(205.0), now=205.0)
    assert (later.changed, later.cause) == (True, early.output.binding)


def test_the_moves_of_a_shadow_are_not_counted() -> None:
    shadow, state = replace(AUTO, mode=Mode.RECOMMEND), tuned()
    before = state.changed_at
    for number in range(40):
        at = 200.0 + 5 * number
        state, decision = ticks(state, flapping(number, at), spec=shadow, now=at)
        assert decision.hold is not HoldReason.CHANGED_OFTEN
    assert state.changed_at == before


def test_what_the_spec_asks_for_is_not_held() -> None:
    often = replace(start(AUTO), filters=changed_at(95.0))
    narrow = replace(AUTO, envelope=Envelope(Span(4, 16), Span(128, 256)))
    state, decision = ticks(often, signals(100.0), spec=narrow)
    assert decision.changed
    assert state.limits == limits(16, 256)


def test_overlapping_windows_teach_nothing_twice() -> None:
    first, _ = ticks(start(AUTO), signals(100.0))
    second, _ = ticks(first, signals(105.0), now=105.0)
    third, _ = ticks(second, signals(115.0), now=115.0)
    assert second.step_time == first.step_time
    assert third.step_time != first.step_time


def test_every_decision_says_why_in_a_sentence() -> None:
    _, decision = ticks(start(AUTO), signals(100.0))
    said = r"\w+ binds at 4/s per core of \d+\+40 tokens, 0 waiting; what can meet ttft is served first"
    assert re.fullmatch(said, decision.trigger)
