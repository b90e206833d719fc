"""Quantiles by nearest rank."""

from __future__ import annotations

import pytest

from flyball_lab.quantiles import quantile


@pytest.mark.parametrize(
    ("share", "found"), [(0.0, 1.0), (0.25, 1.0), (0.26, 2.0), (0.5, 2.0), (0.51, 3.0), (0.99, 4.0), (1.0, 4.0)]
)
def test_it_is_the_smallest_that_so_many_do_not_exceed(share: float, found: float) -> None:
    assert quantile([3.0, 1.0, 4.0, 2.0], share) == found


def test_one_value_is_every_quantile() -> None:
    assert [quantile([7.0], share) for share in (0.0, 0.5, 1.0)] == [7.0, 7.0, 7.0]
