"""Durations and quantities: what their strings mean, and that writing one reads back."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_engine.figures import format_duration
from flyball_operator.api.quantities import ReadsAsQuantity, parse_duration, quantity


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", "0.5"), ("1.5s", "1.5"), ("250us", "0.00025"), ("30m", "1800"), ("2h", "7200"), ("0s", "0")],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: str) -> None:
    assert parse_duration(text) == Decimal(seconds)


@pytest.mark.parametrize("text", ["", "5", "ms", "-1s", "1 s", "1d", "1e3s", "1s ", "1s\n", "٣s", "1234567s"])
def test_anything_else_is_refused_with_the_accepted_form(text: str) -> None:
    with pytest.raises(ValueError, match="a duration such as 500ms"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "500ms"),
        (0.00025, "250us"),
        (1.5, "1.5s"),
        (60, "60s"),
        (90, "90s"),
        (120, "2m"),
        (7200, "2h"),
        (12_346, "12350s"),
        (0, "0s"),
        (0.123456, "123.5ms"),
    ],
)
def test_a_duration_is_written_as_people_would(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.decimals(min_value="0.00001", max_value="86400", places=6))
def test_what_is_written_reads_back_to_four_digits(seconds: Decimal) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=Decimal("0.0006"))


@pytest.mark.parametrize("good", [0, 2, "500m", "16Gi", "1.5", ".5", "5.", "1e3", "1E-3", "128974848"])
def test_quantities_of_kubernetes_are_read(good: int | str) -> None:
    assert ReadsAsQuantity().objection(good) is None


@pytest.mark.parametrize("bad", [-1, "-1", "", "16GB", "1 Gi", "Gi", "1e", "1" * 33, "٣"])
def test_what_kubernetes_would_not_read_is_refused(bad: int | str) -> None:
    assert ReadsAsQuantity().objection(bad) == ReadsAsQuantity.MESSAGE


@pytest.mark.parametrize(
    ("value", "amount"),
    [(0, "0"), (2, "2"), ("500m", "0.5"), ("16Gi", 16 * 2**30), ("1.5k", "1500"), (".5", "0.5"), ("1e3", "1000")],
)
def test_a_quantity_is_an_amount(value: object, amount: str | int) -> None:
    assert quantity(value) == Decimal(amount)


@pytest.mark.parametrize("value", ["", "1K", "1_000", "NaN", "1.2.3", "16GB", True, None])
def test_what_kubernetes_does_not_read_has_no_amount(value: object) -> None:
    assert quantity(value) is None
