"""Growth over several lives: a leak shows although each life is short, a cache that fills and a restart do not."""

from __future__ import annotations

import pytest

from support.growth import Sample, slope


def life(name: str, *, start: float, per_hour: float, seconds: int = 300) -> list[Sample]:
    """Half a minute in which it fills to `start`, then steady growth."""
    return [
        Sample(name, age, start * min(1.0, age / 30) + per_hour * age / 3600)
        for age in map(float, range(0, seconds, 5))
    ]


def test_a_leak_shows_through_restarts() -> None:
    samples = [sample for number in range(4) for sample in life(str(number), start=100 - 9 * number, per_hour=24)]
    assert slope(samples, settled=60) == pytest.approx(24)


def test_what_fills_once_and_lives_that_differ_are_no_growth() -> None:
    samples = [sample for number in range(4) for sample in life(str(number), start=100 + 9 * number, per_hour=0)]
    assert slope(samples, settled=60) == pytest.approx(0, abs=1e-9)


def test_nothing_old_enough_says_nothing() -> None:
    assert slope(life("0", start=100, per_hour=24, seconds=50), settled=60) is None
