"""Figures and percentages are written in one way."""

from __future__ import annotations

import math

import pytest

from flyball_engine.figures import figure, format_duration, percent, significant


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.1234, 3, "0.123"),
        (12.34, 3, "12.3"),
        (43_210.0, 3, "43200"),
        (120.0, 2, "120"),
        (2.0, 3, "2"),
        (0.0, 3, "0"),
        (-1.25, 2, "-1.2"),
        (7.2e12, 2, "7.2e+12"),
        (math.inf, 2, "inf"),
    ],
)
def test_a_figure_has_so_many_digits(value: float, digits: int, text: str) -> None:
    assert figure(value, digits) == text


def test_a_duration_may_have_fewer_digits() -> None:
    assert [format_duration(0.123456, digits) for digits in (1, 2, 3)] == ["100ms", "120ms", "123ms"]


def test_a_number_is_rounded_to_significant_digits() -> None:
    assert significant(0.012345, 2) == 0.012
    assert significant(98_765, 3) == 98_800


def test_a_share_is_written_in_percent() -> None:
    assert [percent(0.054), percent(1.0), percent(0.985, 1)] == ["5 %", "100 %", "98.5 %"]
