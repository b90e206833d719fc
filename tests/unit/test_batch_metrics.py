"""How well batches are used, counted by hand beside."""

from __future__ import annotations

import pytest

from flyball_engine.batching.batch_metrics import BATCH_SIZES, BatchCounts, BatchMetrics, batch_counts
from flyball_engine.batching.step_statistics import Occupancy, Step
from flyball_engine.batching.waiting import Arrivals

SLOTS = 8


class Counted:
    """An engine told by hand: requests by name with their prompts, and the steps they run in."""

    def __init__(self, *, whole: bool = False) -> None:
        self.metrics = BatchMetrics(SLOTS)
        self.whole = whole
        self.now = 0.0
        self._running = 0

    def arrive(self, *names: str, at: float | None = None) -> None:
        for name in names:
            self.metrics.arrived(name, self.now if at is None else at)

    def join(self, **prompts: int) -> None:
        """They come, and join the coming step together."""
        self.arrive(*prompts)
        self.admit(**prompts)

    def admit(self, **prompts: int) -> None:
        self._running += len(prompts)
        self.metrics.admitted(prompts.items(), running=self._running, whole=self.whole, now=self.now)

    def end(self, **outputs: int) -> None:
        for name, tokens in outputs.items():
            self.metrics.ended(name, tokens, self.now)
            self._running -= 1

    def step(
        self, occupancy: Occupancy, *, prefill: int, decode: int, seconds: float, squares: int = 0, steps: int = 1
    ) -> None:
        step = Step(prefill + decode, prefill, decode, 0, squares / 2, occupancy, squares)
        self.metrics.stepped(step, seconds=seconds, steps=steps)

    @property
    def counts(self) -> BatchCounts:
        return batch_counts(self.metrics.sums)


class TestSlots:
    def test_each_is_used_free_or_withheld_for_the_time_of_a_step(self) -> None:
        counted = Counted()
        counted.step(Occupancy(requests=3, running=3, active=5), prefill=0, decode=3, seconds=2.0)
        counts = counted.counts
        assert (counts.slots_used, counts.slots_free, counts.slots_withheld) == (6.0, 4.0, 6.0)
        assert counts.slot_utilisation == 0.6

    def test_one_that_drains_over_the_limit_is_used_too(self) -> None:
        counted = Counted()
        counted.step(Occupancy(requests=6, running=6, active=2), prefill=0, decode=6, seconds=1.0)
        counts = counted.counts
        assert (counts.slots_used, counts.slots_free, counts.slots_withheld) == (6.0, 0.0, 2.0)

    def test_a_long_step_weighs_more(self) -> None:
        counted = Counted()
        counted.step(Occupancy(requests=8, running=8, active=8), prefill=0, decode=8, seconds=1.0)
        counted.step(Occupancy(requests=4, running=4, active=8), prefill=0, decode=4, seconds=3.0)
        assert counted.counts.slot_utilisation == (8 + 12) / (8 + 24)


class TestTokens:
    def test_by_phase(self) -> None:
        counted = Counted()
        counted.step(Occupancy(requests=3, running=3, active=8, room=64), prefill=40, decode=2, seconds=1.0)
        counted.step(Occupancy(requests=3, running=3, active=8, room=64), prefill=0, decode=3, seconds=1.0)
        assert (counted.counts.prefill_tokens, counted.counts.decode_tokens) == (40, 5)

    def test_what_is_computed_of_each_prompt_is_squared(self) -> None:
        """Of a prompt in chunks of 30 and 10 tokens, and of one of 5: the prompt that a token is in has 36.1 of 40."""
        counted = Counted()
        counted.step(Occupancy(requests=1, running=1, active=8), prefill=30, decode=0, squares=30**2, seconds=1.0)
        counted.step(
            Occupancy(requests=2, running=2, active=8), prefill=15, decode=0, squares=40**2 - 30**2 + 5**2, seconds=1.0
        )
        assert counted.counts.prefill_squares == 40**2 + 5**2
        assert counted.counts.prefill_squares / counted.counts.prefill_tokens == pytest.approx(36.1, abs=0.1)

    def test_room_is_that_of_steps_with_a_prompt_alone(self) -> None:
        counted = Counted()
        counted.step(Occupancy(requests=3, running=3, active=8, room=64), prefill=46, decode=2, seconds=1.0)
        counted.step(Occupancy(requests=3, running=3, active=8, room=64), prefill=0, decode=3, seconds=1.0)
        assert (counted.counts.room_used, counted.counts.room_free) == (48, 16)
        assert counted.counts.token_utilisation == 0.75

    def test_without_a_limit_there_is_no_room_to_tell_of(self) -> None:
        counted = Counted()
        counted.step(Occupancy(requests=3, running=3, active=8), prefill=46, decode=2, seconds=1.0)
        assert counted.counts.token_utilisation is None


