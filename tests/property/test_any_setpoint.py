"""What is drawn for the fuzz covers what the contract accepts."""

from __future__ import annotations

import random

from flyball_engine.contract import BatchingKnob, Knob, OrderKnob, QueueKnob, SchedulingPolicy, Setpoint, StrategyType
from flyball_lab.harness.any_setpoint import FIXED, any_setpoint

DRAWN = [any_setpoint(random.Random(seed), generation=1) for seed in range(2000)]


def test_every_knob_strategy_and_policy_is_drawn() -> None:
    asked = {knob for setpoint in DRAWN for knob in setpoint.asks()}
    assert asked == {*Knob, *BatchingKnob, *QueueKnob, *OrderKnob}
    assert {setpoint.batching.strategy and setpoint.batching.strategy.type for setpoint in DRAWN} == {
        None,
        *StrategyType,
    }
    assert {setpoint.batching.policy for setpoint in DRAWN} == {None, *SchedulingPolicy}


def test_so_are_the_ends_of_what_is_allowed() -> None:
    for knob, least in ((Knob.MAX_NUM_ACTIVE_SEQS, 1), (Knob.LONG_PREFILL_TOKEN_THRESHOLD, 0)):
        values = {setpoint.limits.given().get(knob) for setpoint in DRAWN}
        assert {None, least, 2**31 - 1} <= values
        assert len(values) > 50
    budgets = {setpoint.step.seconds for setpoint in DRAWN if setpoint.step is not None}
    assert (min(budgets), max(budgets)) == (1e-300, 60.0)


def test_no_part_of_a_setpoint_is_left_out() -> None:
    for field in set(Setpoint.model_fields) - set(FIXED):
        left_out = Setpoint.model_fields[field].get_default(call_default_factory=True)
        assert any(getattr(setpoint, field) != left_out for setpoint in DRAWN), field
