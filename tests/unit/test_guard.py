"""What stands between the law's wish and the engine."""

from __future__ import annotations

import pytest

from flyball_operator.governor import guard
from flyball_operator.governor.guard import Hold, Trial
from flyball_operator.governor.signals import Outcome
from flyball_operator.governor.situation import Choice, Margins, Prediction, Regime
from flyball_operator.governor.spec import Envelope, Span
from support.tuning import ENVELOPE, GAP, TPOT, TTFT, demand, limits, outcome

NOTHING = Prediction(ttft=0, tpot=0, gap=0, e2e=0, capacity=0, rate=0)


def wish(seqs: int, tokens: int, regime: Regime = Regime.BALANCED) -> Choice:
    return Choice(seqs=seqs, tokens=tokens, regime=regime, binding="tpot", predicted=NOTHING)


def restrained(
    current: tuple[int, int],
    choice: Choice,
    *,
    reach: int = 2048,
    cooled: bool = True,
    used: float = 128,
    fits: int = 1000,
) -> tuple[int, int]:
    moved, _ = guard.restrain(limits(*current), choice, ENVELOPE, reach=reach, cooled=cooled, used=used, fits=fits)
    return moved.max_num_active_seqs or 0, moved.max_num_scheduled_tokens or 0


def test_the_batch_moves_by_bounded_steps_and_the_token_limit_jumps() -> None:
    assert restrained((100, 2048), wish(10, 256)) == (70, 256)
    assert restrained((10, 256), wish(128, 2048)) == (23, 2048)


def test_a_lower_batch_that_would_bind_nobody_is_not_taken() -> None:
    assert restrained((100, 256), wish(10, 256), used=3) == (100, 256)
    assert restrained((100, 256), wish(30, 256), used=30) == (100, 256)
    assert restrained((100, 256), wish(30, 256), used=3, fits=50) == (50, 256), "but what memory does not hold"


def test_once_it_binds_places_that_nobody_has_or_waits_for_are_given_up_at_once() -> None:
    assert restrained((100, 256), wish(10, 256), used=12) == (32, 256)
    assert restrained((100, 256), wish(10, 256), used=90) == (70, 256)


def test_a_single_place_and_a_neighbour_in_the_law_s_grid_are_no_change() -> None:
    assert restrained((5, 512), wish(6, 608)) == (5, 512)
    assert restrained((5, 512), wish(4, 424)) == (5, 512)
    assert restrained((5, 512), wish(7, 720)) == (7, 720)


def test_of_two_or_three_places_each_one_counts() -> None:
    envelope = Envelope(Span(1, 128), ENVELOPE.tokens)

    def moved(seqs: int, wanted: int) -> int:
        found, _ = guard.restrain(
            limits(seqs, 512), wish(wanted, 512), envelope, reach=2048, cooled=True, used=float(seqs), fits=1000
        )
        return found.max_num_active_seqs or 0

    assert [moved(1, 2), moved(2, 1), moved(2, 3), moved(3, 2)] == [2, 1, 3, 2]


def test_a_draining_batch_is_not_held_back() -> None:
    assert restrained((10, 256), wish(128, 856, Regime.DRAINING)) == (128, 856)


@pytest.mark.parametrize(("seqs", "tokens"), [(95, 500), (105, 520), (100, 550)])
def test_small_changes_are_not_worth_it(seqs: int, tokens: int) -> None:
    moved, hold = guard.restrain(
        limits(100, 512), wish(seqs, tokens), ENVELOPE, reach=2048, cooled=True, used=128, fits=1000
    )
    assert moved == limits(100, 512)
    assert hold is Hold.GOOD_ENOUGH


def test_a_batch_that_just_rose_does_not_fall() -> None:
    moved, hold = guard.restrain(
        limits(100, 512), wish(50, 512), ENVELOPE, reach=2048, cooled=False, used=128, fits=1000
    )
    assert (moved, hold) == (limits(100, 512), Hold.COOLING_DOWN)


def test_the_token_limit_grows_only_so_far_beyond_what_was_ever_seen() -> None:
    assert restrained((64, 256), wish(64, 2048), reach=150) == (64, 600)
    assert restrained((64, 256), wish(64, 128), reach=150) == (64, 128)


def changes_made(spaced: float, *, urgent: bool, seconds: float = 600.0) -> list[float]:
    """When changes were made of those that were wanted so far apart."""
    made: list[float] = []
    for number in range(int(seconds / spaced)):
        now = number * spaced
        if guard.may_change(guard.recent(tuple(made), now), now, urgent=urgent):
            made.append(now)
    return made


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize("spaced", [1.0, 5.0, 15.0])
def test_in_no_minute_are_there_more_than_six_changes(spaced: float, urgent: bool) -> None:
    made = changes_made(spaced, urgent=urgent)
    assert len(made) > 30
    for start in made:
        assert sum(start <= at < start + 60.0 for at in made) <= (6 if urgent else 4)