class TestBatches:
    @pytest.mark.parametrize(
        ("requests", "edge"), [(1, "1"), (2, "2"), (3, "4"), (4, "4"), (5, "8"), (2048, "2048"), (2049, "more")]
    )
    def test_a_step_is_in_the_first_bucket_that_holds_it(self, requests: int, edge: str) -> None:
        counted = Counted()
        counted.step(Occupancy(requests=requests), prefill=0, decode=requests, seconds=1.0)
        buckets = dict(zip([*map(str, BATCH_SIZES), "more"], counted.counts.steps, strict=True))
        assert [name for name, steps in buckets.items() if steps] == [edge]

    def test_steps_alike_are_told_at_once(self) -> None:
        one, many = Counted(), Counted()
        occupancy = Occupancy(requests=3, running=4, active=6, room=64)
        many.step(occupancy, prefill=16, decode=2, squares=256, seconds=5.0, steps=5)
        for _ in range(5):
            one.step(occupancy, prefill=16, decode=2, squares=256, seconds=1.0)
        assert one.counts == many.counts
        assert many.counts.mean_batch == 3.0


class TestQueue:
    def test_what_was_waited_is_told_with_the_first_admission(self) -> None:
        counted = Counted()
        counted.arrive("a", at=1.0)
        counted.arrive("b", at=2.0)
        counted.now = 5.0
        counted.admit(a=10, b=10)
        assert (counted.counts.admitted, counted.counts.admitted_seconds) == (2, 7.0)

    def test_a_preempted_request_that_joins_again_is_not_admitted_again(self) -> None:
        counted = Counted()
        counted.join(a=10)
        counted.metrics.preempted(1)
        counted.admit(a=10)
        assert (counted.counts.admitted, counted.counts.preemptions) == (1, 1)
        counted.end(a=5)
        assert counted.counts.cohort_requests == 1

    def test_who_leaves_before_that_is_told_apart(self) -> None:
        counted = Counted()
        counted.arrive("a", at=1.0)
        counted.now = 4.0
        counted.end(a=0)
        assert (counted.counts.left, counted.counts.left_seconds) == (1, 3.0)
        assert (counted.counts.admitted, counted.counts.cohorts) == (0, 0)

    def test_the_oldest_is_the_first_that_still_waits(self) -> None:
        counted = Counted()
        assert counted.metrics.oldest_seconds(9.0) == 0.0
        for at, name in enumerate("abc"):
            counted.arrive(name, at=float(at))
        counted.admit(b=1)
        assert counted.metrics.oldest_seconds(9.0) == 9.0
        counted.end(a=0)
        assert counted.metrics.oldest_seconds(9.0) == 7.0
        counted.admit(c=1)
        assert counted.metrics.oldest_seconds(9.0) == 0.0

    def test_a_name_that_comes_again_is_as_old_as_its_last_coming(self) -> None:
        counted = Counted()
        counted.arrive("a", at=1.0)
        counted.end(a=0)
        counted.arrive("b", at=2.0)
        counted.arrive("a", at=3.0)
        assert counted.metrics.oldest_seconds(9.0) == 7.0

    def test_who_starves_at_the_front_holds_no_memory_of_those_that_pass(self) -> None:
        arrivals = Arrivals()
        arrivals.add("starved", 0.0)
        for number in range(10_000):
            arrivals.add(number, 1.0)
            arrivals.take(number)
        assert len(arrivals._at) == 1
        assert arrivals.oldest() == 0.0


