"""Numbers that engines answer with: what our own history explains, and what is done about the rest."""

from __future__ import annotations

import json

import pytest

from flyball_engine.contract import Generation, ReadBack, ShedKnob
from flyball_engine.control_port import ForeignAnswerError, read_back_of
from flyball_operator.api.epochs import LARGEST_EPOCH, UNRECORDED_LEADERS
from flyball_operator.tuning.actuate.generation_bounds import (
    LARGEST_GENERATION,
    GenerationBounds,
    Unexplained,
    counted_on,
)

REACH = GenerationBounds(epoch=5, recorded=4, given=12)


def number(epoch: int, generation: int) -> Generation:
    return Generation(epoch=epoch, generation=generation)


@pytest.mark.parametrize(
    ("claimed", "doubt"),
    [
        (number(5, 12), None),
        (number(5, 3), None),
        # A former leader's: ours order above them, and nothing is counted on from them.
        (number(4, 10**9), None),
        (number(0, 2**53), None),
        (number(5, 13), Unexplained.GENERATION_AHEAD),
        (number(5, 10**9), Unexplained.GENERATION_AHEAD),
        (number(6, 1), Unexplained.EPOCH_AHEAD),
        (number(999_999, 1), Unexplained.EPOCH_AHEAD),
    ],
)
def test_only_our_own_history_explains_a_number(claimed: Generation, doubt: Unexplained | None) -> None:
    assert REACH.doubt(claimed) is doubt


def test_an_epoch_that_status_names_is_a_newer_leaders() -> None:
    reach = GenerationBounds(epoch=5, recorded=7, given=12)
    assert reach.fenced
    assert reach.doubt(number(7, 1)) is None
    assert reach.doubt(number(8, 1)) is Unexplained.EPOCH_AHEAD


def test_nothing_is_said_of_others_before_our_own_epoch_is_known() -> None:
    reach = GenerationBounds(epoch=0, recorded=7, given=0)
    assert not reach.fenced
    assert reach.doubt(number(9, 9)) is None


def test_what_is_near_is_ordered_above_and_what_is_far_is_left_to_people() -> None:
    assert REACH.remedy(number(5, 10**9)) == 5
    assert REACH.remedy(number(5 + UNRECORDED_LEADERS, 1)) == 5 + UNRECORDED_LEADERS
    assert REACH.remedy(number(6 + UNRECORDED_LEADERS, 1)) is None
    assert "A new epoch is taken" in REACH.message(number(9, 1))
    assert "A new epoch" not in (far := REACH.message(number(999_999, 1)))
    assert far.startswith("answers with epoch 999999, and no leader had one above 5.")
    assert "delete the pod" in far


def test_counting_goes_on_from_what_can_be_and_never_near_the_end_of_numbers() -> None:
    assert counted_on(57) == 57
    assert counted_on(10**9 + 1) == 0
    assert counted_on(2**53) == 0
    # One change a second for a hundred years, and one raise of an epoch an hour for twenty.
    assert LARGEST_GENERATION + 100 * 366 * 86_400 < 2**53
    assert LARGEST_EPOCH + 20 * 366 * 24 * (UNRECORDED_LEADERS + 1) < 2**31


@pytest.mark.parametrize("field", ["epoch", "generation"])
def test_a_number_beyond_the_contracts_is_no_answer(field: str) -> None:
    accepted = {"service": "s1", "epoch": 1, "generation": 1} | {field: 2**53 + 1}
    answer = ReadBack(
        service="s1", plugin_version="1", engine_version="1", governed=True, accepted=None, cores=()
    ).model_dump(mode="json") | {"accepted": accepted}
    with pytest.raises(ForeignAnswerError, match=f"accepted.{field}"):
        read_back_of(json.dumps(answer).encode())


def test_knobs_of_a_later_plugin_are_passed_over() -> None:
    answer = ReadBack(
        service="s1", plugin_version="9", engine_version="1", governed=True, accepted=None, cores=()
    ).model_dump(mode="json") | {"unsupported": {"of.later": "not here", "shed.waiting": "nor this"}}
    assert read_back_of(json.dumps(answer).encode()).unsupported == {ShedKnob.WAITING: "nor this"}