def test_what_must_not_wait_finds_a_change_left() -> None:
    made = tuple(changes_made(10.0, urgent=False, seconds=40.0))
    assert not guard.may_change(made, 41.0, urgent=False)
    assert guard.may_change(made, 41.0, urgent=True)


def test_a_change_that_may_wait_waits_for_the_last_one_to_show_what_it_does() -> None:
    assert not guard.may_change((100.0,), 105.0, urgent=False)
    assert guard.may_change((100.0,), 110.0, urgent=False)
    assert guard.may_change((100.0,), 101.0, urgent=True)


def test_a_clock_that_was_set_back_holds_nothing_for_long() -> None:
    assert guard.recent((1000.0, 1005.0), 400.0) == ()


def test_limits_outside_changed_bounds_are_moved_inside() -> None:
    assert guard.clipped(limits(500, 64), ENVELOPE) == limits(128, 128)


def trial(met: float, violated: float, worse: int = 0) -> Trial:
    return Trial(
        since=0.0, before=limits(128, 2048), baseline=outcome(met, violated), arrivals=4.0, ratio=3.0, worse=worse
    )


def test_two_worse_windows_condemn_a_change() -> None:
    first = guard.judge(trial(95, 5), outcome(70, 30), arrivals=4.0, ratio=3.0)
    assert first is not None
    second = guard.judge(first, outcome(70, 30), arrivals=4.0, ratio=3.0)
    assert second is not None
    assert second.worse == guard.WORSE_WINDOWS


@pytest.mark.parametrize(
    ("after", "arrivals", "ratio"),
    [
        pytest.param(outcome(94, 6), 4.0, 3.0, id="not worse by chance alone"),
        pytest.param(outcome(70, 30), 6.0, 3.0, id="more load explains it"),
        pytest.param(outcome(70, 30), 4.0, 5.0, id="longer prompts explain it"),
        pytest.param(outcome(3, 7), 4.0, 3.0, id="too few requests to say"),
    ],
)
def test_a_change_is_acquitted(after: Outcome, arrivals: float, ratio: float) -> None:
    assert guard.judge(trial(95, 5, worse=1), after, arrivals=arrivals, ratio=ratio) is None


def test_margins_widen_slowly_and_fall_at_once() -> None:
    start = Margins(token=0.85, first_token=0.7)
    calm = guard.trim(start, (TPOT,), {TPOT.id: outcome(100, 0)}, 40)
    assert 0 < calm.token - start.token < 0.01
    hit = guard.trim(start, (TPOT,), {TPOT.id: outcome(80, 20)}, 40)
    assert start.token - hit.token > 10 * (calm.token - start.token)
    assert hit.first_token == start.first_token, "the metrics are trimmed apart"


def test_margins_end_somewhere() -> None:
    margins = Margins()
    for _ in range(1000):
        margins = guard.trim(margins, (TPOT, TTFT), {TPOT.id: outcome(0, 100), TTFT.id: outcome(100, 0)}, 40)
    assert (margins.token, margins.first_token) == (guard.TOKEN_MARGIN[0], guard.FIRST_TOKEN_MARGIN[1])


def test_gaps_count_as_requests_not_as_tokens() -> None:
    by_gap = guard.trim(Margins(), (GAP,), {GAP.id: outcome(3_960, 40)}, 40)
    by_request = guard.trim(Margins(), (TPOT,), {TPOT.id: outcome(99, 1)}, 40)
    assert by_gap.token == pytest.approx(by_request.token)


def test_one_window_cannot_throw_a_margin_across_its_range() -> None:
    flooded = guard.trim(Margins(token=0.92), (TPOT,), {TPOT.id: outcome(99_000, 1_000)}, 40)
    assert flooded.token == pytest.approx(0.92, abs=0.01)


def test_short_answers_of_steps_that_scatter_need_more_room() -> None:
    short, long = (
        guard.scattered(Margins(token=0.92), (TPOT,), demand(output=output, scatter=0.4)).token
        for output in (16.0, 400.0)
    )
    assert short == pytest.approx(1 / (1 + 2.326 * 0.4 / 4), abs=1e-3), "99 of 100 by the normal distribution"
    assert long == 0.92, "the trimmed margin is the narrower one"


def test_tokens_of_a_step_scatter_with_speculation() -> None:
    def margin(made: float) -> float:
        return guard.scattered(Margins(token=0.92), (TPOT,), demand(drafted=4.0, made=made)).token

    assert margin(2.5) < 0.92
    assert margin(1.0) == margin(4.0) == 0.92, "where none or all are accepted nothing is left to chance"


def test_scatter_narrows_no_margin_beyond_what_violations_may_nor_that_of_gaps() -> None:
    noisy = demand(output=1.0, scatter=3.0)
    assert guard.scattered(Margins(token=0.92), (TPOT,), noisy).token == guard.TOKEN_MARGIN[0]
    assert guard.scattered(Margins(token=0.92), (TTFT, GAP), noisy) == Margins(token=0.92)
