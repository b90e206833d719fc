"""Which requests each strategy lets out of the queue, step by step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flyball_engine.batching.output_lengths import OutputLengths, tokens_to_end
from flyball_engine.batching.strategies import SchedulerState, Waiting, decide
from flyball_engine.knobs import Batching, Bucketed, Continuous, Dynamic, NoEvict, Static
from support.batches import Bench, Job


def prompts(jobs: list[Job]) -> list[int]:
    return [job.prompt for job in jobs]


def test_continuous_leaves_the_queue_alone() -> None:
    class Unread(list[Waiting]):
        def __iter__(self) -> Iterator[Waiting]:
            raise AssertionError("the queue was read")

    decision = decide(Batching(), (), SchedulerState(now=0.0, queue=Unread(), running=3, slots=5))
    assert (decision.most, decision.admit, decision.held_until) == (5, None, None)
    assert not Batching(max_concurrent_prefills=2).holds_back


def test_a_static_batch_runs_to_its_last_request() -> None:
    bench = Bench(Batching(strategy=Static(batch_size=3)))
    bench.add(10, 20, output=2)
    bench.add(30, output=5)
    bench.add(40, 50)
    assert prompts(bench.step()) == [10, 20, 30]
    for _ in range(4):
        assert bench.step() == []
    assert prompts(bench.step()) == [40, 50]


def test_a_static_batch_begins_with_what_waits() -> None:
    bench = Bench(Batching(strategy=Static(batch_size=8)))
    bench.add(10)
    assert prompts(bench.step()) == [10]
    bench.add(20)
    assert bench.step() == []


def test_a_batch_may_take_several_steps_to_join() -> None:
    bench = Bench(Batching(strategy=Static(batch_size=5)), per_step=2)
    bench.add(1, 2, 3, 4, 5, output=9)
    bench.step()
    bench.add(6)
    assert prompts(bench.step()) == [3, 4]
    assert prompts(bench.step()) == [5]
    assert bench.step() == []


def test_a_batch_is_no_larger_than_the_active_limit() -> None:
    bench = Bench(Batching(strategy=Static(batch_size=100)), slots=4)
    bench.add(*range(10))
    assert [len(batch) for batch in bench.batches()] == [4, 4, 2]


def test_what_was_preempted_goes_on_before_anything_else() -> None:
    bench = Bench(Batching(strategy=Static(batch_size=2)))
    bench.add(10, 20, 30, output=4)
    bench.step()
    bench.preempt()
    assert bench.step() == []
    assert prompts(bench.running) == [10, 20]


def test_preempted_with_nothing_running_is_a_batch_that_has_not_ended() -> None:
    bench = Bench(Batching(strategy=Static(batch_size=1)))
    bench.add(10, 20, output=4)
    bench.step()
    bench.preempt()
    assert bench.step() == []
    assert prompts(bench.running) == [10]


@pytest.mark.parametrize(
    ("later", "begins"), [((), False), ((10, 10), True), ((300,), True)], ids=["neither", "by size", "by tokens"]
)
def test_a_dynamic_batch_begins_by_size_or_by_tokens(later: tuple[int, ...], begins: bool) -> None:
    bench = Bench(Batching(strategy=Dynamic(batch_size=3, max_delay_seconds=1.0, max_batch_tokens=300)))
    bench.add(10)
    assert bench.step() == []
    bench.add(*later)
    assert bool(bench.step()) is begins


def test_a_dynamic_batch_begins_when_the_oldest_has_waited_long_enough() -> None:
    bench = Bench(Batching(strategy=Dynamic(batch_size=8, max_delay_seconds=0.5)))
    bench.add(10)
    assert bench.step(seconds=0.4) == []
    assert bench.decision is not None
    assert bench.decision.held_until == 0.5
    bench.add(20)
    assert bench.step(seconds=0.1) == []
    assert prompts(bench.step()) == [10, 20]
    assert bench.decision.held_until is None


def test_a_dynamic_batch_has_no_more_prompt_tokens_than_asked_unless_one_alone_has() -> None:
    bench = Bench(Batching(strategy=Dynamic(batch_size=8, max_delay_seconds=0.0, max_batch_tokens=100)))
    bench.add(60, 40, 10, 500, 90)
    assert [prompts(batch) for batch in bench.batches()] == [[60, 40], [10], [500], [90]]


def test_buckets_keep_like_lengths_together_and_the_oldest_first() -> None:
    bench = Bench(Batching(strategy=Bucketed(batch_size=3, boundaries=(100, 200))))
    bench.add(50, 150, 100, 900, 10, 20, 101)
    assert [prompts(batch) for batch in bench.batches()] == [[50, 100, 10], [150, 101], [900], [20]]


def test_sorted_prompts_are_cut_into_batches() -> None:
    bench = Bench(Batching(strategy=Bucketed(batch_size=3, sorted=True)))
    bench.add(50, 1000, 40, 990, 60, 1010)
    assert [sorted(prompts(batch)) for batch in bench.batches()] == [[40, 50, 60], [990, 1000, 1010]]


def test_a_sorted_batch_that_is_cut_keeps_the_request_that_stands_first() -> None:
    bench = Bench(Batching(strategy=Bucketed(batch_size=3, sorted=True), no_evict=NoEvict()), kv=120)
    bench.add(100, 1, 2)
    assert prompts(bench.step()) == [100, 2, 1]
    bench = Bench(Batching(strategy=Bucketed(batch_size=3, sorted=True), no_evict=NoEvict()), kv=105)
    bench.add(100, 1, 2)
    assert prompts(bench.step()) == [100]


def test_an_admission_delay_lets_a_group_in_together() -> None:
    bench = Bench(Batching(admission_delay_seconds=0.2), per_step=2)
    bench.add(1, output=50)
    assert bench.step(seconds=0.1) == []
    bench.add(2, 3, output=50)
    assert bench.step(seconds=0.1) == []
    assert prompts(bench.step()) == [1, 2]
    bench.add(4, output=50)
    # The rest of the group joins at once, the newcomer waits for its own.
    assert prompts(bench.step()) == [3]
    assert bench.step(seconds=0.2) == []
    assert prompts(bench.step()) == [4]


def test_an_admission_delay_ends_when_as_many_wait_as_may_start() -> None:
    bench = Bench(Batching(admission_delay_seconds=9.0), slots=3)
    bench.add(1, 2, 3, 4)
    assert prompts(bench.step()) == [1, 2, 3]


def test_a_full_bucket_does_not_wait_for_the_delay() -> None:
    bench = Bench(
        Batching(strategy=Bucketed(batch_size=2, boundaries=(100,)), admission_delay_seconds=1.0),
    )
    bench.add(10, 500, 600)
    assert bench.step() == []
    bench.add(20)
    assert prompts(bench.step()) == [10, 20]


def test_no_evict_admits_in_order_what_fits_to_its_end() -> None:
    bench = Bench(Batching(no_evict=NoEvict()), kv=100)
    bench.add(50, 40, 30, 1, output=5)
    # 55 + 45 fit; the third does not, and nobody overtakes it.
    assert prompts(bench.step()) == [50, 40]
    assert bench.step() == []


def test_what_fits_into_no_cache_runs_alone() -> None:
    bench = Bench(Batching(no_evict=NoEvict()), kv=100)
    bench.add(10, 500, 20)
    assert [prompts(batch) for batch in bench.batches()] == [[10], [500], [20]]


def test_a_prefill_limit_counts_those_that_still_prefill() -> None:
    state = SchedulerState(now=0.0, queue=(), running=5, slots=10, prefilling=2)
    assert decide(Batching(max_concurrent_prefills=3), (), state).most == 1
    assert decide(Batching(max_concurrent_prefills=1), (), state).most == 0


def test_a_prefill_limit_lets_a_static_batch_in_one_by_one() -> None:
    bench = Bench(Batching(strategy=Static(batch_size=3), max_concurrent_prefills=1))
    bench.add(1, 2, 3, 4, output=9)
    joined = [prompts(bench.step()) for _ in range(4)]
    assert joined == [[1], [2], [3], []]


def test_a_switch_lets_what_runs_be_the_batch_before_the_first() -> None:
    bench = Bench(Batching())
    bench.add(1, 2, output=4)
    bench.step()
    bench.add(3, 4)
    bench.switch(Batching(strategy=Static(batch_size=1)))
    for _ in range(3):
        assert bench.step() == []
    assert prompts(bench.step()) == [3]
    bench.switch(Batching(strategy=Continuous()))
    assert prompts(bench.step()) == [4]


def test_the_expected_end_is_a_quantile_of_the_recent_ends() -> None:
    lengths = OutputLengths(remembered=10)
    assert lengths.quantile(0.5) is None
    for tokens in (900, *range(1, 11)):
        lengths.ended(tokens)
    assert [lengths.quantile(share) for share in (0.05, 0.5, 0.95, 1.0)] == [1, 5, 10, 10]


@pytest.mark.parametrize(
    ("produced", "most", "expected", "end"),
    [
        (0, 50, None, 150),
        (0, 50, 7, 150),
        (0, None, 7, 107),
        (9, None, 7, 110),
        (0, None, None, 1000),
        (0, 2000, 7, 1000),
    ],
)
def test_a_request_is_taken_at_its_word_or_expected_to_end_like_others(
    produced: int, most: int | None, expected: int | None, end: int
) -> None:
    assert tokens_to_end(prompt=100, produced=produced, most=most, expected=expected, model_length=1000) == end
