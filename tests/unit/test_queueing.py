"""How long requests wait for a place, by how full the batch is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from flyball_operator.governor.law import FOR_PLACES, calm_seqs, choose
from flyball_operator.governor.queueing import BELIEVED, BUSY, TAIL, UNBOUNDED, place_wait, prompt_wait
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
    waits = [place_wait(asked, seqs, waiting=0.0) for seqs in (40, 44, 50, 60, 80)]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] > waits[1] > 0.0


def test_the_tail_is_the_less_the_rarer_a_full_batch_is() -> None:
    for share, most in ((0.999, 1.0), (0.95, 0.99), (0.85, 0.97)):
        asked = loaded(share, seqs=400)
        tail = TAIL / (asked.capacity(400) - asked.demand.arrivals)
        assert place_wait(asked, 400, waiting=0.0) <= most * tail
    assert place_wait(loaded(0.999), SEQS, waiting=0.0) > 0.95 * TAIL / (0.001 * loaded(1.0).demand.arrivals)


def test_a_full_batch_is_thought_no_rarer_than_by_chance() -> None:
    for share in (0.82, 0.9, 0.97):
        asked = loaded(share, seqs=200)
        arrivals, spare = asked.demand.arrivals, asked.capacity(200) - asked.demand.arrivals
        exact = sum(min(0.0, math.log(arrivals / asked.capacity(seqs))) for seqs in range(1, 201))
        assert place_wait(asked, 200, waiting=0.0) >= max(0.0, TAIL + exact) / spare
        # A quarter of half of the last one for each place.
        held = next(seqs for seqs in range(1, 201) if asked.capacity(seqs) >= arrivals)
        line = BELIEVED * (200 - held) / 2 * math.log(arrivals / asked.capacity(200))
        assert place_wait(asked, 200, waiting=0.0) == pytest.approx(max(0.0, TAIL + line) / spare)


def test_where_it_is_rare_enough_nobody_waits_though_it_is_busy() -> None:
    asked = loaded(0.85, seqs=4000)
    assert asked.demand.arrivals > BUSY * asked.capacity(4000)
    assert place_wait(asked, 4000, waiting=0.0) == 0.0


def test_a_batch_has_places_before_first_tokens_are_late_for_want_of_them() -> None:
    asked = situation(TTFT, replace(TPOT, seconds=0.03))
    alone, _ = calm_seqs(asked)
    busy = replace(asked, demand=replace(asked.demand, arrivals=0.98 * asked.capacity(alone)))
    choice = choose(busy)
    assert choice.seqs > alone
    left = TTFT.seconds * busy.margins.first_token
    assert place_wait(busy, choice.seqs, waiting=0.0) <= FOR_PLACES * left
    assert place_wait(busy, alone, waiting=0.0) > FOR_PLACES * left


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
