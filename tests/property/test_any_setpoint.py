"""What is drawn for the fuzz covers what the contract accepts."""

from __future__ import annotations

import random

import pytest

from flyball_engine.contract import BatchingKnob, Knob, OrderKnob, QueueKnob, SchedulingPolicy, Setpoint, StrategyType
from flyball_lab.harness.any_setpoint import FIXED, any_setpoint


@pytest.fixture(scope="module")
def drawn() -> list[Setpoint]:
    """Drawn where it is asked for: every process that runs tests reads this file."""
    return [any_setpoint(random.Random(seed), generation=1) for seed in range(2000)]


def test_every_knob_strategy_and_policy_is_drawn(drawn: list[Setpoint]) -> None:
    asked = {knob for setpoint in drawn for knob in setpoint.asks()}
    assert asked == {*Knob, *BatchingKnob, *QueueKnob, *OrderKnob}
    assert {setpoint.batching.strategy and setpoint.batching.strategy.type for setpoint in drawn} == {
        None,
        *StrategyType,
    }
    assert {setpoint.batching.policy for setpoint in drawn} == {None, *SchedulingPolicy}


def test_so_are_the_ends_of_what_is_allowed(drawn: list[Setpoint]) -> None:
    for knob, least in ((Knob.MAX_NUM_ACTIVE_SEQS, 1), (Knob.LONG_PREFILL_TOKEN_THRESHOLD, 0)):
        values = {setpoint.limits.given().get(knob) for setpoint in drawn}
        assert {None, least, 2**31 - 1} <= values
        assert len(values) > 50
    budgets = {setpoint.step.seconds for setpoint in drawn if setpoint.step is not None}
    assert (min(budgets), max(budgets)) == (1e-300, 60.0)


def test_no_part_of_a_setpoint_is_left_out(drawn: list[Setpoint]) -> None:
    for field in set(Setpoint.model_fields) - set(FIXED):
        left_out = Setpoint.model_fields[field].get_default(call_default_factory=True)
        assert any(getattr(setpoint, field) != left_out for setpoint in drawn), field
