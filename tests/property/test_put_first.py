"""Whoever is put first, in whatever queue: the others keep their order, wherever the last ones stood."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from flyball_engine.vllm.queue import WaitingQueues
from support.plain_scheduler import PlainScheduler

#: How many come, then who is put first by their places, then how many are admitted.
STEPS = st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 30), max_size=5, unique=True), st.integers(0, 4)))


@given(STEPS)
def test_they_stand_first_and_nobody_else_moves(steps: list[tuple[int, list[int], int]]) -> None:
    scheduler, names, expected = PlainScheduler(), count(), list[str]()
    queues = WaitingQueues(scheduler)
    for come, places, admitted in steps:
        for name in (f"r{next(names)}" for _ in range(come)):
            scheduler.add(name, prompt=8)
            expected.append(name)
        first = [expected[place] for place in places if place < len(expected)]
        queues.put_first([scheduler.requests[name] for name in first])
        expected = [*first, *(name for name in expected if name not in first)]
        assert [request.request_id for request in scheduler.waiting] == expected
        for _ in range(min(admitted, len(expected))):
            scheduler.waiting.popleft()
            expected.pop(0)
