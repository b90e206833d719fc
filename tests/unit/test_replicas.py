"""From what the load needs at each moment to a number of replicas that is not taken back soon."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from flyball_operator.api.status import MOST_RECOMMENDED
from flyball_operator.tuning.replicas import Bounds, Recommended, Replicas, ScalingLimit, decided

BOUNDS = Bounds(least=1, most=10, up_seconds=0.0, down_seconds=300.0)
ENOUGH = 1_000


def told(
    before: Replicas, needs: Iterable[int], *, at: float = 0.0, bounds: Bounds = BOUNDS, growth: int = ENOUGH
) -> list[Replicas]:
    """What is decided each 15 s, where the load needs these, and no more with room."""
    found = [before]
    for number, needed in enumerate(needs):
        now = at + 15.0 * number
        found.append(decided(found[-1], needed=needed, roomy=needed, growth=growth, bounds=bounds, now=now))
    return found[1:]


def numbers(found: Iterable[Replicas]) -> list[int]:
    return [one.replicas for one in found]


def test_pods_are_added_at_once_and_removed_after_the_window() -> None:
    found = told(Replicas(replicas=2), [2, 5, *[2] * 21])
    assert numbers(found) == [2, 5, *[5] * 19, 2, 2], "300 s after the load needed five"
    assert found[1].changed_at == 15.0
    assert found[-1].changed_at == 315.0


def test_the_most_that_the_window_needed_is_what_stays() -> None:
    found = told(Replicas(replicas=1), [6, *[2] * 10, 4, *[2] * 25])
    assert sorted(set(numbers(found)), reverse=True) == [6, 4, 2]


def test_a_window_before_pods_are_added_takes_its_least() -> None:
    patient = replace(BOUNDS, up_seconds=60.0)
    found = told(Replicas(replicas=2), [2, 5, 4, 6, 5, 5], bounds=patient)
    assert numbers(found) == [2, 2, 2, 2, 4, 4]
    assert [one.limit for one in found] == [ScalingLimit.AS_NEEDED, *[ScalingLimit.STABILIZING] * 5]


def test_between_need_and_room_nothing_moves() -> None:
    found = Replicas(replicas=3)
    for number in range(60):
        found = decided(found, needed=2, roomy=3, growth=ENOUGH, bounds=BOUNDS, now=15.0 * number)
    assert (found.replicas, found.limit, found.changed_at) == (3, ScalingLimit.AS_NEEDED, None)


@pytest.mark.parametrize(
    ("running", "needed", "growth", "replicas", "limit"),
    [
        pytest.param(4, 4, ENOUGH, 4, ScalingLimit.AS_NEEDED, id="as many as needed"),
        pytest.param(4, 12, ENOUGH, 10, ScalingLimit.AT_MAXIMUM, id="more than maxReplicas"),
        pytest.param(1, 9, 4, 4, ScalingLimit.GROWTH_LIMITED, id="more than four times what is Ready"),
        pytest.param(12, 12, ENOUGH, 10, ScalingLimit.AT_MAXIMUM, id="more run than maxReplicas"),
        pytest.param(1, 1, ENOUGH, 3, ScalingLimit.AT_MINIMUM, id="fewer run than minReplicas"),
    ],
)
def test_what_decides_the_number_is_told(
    running: int, needed: int, growth: int, replicas: int, limit: ScalingLimit
) -> None:
    bounds = replace(BOUNDS, least=3 if limit is ScalingLimit.AT_MINIMUM else 1)
    (found,) = told(Replicas(replicas=running), [needed], bounds=bounds, growth=growth)
    assert (found.replicas, found.limit) == (replicas, limit)


def test_a_load_below_the_least_is_told_as_that_once_it_lasts() -> None:
    found = told(Replicas(replicas=3), [3, *[1] * 30], bounds=replace(BOUNDS, least=2))
    assert [found[at].limit for at in (0, 2, 6, 30)] == [
        ScalingLimit.AS_NEEDED, ScalingLimit.AS_NEEDED, ScalingLimit.STABILIZING, ScalingLimit.AT_MINIMUM,
    ]  # fmt: skip
    assert found[30].replicas == 2


def test_pods_that_start_are_not_asked_for_twice() -> None:
    found = told(Replicas(replicas=2), [5, 5, 5, 5], growth=8)
    assert numbers(found) == [5, 5, 5, 5]


def test_bounds_that_are_edited_are_followed_at_once() -> None:
    before = told(Replicas(replicas=6), [6] * 4)[-1]
    (fewer,) = told(before, [6], at=60.0, bounds=replace(BOUNDS, most=4))
    assert (fewer.replicas, fewer.limit) == (4, ScalingLimit.AT_MAXIMUM)
    (again,) = told(fewer, [6], at=75.0)
    assert again.replicas == 6


def test_what_is_remembered_is_bounded_and_errs_to_the_cautious_side() -> None:
    falling = told(Replicas(replicas=20), range(20, 0, -1), bounds=replace(BOUNDS, most=20))[-1]
    assert len(falling.down) <= MOST_RECOMMENDED
    assert falling.down[0].replicas == 20
    rising = told(Replicas(replicas=1), range(1, 20), bounds=replace(BOUNDS, most=20, up_seconds=600.0))[-1]
    assert len(rising.up) <= MOST_RECOMMENDED
    assert (rising.up[0].replicas, rising.replicas) == (1, 1)


def test_a_load_that_falls_steadily_is_followed() -> None:
    """One pod less each 270 s, and a window of an hour."""
    found = told(
        Replicas(replicas=60),
        (60 - step // 18 for step in range(18 * 48)),
        bounds=Bounds(most=60, down_seconds=3600.0),
    )
    assert found[-1].replicas - 13 <= 3600 / 270 + 3, "the window, and a slice of it"


def test_a_load_that_rises_steadily_is_followed() -> None:
    """From 10 to 60 pods in an hour, and a window of ten minutes."""
    found = told(
        Replicas(replicas=10),
        (10 + step * 50 // 240 + step % 2 for step in range(240)),
        bounds=Bounds(most=60, up_seconds=600.0),
    )
    assert found[-1].replicas >= 60 - 50 * 700 / 3600 - 2


def test_a_clock_that_is_set_back_makes_no_recommendation_last() -> None:
    before = told(Replicas(replicas=5), [5, 5], at=10_000.0)[-1]
    found = told(before, [2] * 22, at=0.0)
    assert numbers(found)[-1] == 2


def test_a_new_leader_goes_on_where_the_window_shows_that_it_was_not_long() -> None:
    before = told(Replicas(replicas=5), [5, *[2] * 10])[-1]
    assert before.down == (Recommended(0.0, 5), Recommended(150.0, 2))
    soon = before.resumed(BOUNDS, 200.0)
    assert told(soon, [2], at=301.0)[0].replicas == 2
    late = before.resumed(BOUNDS, 2000.0)
    assert late.down == ()
    found = told(late, [2] * 22, at=2000.0)
    assert numbers(found) == [*[5] * 20, 2, 2], "nobody looked for longer than the window"


def test_where_nothing_is_known_any_more_windows_begin_anew() -> None:
    before = told(Replicas(replicas=5), [5, *[2] * 15])[-1].forgotten()
    assert (before.replicas, before.up, before.down) == (5, (), ())
    assert numbers(told(before, [2] * 5, at=300.0)) == [5] * 5


@pytest.mark.parametrize("away", [300.0, 360.0, 86_400.0])
def test_after_a_window_in_which_nobody_looked_it_begins_anew(away: float) -> None:
    before = told(Replicas(replicas=4), [4] * 30)[-1]
    found = told(before, [1] * 22, at=435.0 + away)
    assert numbers(found) == [*[4] * 20, 1, 1]
    patient = replace(BOUNDS, up_seconds=60.0)
    before = told(Replicas(replicas=4), [4] * 30, bounds=patient)[-1]
    assert numbers(told(before, [9] * 6, at=435.0 + away, bounds=patient)) == [4, 4, 4, 4, 9, 9]


@pytest.mark.parametrize("seconds", [0.0, 1.0, 15.0])
def test_a_window_as_short_as_the_time_between_two_looks_holds_nothing(seconds: float) -> None:
    short = replace(BOUNDS, up_seconds=seconds, down_seconds=seconds)
    before = told(Replicas(replicas=4), [4] * 4, bounds=short)[-1]
    assert numbers(told(before, [6, 6, 2, 2], at=60.0, bounds=short)) == [6, 6, 2, 2]


@pytest.mark.parametrize("up_seconds", [0.0, 60.0, 300.0])
@pytest.mark.parametrize("load", [30.0, 38.0, 42.0, 45.0, 48.0])
def test_a_load_at_a_limit_is_not_told_anew_by_each_noise_on_it(load: float, up_seconds: float) -> None:
    """Each other reason is a write of status at once. Arrivals at random; 5 requests/s a pod, a tenth to spare."""
    chance, bounds = random.Random(1), replace(BOUNDS, up_seconds=up_seconds)
    found = [Replicas(replicas=9)]
    for number in range(480):
        here = chance.gauss(load, math.sqrt(load / 15.0)) / 0.9 / 5.0
        needed, roomy = math.ceil(here), math.ceil(here / 0.9)
        now = 15.0 * number
        found.append(decided(found[-1], needed=needed, roomy=roomy, growth=ENOUGH, bounds=bounds, now=now))
    told_anew = sum(one.limit is not after.limit for one, after in pairwise(found[1:]))
    assert told_anew <= 8, "in two hours"


def test_what_is_held_is_told_for_what_it_is() -> None:
    patient = replace(BOUNDS, up_seconds=60.0)
    found = told(Replicas(replicas=4), [4, 5, 4], bounds=patient)
    assert [(one.limit, one.short) for one in found] == [
        (ScalingLimit.AS_NEEDED, False), (ScalingLimit.STABILIZING, True), (ScalingLimit.STABILIZING, True),
    ]  # fmt: skip
    (edited,) = told(found[-1], [4], at=45.0)
    assert (edited.limit, edited.short) == (ScalingLimit.AS_NEEDED, False), "there is no such window any more"
    full = told(Replicas(replicas=10), [12, 10, 10, 10, 10, 10])
    assert [one.limit for one in full] == [
        *[ScalingLimit.AT_MAXIMUM] * 4,
        ScalingLimit.AS_NEEDED,
        ScalingLimit.AS_NEEDED,
    ], "for a minute"
    (fewer,) = told(full[1], [10], at=30.0, bounds=replace(BOUNDS, most=20))
    assert (fewer.limit, fewer.short) == (ScalingLimit.AS_NEEDED, False), "it is no maximum any more"
