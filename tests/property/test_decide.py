"""Whatever is observed: limits stay in bounds, equal inputs give equal decisions, the unknown moves nothing."""

from __future__ import annotations

import math
from dataclasses import fields, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_engine.contract import Metric, StepKind
from flyball_operator.api.v1alpha1 import Mode, Order, Overload
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.observe.signals import (
    CellKey,
    DraftSums,
    Missing,
    ObjectiveCounts,
    Observation,
    PromptSums,
    RequestLoad,
    Signals,
    StepWindow,
    Sums,
    Unobserved,
)
from flyball_operator.tuning.spec import Envelope, LatencyObjective, Span, TuningSpec
from flyball_operator.tuning.state import TuningState, start
from flyball_operator.tuning.status_codec import policy_of, setpoint_status

SOME = settings(max_examples=20)
counts = st.floats(0, 1e6, allow_nan=False)
seconds = st.floats(1e-4, 60)


@st.composite
def spans(draw: st.DrawFn, largest: int) -> Span:
    least = draw(st.integers(1, largest))
    return Span(least, draw(st.integers(least, largest)))


objectives = st.lists(
    st.builds(
        LatencyObjective, st.sampled_from(["a", "b", "c"]), st.sampled_from(Metric), seconds, st.floats(1e-9, 0.5)
    ),
    max_size=4,
    unique_by=lambda objective: objective.id,
).map(tuple)
specs = st.builds(
    TuningSpec,
    st.sampled_from(Mode),
    st.builds(Envelope, spans(512), spans(16384)),
    objectives,
    st.sampled_from(Overload),
    order=st.sampled_from(Order),
)
sums = st.builds(
    Sums,
    steps=counts,
    seconds=counts,
    seconds_squared=counts,
    tokens=counts,
    prefill_tokens=counts,
    decodes=counts,
    kv_tokens=counts,
    prefill_attention=st.floats(0, 1e12),
)


