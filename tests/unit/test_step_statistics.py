"""How long a step lasts, and which row it is counted in."""

from __future__ import annotations

from flyball_engine.batching.step_statistics import SUMS_LENGTH, Step, StepStatistics, step_sums
from flyball_engine.contract import TOKEN_BUCKETS, StepKind


def a_step(tokens: int, *, prefill: int = 0) -> Step:
    return Step(
        tokens=tokens,
        prefill_tokens=prefill,
        decodes=tokens - prefill,
        kv_tokens=10 * tokens,
        prefill_attention=prefill * 0.5,
    )


def test_nothing_happened_is_no_row() -> None:
    assert step_sums([0.0] * SUMS_LENGTH) == ()


def test_a_step_lasts_from_its_schedule_to_its_update() -> None:
    statistics = StepStatistics()
    statistics.scheduled(1, a_step(3), now=10.0)
    statistics.finished(1, now=10.25)
    (row,) = step_sums(statistics.sums)
    assert (row.bucket, row.kind, row.steps, row.seconds, row.seconds_squared) == (4, StepKind.DECODE, 1, 0.25, 0.0625)
    assert (row.tokens, row.decodes, row.kv_tokens) == (3, 3, 30)
    assert statistics.longest_seconds == 0.25


def test_steps_that_are_alike_may_be_counted_at_once() -> None:
    one_by_one, at_once = StepStatistics(), StepStatistics()
    for key in range(3):
        one_by_one.scheduled(key, a_step(3), now=float(key))
        one_by_one.finished(key, now=key + 0.25)
    at_once.repeated(a_step(3), steps=3, seconds=0.75, seconds_squared=3 * 0.0625, kv_tokens=90, longest=0.25)
    assert list(at_once.sums) == list(one_by_one.sums)
    assert at_once.longest_seconds == one_by_one.longest_seconds


def test_the_longest_step_is_that_of_this_period_and_the_one_before() -> None:
    statistics = StepStatistics()
    for key, (began, ended) in enumerate([(0.0, 0.5), (1.0, 1.25), (2.0, 2.1)]):
        statistics.scheduled(key, a_step(3), now=began)
        statistics.finished(key, now=ended)
        assert statistics.longest_seconds == (0.5, 0.5, 0.25)[key]
        statistics.new_period()


def test_with_two_steps_in_flight_the_second_begins_when_the_first_ends() -> None:
    statistics = StepStatistics()
    statistics.scheduled(1, a_step(8), now=0.0)
    statistics.scheduled(2, a_step(8), now=0.1)
    statistics.finished(1, now=1.0)
    statistics.scheduled(3, a_step(8), now=1.1)
    statistics.finished(2, now=1.5)
    statistics.finished(3, now=2.0)
    (row,) = step_sums(statistics.sums)
    assert (row.steps, row.seconds) == (3, 2.0)


def test_idle_time_between_steps_is_no_step_time() -> None:
    statistics = StepStatistics()
    for start in (0.0, 100.0):
        statistics.scheduled(int(start), a_step(8), now=start)
        statistics.finished(int(start), now=start + 0.5)
    (row,) = step_sums(statistics.sums)
    assert row.seconds == 1.0


def test_steps_without_tokens_do_not_count() -> None:
    statistics = StepStatistics()
    statistics.scheduled(1, a_step(0), now=0.0)
    statistics.finished(1, now=5.0)
    assert step_sums(statistics.sums) == ()


def test_each_bucket_and_kind_has_its_row() -> None:
    statistics = StepStatistics()
    for number, (tokens, prefill) in enumerate([(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (64, 32), (2**21, 2**21)]):
        statistics.scheduled(number, a_step(tokens, prefill=prefill), now=float(number))
        statistics.finished(number, now=number + 0.5)
    rows = {(row.bucket, row.kind): row.steps for row in step_sums(statistics.sums)}
    assert rows == {
        (1, StepKind.DECODE): 1,
        (2, StepKind.DECODE): 1,
        (4, StepKind.DECODE): 2,
        (8, StepKind.DECODE): 1,
        (64, StepKind.MIXED): 1,
        (TOKEN_BUCKETS[-1], StepKind.MIXED): 1,
    }


def test_a_step_that_never_ended_is_left_out() -> None:
    statistics = StepStatistics()
    statistics.scheduled(1, a_step(8), now=0.0)
    statistics.scheduled(2, a_step(8), now=1.0)
    statistics.finished(2, now=2.0)
    (row,) = step_sums(statistics.sums)
    assert (row.steps, row.seconds) == (1, 1.0)


def counted(statistics: StepStatistics, key: int, *, now: float) -> float:
    ended = statistics.finished(key, now=now)
    assert ended is not None
    return ended.counted


def test_a_request_alone_in_a_pipeline_has_steps_of_one_stage() -> None:
    statistics = StepStatistics(stages=2)
    for key in range(4):
        statistics.scheduled(key, a_step(1), now=float(key))
        # There is nothing for the other stage.
        statistics.scheduled(100 + key, a_step(0), now=float(key))
        assert counted(statistics, key, now=key + 1.0) == 0.5
        assert statistics.finished(100 + key, now=key + 1.0) is None
    assert statistics.longest_seconds == 1.0


def test_so_it_has_where_its_next_step_is_scheduled_before_its_last_one_ends() -> None:
    statistics = StepStatistics(stages=2)
    statistics.scheduled(0, a_step(1), now=0.0)
    statistics.scheduled(100, a_step(0), now=0.0)
    for key in range(1, 5):
        statistics.scheduled(key, a_step(1), now=key - 0.99)
        assert counted(statistics, key - 1, now=float(key)) == 0.5
        # It was behind, and no part of what comes next.
        statistics.finished(99 + key, now=key + 0.3)
        statistics.scheduled(100 + key, a_step(0), now=float(key))


def test_requests_that_take_turns_in_a_pipeline_have_them_too() -> None:
    statistics = StepStatistics(stages=2)
    statistics.scheduled(0, a_step(1), now=0.0)
    statistics.scheduled(1, a_step(1), now=0.5)
    for key in range(6):
        now = 1.0 + key / 2
        assert counted(statistics, key, now=now) == 0.5
        statistics.scheduled(key + 2, a_step(1), now=now)


def test_a_long_step_counts_for_one_stage_however_short_those_beside_it_are() -> None:
    statistics = StepStatistics(stages=4)
    # It takes a second in each stage, those after it wait behind it.
    for key, tokens in enumerate((2000, 4, 4, 4)):
        statistics.scheduled(key, a_step(tokens), now=0.01 * key)
    assert counted(statistics, 0, now=4.0) == 1.0
    assert counted(statistics, 1, now=4.1) < 0.11


def test_the_next_step_of_a_pipeline_cannot_have_the_decodes_in_flight() -> None:
    alone, staged = StepStatistics(), StepStatistics(stages=3)
    for statistics in (alone, staged):
        for key, tokens in enumerate((5, 7, 9)):
            statistics.scheduled(key, a_step(tokens), now=0.0)
    assert alone.decodes_elsewhere == 0
    # The first of three has made its tokens by then.
    assert staged.decodes_elsewhere == 7 + 9
