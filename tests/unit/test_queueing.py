"""How long requests wait for a place, by how full the batch is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_operator.governor.queueing import BUSY, TAIL, UNBOUNDED, place_wait, prompt_wait
from flyball_operator.governor.situation import Situation
from support.tuning import TPOT, TTFT, demand, situation

SEQS = 40


def loaded(share: float, *, seqs: int = SEQS, **load: float) -> Situation:
    """As many requests as this share of what a batch sustains."""
    asked = situation(TTFT, TPOT)
    return replace(asked, demand=replace(asked.demand, arrivals=share * asked.capacity(seqs), **load))


def test_nobody_waits_for_a_place_where_there_are_many() -> None:
    assert place_wait(loaded(0.9 * BUSY), SEQS, waiting=0.0) == 0.0


def test_more_places_for_the_same_requests_are_less_to_wait_for() -> None:
    asked = loaded(0.95)
    waits = [place_wait(asked, seqs, waiting=0.0) for seqs in (40, 44, 50, 60, 80, 400)]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] > waits[1] > 0.0
    assert waits[-1] == 0.0


def test_a_batch_that_is_all_but_always_full_has_the_whole_tail() -> None:
    asked = loaded(0.999)
    spare = asked.capacity(SEQS) - asked.demand.arrivals
    assert place_wait(asked, SEQS, waiting=0.0) == pytest.approx(TAIL / spare, rel=0.05)


def test_whoever_waits_is_before_the_next_where_the_batch_is_full() -> None:
    queue = 12.0
    full, half = (loaded(0.5, running=running) for running in (SEQS, SEQS / 2))
    assert place_wait(full, SEQS, waiting=queue) == pytest.approx(queue / full.capacity(SEQS))
    # These wait for their prompts to be computed.
    assert place_wait(half, SEQS, waiting=queue) == 0.0


def test_more_than_is_sustained_waits_for_ever() -> None:
    assert place_wait(loaded(1.0), SEQS, waiting=0.0) == UNBOUNDED
    asked = demand(arrivals=10.0, uncached=100.0)
    assert prompt_wait(asked, 1000.0) == UNBOUNDED
    assert prompt_wait(asked, 1001.0) > prompt_wait(asked, 2000.0) > 0.0
