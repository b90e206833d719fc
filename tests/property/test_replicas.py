"""Whatever the load does: replicas stay in their bounds, and no change is undone within its window."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from flyball_operator.api.status import MOST_RECOMMENDED
from flyball_operator.tuning.replicas import SLICES, Bounds, Replicas, decided

windows = st.sampled_from([0.0, 15.0, 60.0, 300.0])
bounds = st.builds(
    lambda least, more, up, down: Bounds(least=least, most=least + more, up_seconds=up, down_seconds=down),
    st.integers(1, 4), st.integers(0, 12), windows, windows,
)  # fmt: skip
#: Seconds since the one before, what the load needs, how much more with room, and Ready pods.
loads = st.lists(
    st.tuples(st.integers(1, 90), st.integers(1, 20), st.integers(0, 3), st.integers(1, 16)), min_size=1, max_size=60
)
Load = list[tuple[int, int, int, int]]


def played(limits: Bounds, load: Load, first: int) -> list[tuple[float, Replicas]]:
    """When what was decided; the first is what ran."""
    now, found = 0.0, [(0.0, Replicas(replicas=first))]
    for seconds, needed, room, ready in load:
        now += seconds
        after = decided(
            found[-1][1], needed=needed, roomy=needed + room, growth=4 * ready, bounds=limits, now=now
        )  # fmt: skip
        found.append((now, after))
    return found


@given(bounds, loads, st.integers(1, 20))
def test_never_outside_the_bounds_and_never_without_limit(limits: Bounds, load: Load, first: int) -> None:
    for _, found in played(limits, load, first)[1:]:
        assert limits.least <= found.replicas <= limits.most
        assert 1 <= len(found.up) <= MOST_RECOMMENDED
        assert 1 <= len(found.down) <= MOST_RECOMMENDED


@given(bounds, loads, st.integers(1, 20))
def test_no_change_is_undone_within_its_window(limits: Bounds, load: Load, first: int) -> None:
    found = played(limits, load, limits.clip(first))
    for index, ((_, before), (at, after)) in enumerate(pairwise(found), 1):
        later = [(now - at, one.replicas) for now, one in found[index:]]
        if after.replicas > before.replicas:
            kept = [number for seconds, number in later if seconds < limits.down_seconds]
            assert all(number >= after.replicas for number in kept), "added pods stay for the window of scaleDown"
        if after.replicas < before.replicas:
            kept = [number for seconds, number in later if seconds < limits.up_seconds]
            assert all(number <= after.replicas for number in kept), "removed pods stay away for that of scaleUp"


@given(bounds, loads, st.integers(1, 20))
def test_what_lasts_is_followed(limits: Bounds, load: Load, first: int) -> None:
    lasting = [(15, 5, 0, 16)] * 45
    assert played(limits, load + lasting, first)[-1][1].replicas == limits.clip(5)


@given(bounds, loads, st.integers(1, 20), st.integers(1, 8))
def test_pending_pods_count(limits: Bounds, load: Load, first: int, needed: int) -> None:
    """However many of them are Ready by now, a number that is enough is not raised."""
    now, enough = played(limits, load + [(15, needed, 0, 16)] * 45, first)[-1]
    for ready in (1, 2, 4, 8):
        again = decided(
            enough, needed=needed, roomy=needed, growth=4 * ready, bounds=limits, now=now + 15.0 * ready
        )  # fmt: skip
        assert again.replicas <= enough.replicas


#: Steps, 60 of them a window, what the load needs at first, how much more at each step, and noise on it.
ramps = st.tuples(
    st.integers(40, 240), st.integers(1, 60), st.sampled_from([-0.5, -0.05, 0.0, 0.05, 0.2, 1.0]),
    st.lists(st.integers(-2, 2), min_size=1, max_size=7),
)  # fmt: skip
Ramp = tuple[int, int, float, list[int]]


@given(st.sampled_from([60.0, 300.0, 600.0, 3600.0]), ramps)
def test_a_load_that_rises_or_falls_is_held_for_a_slice_longer_than_the_window_at_most(
    seconds: float, ramp: Ramp
) -> None:
    """Against all recommendations of the window, and of one that is a slice longer."""
    steps, first, slope, noise = ramp
    limits = Bounds(most=1_000, up_seconds=seconds, down_seconds=seconds)
    longer, found, seen = seconds + seconds / SLICES, Replicas(replicas=first), [(0.0, first)]
    for step in range(steps):
        now = seconds / 60.0 * step
        needed = max(1, round(first + slope * step) + noise[step % len(noise)])
        found = decided(found, needed=needed, roomy=needed, growth=1_000, bounds=limits, now=now)
        seen.append((now, needed))
        exact = [number for at, number in seen if at > now - seconds]
        late = [number for at, number in seen if at > now - longer]
        assert max(exact) <= found.down[0].replicas <= max(late)
        assert min(late) <= found.up[0].replicas <= min(exact)
        assert max(len(found.up), len(found.down)) <= MOST_RECOMMENDED
