"""What stands between the law's wish and the engine."""

from __future__ import annotations

import pytest

from flyball_lab.harness.tuning import ENVELOPE, limits
from flyball_operator.tuning.filters.filters import restrained
from flyball_operator.tuning.policy import clipped


def test_the_limits_jump_to_where_the_model_points() -> None:
    for wanted in ((10, 256), (128, 2048)):
        assert restrained(limits(60, 512), limits(*wanted), ENVELOPE) == limits(*wanted)


@pytest.mark.parametrize(("seqs", "tokens"), [(100, 1024), (91, 1024), (109, 1120), (100, 930)])
def test_small_changes_are_not_worth_it(seqs: int, tokens: int) -> None:
    assert restrained(limits(100, 1024), limits(seqs, tokens), ENVELOPE) == limits(100, 1024)


def test_of_few_places_each_one_counts() -> None:
    assert restrained(limits(5, 1024), limits(4, 1024), ENVELOPE) == limits(4, 1024)


def test_limits_outside_changed_bounds_are_moved_inside() -> None:
    assert clipped(limits(500, 64), ENVELOPE) == limits(128, 128)