class TestCohorts:
    """Efficiency is Σ generated ÷ Σ (requests · longest); padding counts the prompts too."""

    def test_a_static_batch_is_one(self) -> None:
        counted = Counted(whole=True)
        counted.join(a=10, b=20)
        counted.join(c=40)
        counted.end(a=10)
        counted.end(b=20)
        assert counted.counts.cohorts == 0, "its longest may still grow"
        counted.end(c=60)
        counts = counted.counts
        assert (counts.cohorts, counts.cohort_requests) == (1, 3)
        assert (counts.cohort_outputs, counts.cohort_outputs_padded) == (90, 180)
        assert (counts.cohort_prompts, counts.cohort_prompts_padded) == (70, 120)
        assert counts.batch_efficiency == 0.5
        assert counts.padding_ratio == pytest.approx(1 - 160 / 300)

    def test_the_next_static_batch_is_another(self) -> None:
        counted = Counted(whole=True)
        counted.join(a=10)
        counted.end(a=10)
        counted.join(b=90)
        counted.end(b=90)
        assert counted.counts.cohorts == 2
        assert counted.counts.batch_efficiency == 1.0

    def test_continuously_it_is_as_many_admissions_as_run_with_the_first(self) -> None:
        counted = Counted()
        counted.join(a=10, b=10, c=10)
        counted.end(a=1)
        counted.join(d=10)
        counted.end(b=1, c=4)
        assert (counted.counts.cohorts, counted.counts.cohort_requests) == (1, 3)
        assert (counted.counts.cohort_outputs, counted.counts.cohort_outputs_padded) == (6, 12)
        counted.join(e=10)
        counted.end(d=7)
        counted.join(f=10)
        counted.end(e=7, f=7)
        # d was the first of three, so e and f are of its cohort.
        assert (counted.counts.cohorts, counted.counts.cohort_requests) == (2, 6)

    def test_nobody_joins_one_behind_a_pause(self) -> None:
        counted = Counted()
        counted.join(a=10, b=10, c=10)
        counted.join(d=10)
        counted.end(a=1, b=1, c=1, d=9)
        assert counted.counts.cohort_requests == 4
        counted.join(e=10)
        counted.end(e=1)
        assert counted.counts.cohorts == 3
        assert counted.counts.batch_efficiency == 1.0

    def test_a_switch_of_the_strategy_ends_the_one_that_fills(self) -> None:
        counted = Counted()
        counted.join(a=1, b=1, c=1)
        counted.join(d=1)
        counted.end(d=1)
        assert counted.counts.cohorts == 0, "a place is left beside d, and others run"
        counted.whole = True
        counted.join(e=1)
        assert counted.counts.cohorts == 1
        counted.end(a=1, b=1, c=1, e=1)
        assert counted.counts.cohort_requests == 5

    def test_a_switch_waits_for_the_last_of_it_all_the_same(self) -> None:
        counted = Counted()
        counted.join(a=1, b=1)
        counted.join(c=1)
        counted.whole = True
        counted.join(d=1)
        assert counted.counts.cohorts == 0
        counted.end(c=5)
        assert (counted.counts.cohorts, counted.counts.cohort_outputs) == (1, 5)

    def test_the_longest_need_not_end_last(self) -> None:
        counted = Counted()
        counted.join(a=40, b=10)
        counted.end(a=8)
        counted.end(b=2)
        assert (counted.counts.cohort_prompts_padded, counted.counts.cohort_outputs_padded) == (80, 16)

    def test_who_makes_no_token_is_padding_alone(self) -> None:
        counted = Counted(whole=True)
        counted.join(a=10, b=10)
        counted.end(a=0, b=30)
        assert counted.counts.batch_efficiency == 0.5


def test_nothing_counted_is_no_share() -> None:
    counts = Counted().counts
    assert counts.slot_utilisation is None
    assert counts.token_utilisation is None
    assert counts.mean_batch is None
    assert counts.batch_efficiency is None
    assert counts.padding_ratio is None
