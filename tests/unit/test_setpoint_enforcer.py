"""The setpoint in force, asked before a step and told after it, without an engine."""

from __future__ import annotations

import pytest

from flyball_engine.batching.setpoint_enforcer import (
    ReportedLimit,
    RequestedLimits,
    RunningBatch,
    SetpointEnforcer,
    Sizes,
)
from flyball_engine.batching.step_token_budgeter import Queue
from flyball_engine.batching.watchdog import Watchdog
from flyball_engine.contract import Batching, ClampReason, Generation, Knob
from flyball_engine.knobs import Static
from flyball_engine.model import StepModel
from flyball_lab.harness.engine import setpoint
from support.reflexes import a_budget

SIZES = Sizes(max_num_seqs=16, max_num_batched_tokens=256, max_model_len=4096)
START = RequestedLimits(active=16, tokens=256, threshold=0)
MODEL = StepModel(t0=0.010, h=0.0, c1=0.001, c2=0.001, beta=0.0, g=0.0, kappa=1)
IDLE = RunningBatch(decodes=0)
#: A long prompt beside eight decodes.
CROWDED = RunningBatch(decodes=8, prefills=(1000,))


def a_governed(*, fixed: tuple[Knob, ...] = ()) -> SetpointEnforcer:
    return SetpointEnforcer(SIZES, START, fixed=fixed, watchdog=Watchdog(seconds=5, steps=1))


def no_queue() -> Queue:
    raise AssertionError("nobody fits steps into a time")


def stands_still(governed: SetpointEnforcer, *, until: float, since: float = 0.0) -> bool:
    """A queue that nobody serves, looked at every second; whether that threw the setpoint out."""
    seconds = range(int(since), int(until) + 1)
    stalls = [governed.watch(running=0, waiting=3, tokens=0, names=list, now=float(now)) for now in seconds]
    return any(stalls)


def test_what_a_setpoint_leaves_out_is_as_at_the_start() -> None:
    governed = a_governed()
    governed.apply(setpoint(1, limits={"max_num_active_seqs": 4}), 0.0)
    assert governed.limits(IDLE, no_queue) == RequestedLimits(active=4, tokens=256, threshold=0)
    governed.apply(setpoint(2, limits={"max_num_scheduled_tokens": 100}), 0.0)
    assert governed.limits(IDLE, no_queue) == RequestedLimits(active=16, tokens=100, threshold=0)


def test_only_a_newer_setpoint_is_a_new_one() -> None:
    governed = a_governed()
    assert governed.apply(setpoint(2), 0.0)
    assert not governed.apply(setpoint(2), 1.0), "a renewal"
    assert not governed.apply(setpoint(1, limits={"max_num_active_seqs": 4}), 2.0), "an older one"
    assert governed.expires == 1.0 + setpoint(2).expires_seconds
    assert governed.applied == Generation(epoch=1, generation=2)
    assert governed.limits(IDLE, no_queue) == START


def test_limits_are_held_anew_only_when_something_changed() -> None:
    governed = a_governed()
    held = governed.held(IDLE)
    assert governed.held(CROWDED) is held, "what is safe for it is the same"
    governed.apply(setpoint(1), 0.0)
    assert governed.held(IDLE) is not held, "what was asked may be another, though the limits are the same"


def test_limits_raised_for_a_batch_follow_it_down() -> None:
    governed = a_governed()
    governed.apply(setpoint(1, limits={"max_num_active_seqs": 4, "max_num_scheduled_tokens": 16}), 0.0)
    calm = governed.held(IDLE)
    assert [governed.held(RunningBatch(decodes=n)).limits.tokens for n in (20, 18, 16, 3)] == [20, 18, 16, 16]
    assert governed.held(RunningBatch(decodes=16)) is governed.held(IDLE)
    assert governed.held(IDLE).limits == calm.limits


def test_a_knob_that_cannot_be_moved_is_not_shown() -> None:
    governed = a_governed(fixed=(Knob.NUM_SPECULATIVE_TOKENS,))
    assert Knob.NUM_SPECULATIVE_TOKENS not in governed.shown(IDLE)
    assert Knob.NUM_SPECULATIVE_TOKENS not in governed.started()
    assert governed.started()[Knob.MAX_NUM_SCHEDULED_TOKENS] == 256


def test_an_expired_setpoint_is_asked_for_no_more() -> None:
    governed = a_governed()
    governed.apply(setpoint(1, limits={"max_num_active_seqs": 99}, expires_seconds=60.0), 0.0)
    assert governed.shown(IDLE)[Knob.MAX_NUM_ACTIVE_SEQS] == ReportedLimit(99, 16, ClampReason.CEILING)
    assert not governed.expire_if_due(59.9)
    assert governed.expire_if_due(60.0)
    assert governed.shown(IDLE)[Knob.MAX_NUM_ACTIVE_SEQS] == ReportedLimit(16, 16, None)
    assert (governed.applied, governed.expiries) == (None, 1)
    assert not governed.expire_if_due(61.0), "once"


def test_a_stall_throws_everything_out_until_a_newer_setpoint() -> None:
    governed = a_governed()
    moved = setpoint(
        1,
        limits={"max_num_active_seqs": 2},
        step=a_budget(0.1, MODEL),
        batching=Batching(strategy=Static(batch_size=1)),
    )
    governed.apply(moved, 0.0)
    assert stands_still(governed, until=7)
    governed.apply(moved, 8.0)
    assert not governed.budgeter.holds
    assert governed.batching == Batching()
    assert governed.shown(IDLE)[Knob.MAX_NUM_ACTIVE_SEQS] == ReportedLimit(2, 16, ClampReason.WATCHDOG)
    governed.apply(setpoint(2, limits={"max_num_active_seqs": 2}), 9.0)
    assert governed.limits(IDLE, no_queue).active == 2
    assert governed.trips == 1


@pytest.mark.parametrize(
    "asks",
    [
        {"limits": {"max_num_active_seqs": 2}},
        {"step": a_budget(0.1, MODEL)},
        {"batching": Batching(strategy=Static(batch_size=1))},
    ],
)
def test_a_stall_counts_whatever_was_moved(asks: dict[str, object]) -> None:
    governed = a_governed()
    governed.apply(setpoint(1, **asks), 0.0)  # type: ignore[arg-type] # fields of a setpoint
    assert stands_still(governed, until=7)


def test_a_stall_at_the_start_values_is_nobodys_doing() -> None:
    governed = a_governed()
    governed.apply(setpoint(1), 0.0)
    assert not stands_still(governed, until=30)


def test_a_new_setpoint_has_its_full_patience() -> None:
    governed = a_governed()
    governed.apply(setpoint(1, limits={"max_num_active_seqs": 2}), 0.0)
    assert not stands_still(governed, until=4)
    governed.apply(setpoint(2, limits={"max_num_active_seqs": 3}), 4.5)
    assert not stands_still(governed, since=5, until=9)
    assert stands_still(governed, since=10, until=12)


def test_a_pause_is_no_stall() -> None:
    governed = a_governed()
    governed.apply(setpoint(1, limits={"max_num_active_seqs": 2}), 0.0)
    assert not stands_still(governed, until=4)
    governed.paused()
    assert not stands_still(governed, since=5, until=9)
