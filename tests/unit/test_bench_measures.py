"""When requests kept their objectives: what is made of their arrivals and of whether they did."""

from __future__ import annotations

from flyball_lab.benches.law.measures import (
    BIN,
    LONGEST_RECOVERY,
    good_each,
    most_within,
    recovery,
    seconds_below,
    start_seconds,
)
from flyball_lab.benches.law.scenarios import SCENARIOS
from flyball_lab.simulator.requests import Request


def each_second(seconds: int) -> list[Request]:
    """Ten requests a second."""
    return [Request(number / 10, 1, 1) for number in range(10 * seconds)]


def test_a_request_belongs_to_the_bin_of_its_arrival() -> None:
    assert good_each(each_second(12), lambda one: one.arrival >= 5, 12.0) == (0, 50, 20)


def test_a_second_is_too_low_while_its_last_ten_are() -> None:
    requests = each_second(60)
    assert seconds_below(requests, lambda _: True, 60.0) == 0
    assert seconds_below(requests, lambda _: False, 60.0) == 60
    # Of ten seconds a twentieth is half a second: what fails for two seconds is seen for eleven.
    assert seconds_below(requests, lambda one: not 30 <= one.arrival < 32, 60.0) == 11
    assert seconds_below([], lambda _: False, 60.0) == 0


def test_a_recovery_is_the_first_second_whose_next_ten_are_good() -> None:
    requests = each_second(120)
    assert recovery(requests, lambda one: one.arrival >= 65, [60.0]) == 5
    assert recovery(requests, lambda _: True, [60.0]) == 0
    assert recovery(requests, lambda one: one.arrival < 60, [30.0, 60.0]) == LONGEST_RECOVERY
    assert recovery(requests, lambda _: False, []) == 0


def test_what_lies_in_any_span_is_counted_wherever_that_begins() -> None:
    assert most_within([], 60.0) == 0
    assert most_within([5.0, 55.0, 60.0, 64.0, 65.0, 130.0], 60.0) == 4


def test_a_start_is_over_when_as_much_is_kept_as_by_the_best() -> None:
    assert start_seconds((10, 10, 10), (10, 10, 10)) == BIN
    assert start_seconds((0, 0, 10, 10, 10, 10), (10, 10, 10, 10, 10, 10)) == 5 * BIN
    assert start_seconds((0, 0), (10, 10)) == 2 * BIN


def test_an_overload_may_have_ended_where_fewer_come() -> None:
    steps = next(one for one in SCENARIOS if "load steps" in one.name)
    assert steps.relieved == (180.0, 300.0)
    assert SCENARIOS[0].relieved == ()
