"""The sums, compared with adding up every step by hand."""

from __future__ import annotations

from collections import defaultdict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_engine.batching.step_statistics import Step, StepStatistics, step_sums
from flyball_engine.contract import STEP_FIELDS, TOKEN_BUCKETS, StepKind

STEPS = st.builds(
    lambda prefill, decodes, context: Step(
        tokens=prefill + decodes,
        prefill_tokens=prefill,
        decodes=decodes,
        kv_tokens=decodes * context,
        prefill_attention=prefill * (context + prefill / 2),
    ),
    prefill=st.one_of(st.just(0), st.integers(1, 9000)),
    decodes=st.integers(0, 600),
    context=st.integers(0, 5000),
)
#: A step is scheduled, or the oldest one in flight ends; milliseconds pass before either.
EVENTS = st.lists(st.tuples(st.integers(1, 5000), st.one_of(st.none(), STEPS)), max_size=60)


@given(EVENTS)
def test_sums_are_those_of_every_single_step(events: list[tuple[int, Step | None]]) -> None:
    statistics, by_hand = (
        StepStatistics(),
        defaultdict[tuple[int, StepKind], list[float]](lambda: [0.0] * len(STEP_FIELDS)),
    )
    in_flight: deque[tuple[int, float, Step]] = deque()
    now, previous_update = 0.0, 0.0
    for number, (milliseconds, step) in enumerate(events):
        now += milliseconds / 1000
        if step is not None and len(in_flight) < 3:
            in_flight.append((number, now, step))
            statistics.scheduled(number, step, now=now)
        elif in_flight:
            key, scheduled, ended = in_flight.popleft()
            statistics.finished(key, now=now)
            if ended.tokens:
                _add(by_hand, ended, now - max(scheduled, previous_update))
            previous_update = now
    assert {(row.bucket, row.kind) for row in step_sums(statistics.sums)} == set(by_hand)
    for row in step_sums(statistics.sums):
        assert [getattr(row, name) for name in STEP_FIELDS] == pytest.approx(by_hand[row.bucket, row.kind])


def _add(by_hand: dict[tuple[int, StepKind], list[float]], step: Step, seconds: float) -> None:
    bucket = next(edge for edge in TOKEN_BUCKETS if edge >= step.tokens)
    values = (
        1,
        seconds,
        seconds**2,
        step.tokens,
        step.prefill_tokens,
        step.decodes,
        step.kv_tokens,
        step.prefill_attention,
    )
    row = by_hand[bucket, StepKind.MIXED if step.prefill_tokens else StepKind.DECODE]
    for index, value in enumerate(values):
        row[index] += value