@st.composite
def cells(draw: st.DrawFn) -> dict[CellKey, Sums]:
    """Anything a pod may claim: mostly steps that can be, some that cannot."""
    found: dict[CellKey, Sums] = {}
    for _ in range(draw(st.integers(0, 12))):
        bucket, kind = 2 ** draw(st.integers(0, 14)), draw(st.sampled_from(StepKind))
        steps, mean = draw(st.integers(1, 1000)), draw(st.floats(1e-5, 10))
        tokens = draw(st.integers(bucket // 2 + 1, bucket))
        decodes = tokens if kind is StepKind.DECODE else draw(st.integers(0, tokens))
        prefill = tokens - decodes
        plausible = Sums(
            steps=steps,
            seconds=steps * mean,
            seconds_squared=steps * mean**2,
            tokens=steps * tokens,
            prefill_tokens=steps * prefill,
            decodes=steps * decodes,
            prefill_attention=steps * prefill * draw(st.floats(0, 1e5)),
        )
        found[CellKey(bucket, kind)] = draw(sums) if draw(st.integers(0, 9)) == 0 else plausible
    return found


loads = st.builds(
    RequestLoad,
    arrivals=counts,
    finished=counts,
    prompt_tokens=counts,
    cached_tokens=counts,
    generated_tokens=counts,
    running=counts,
    waiting=counts,
    kv_tokens=counts,
    held_tokens=counts,
    used_tokens=st.one_of(st.none(), counts),
)
drafts = st.lists(st.builds(DraftSums, counts, counts, counts), max_size=3).map(tuple)
prompts = st.builds(PromptSums, tokens=counts, squares=st.floats(0, 1e15))
missing = st.builds(Unobserved, st.sampled_from(Missing), st.text(max_size=20))
outcomes = st.builds(ObjectiveCounts, counts, counts)


@st.composite
def observations(draw: st.DrawFn, at: float) -> Observation:
    if draw(st.integers(0, 9)) == 0:
        return draw(missing)
    computed = draw(st.one_of(st.none(), prompts))
    window = StepWindow(start=at - 15, end=at, cells=draw(cells()), prompts=computed, drafts=draw(drafts))
    return Signals(
        at=at,
        age_seconds=draw(st.floats(0, 40)),
        window_seconds=15.0,
        cores=draw(st.integers(0, 8)),
        steps=draw(st.one_of(missing, st.just(window), st.just(window))),
        load=draw(st.one_of(missing, loads, loads, loads)),
        outcomes=draw(st.dictionaries(st.sampled_from(["TimePerOutputToken/1", "x"]), outcomes, max_size=2)),
    )


@st.composite
def histories(draw: st.DrawFn) -> list[Observation]:
    return [draw(observations(100.0 + 5 * tick)) for tick in range(draw(st.integers(1, 12)))]


def play(spec: TuningSpec, history: list[Observation]) -> list[TuningState]:
    states = [start(spec)]
    for tick, observation in enumerate(history):
        states.append(decide(states[-1], observation, spec, 100.0 + 5 * tick)[0])
    return states


@SOME
@given(specs, histories())
def test_limits_never_leave_the_bounds(spec: TuningSpec, history: list[Observation]) -> None:
    for state in play(spec, history):
        seqs, tokens = state.limits.max_num_active_seqs, state.limits.max_num_scheduled_tokens
        assert seqs is not None
        assert tokens is not None
        assert spec.envelope.seqs.least <= seqs <= spec.envelope.seqs.most
        assert spec.envelope.tokens.least <= tokens <= spec.envelope.tokens.most


@SOME
@given(specs, histories(), specs, histories())
def test_the_same_history_gives_the_same_states_whatever_is_decided_in_between(
    spec: TuningSpec, history: list[Observation], other_spec: TuningSpec, other_history: list[Observation]
) -> None:
    once = play(spec, history)
    play(other_spec, other_history)
    assert play(spec, history) == once


@SOME
@given(specs, histories())
def test_only_who_sheds_has_a_gate_and_it_survives_the_way_through_status(
    spec: TuningSpec, history: list[Observation]
) -> None:
    for state in play(spec, history):
        assert state.policy == state.policy.within(sheds=spec.sheds, orders=spec.orders)
        assert state.policy.step is not None or state.policy.deadline is None
        assert policy_of(setpoint_status(state.policy)) == state.policy


@SOME
@given(specs, histories(), missing)
def test_what_is_not_observed_moves_nothing(spec: TuningSpec, history: list[Observation], unknown: Unobserved) -> None:
    last = play(spec, history)[-1]
    after, decision = decide(last, unknown, spec, 1000.0)
    assert after == last
    assert not decision.changed


@SOME
@given(specs, histories(), st.sampled_from([math.nan, math.inf, -math.inf]), st.data())
def test_a_figure_that_is_no_number_moves_nothing_either(
    spec: TuningSpec, history: list[Observation], figure: float, data: st.DataObject
) -> None:
    last, seen = play(spec, history)[-1], data.draw(observations(1000.0).filter(lambda one: isinstance(one, Signals)))
    assert isinstance(seen, Signals)
    load = data.draw(loads)
    name = data.draw(st.sampled_from([f.name for f in fields(RequestLoad)]))
    after, decision = decide(last, replace(seen, load=replace(load, **{name: figure})), spec, 1000.0)
    assert after == last
    assert decision.trigger == f"{name} is below zero, infinite or no number"


@SOME
@given(specs, specs, histories())
def test_other_bounds_hold_from_the_next_tick_on(
    spec: TuningSpec, other: TuningSpec, history: list[Observation]
) -> None:
    state = play(spec, history)[-1]
    after, _ = decide(state, history[-1], replace(spec, envelope=other.envelope), 1000.0)
    seqs = after.limits.max_num_active_seqs
    assert seqs is not None
    assert other.envelope.seqs.least <= seqs <= other.envelope.seqs.most


@SOME
@given(specs, specs, histories(), missing)
def test_an_edited_spec_takes_away_what_it_does_not_ask_for_though_nothing_is_observed(
    spec: TuningSpec, other: TuningSpec, history: list[Observation], unknown: Unobserved
) -> None:
    state = play(spec, history)[-1]
    for tick in range(3):
        state, _ = decide(state, unknown, other, 1000.0 + 5 * tick)
    assert decide(state, unknown, other, 1015.0)[0] == state
    assert state.policy == state.policy.within(sheds=other.sheds, orders=other.orders)
    if state.policy.shed is None:
        assert state.policy.queued_tokens in (None, start(other).policy.queued_tokens)
    assert policy_of(setpoint_status(state.policy)) == state.policy
