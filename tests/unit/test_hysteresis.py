"""What stands between the law's wish and the engine."""

from __future__ import annotations

import pytest

from flyball_lab.harness.tuning import ENVELOPE, limits
from flyball_operator.tuning.control_input import ControlOutput, Prediction
from flyball_operator.tuning.filters import hysteresis
from flyball_operator.tuning.filters.hysteresis import HoldReason

NOTHING = Prediction(ttft=0, tpot=0, gap=0, e2e=0)


def wish(seqs: int, tokens: int) -> ControlOutput:
    return ControlOutput(seqs=seqs, tokens=tokens, binding="tpot", predicted=NOTHING)


def test_the_limits_jump_to_where_the_model_points() -> None:
    for wanted in ((10, 256), (128, 2048)):
        assert hysteresis.restrain(limits(60, 512), wish(*wanted), ENVELOPE) == (limits(*wanted), None)


@pytest.mark.parametrize(("seqs", "tokens"), [(100, 1024), (91, 1024), (109, 1200), (100, 850)])
def test_small_changes_are_not_worth_it(seqs: int, tokens: int) -> None:
    held = hysteresis.restrain(limits(100, 1024), wish(seqs, tokens), ENVELOPE)
    assert held == (limits(100, 1024), HoldReason.GOOD_ENOUGH)


def test_of_few_places_each_one_counts() -> None:
    assert hysteresis.restrain(limits(5, 1024), wish(4, 1024), ENVELOPE) == (limits(4, 1024), None)


def test_limits_outside_changed_bounds_are_moved_inside() -> None:
    assert hysteresis.clipped(limits(500, 64), ENVELOPE) == limits(128, 128)
