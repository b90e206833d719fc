"""When requests that wait stand still, and when they rightly wait."""

from __future__ import annotations

from typing import Any

import pytest

from flyball_engine.contract import Ceilings, CoreState, StepKind, StepSums, StrategyType
from flyball_lab.harness.tuning import limits
from flyball_operator.tuning.observe.stall import STUCK_SECONDS, VERIFY_SECONDS, AdmissionStall, observed


def core(*, prefilled: int = 0, steps: int = 100, **state: Any) -> CoreState:
    """A core with five waiting beside one that runs, and slots free."""
    sums = StepSums(
        bucket=1,
        kind=StepKind.MIXED,
        steps=steps,
        seconds=1.0,
        seconds_squared=1.0,
        tokens=steps,
        prefill_tokens=prefilled,
        decodes=steps,
        kv_tokens=0,
        prefill_attention=0.0,
    )
    given: dict[str, Any] = {
        "engine": 0,
        "applied": None,
        "effective": limits(8, 256),
        "start": limits(128, 2048),
        "ceilings": Ceilings(max_num_seqs=128, max_num_batched_tokens=2048, max_model_len=4096),
        "running": 1,
        "waiting": 5,
        "kv_cache_usage": 0.1,
        "kv_cache_tokens": 100_000,
        "watchdog_trips": 0,
        "longest_step_seconds": 0.1,
        "steps": (sums,),
    }
    return CoreState(**given | state)


def after(*cores: CoreState) -> AdmissionStall | None:
    """What is known after a read-back every 15 s."""
    found: AdmissionStall | None = None
    for number, state in enumerate(cores):
        found = observed(found, state, 15.0 * number)
    return found


READINGS = int(STUCK_SECONDS / VERIFY_SECONDS) + 1


def test_five_that_wait_for_over_a_minute_beside_decodes_stand_still() -> None:
    found = after(*(core(steps=100 + n) for n in range(READINGS)))
    assert found is not None
    assert found.stuck
    assert found.stepping
    fewer = after(*(core(steps=100 + n) for n in range(READINGS - 1)))
    assert fewer is not None
    assert not fewer.stuck


def test_a_core_that_does_not_step_is_told_apart() -> None:
    found = after(*(core() for _ in range(READINGS)))
    assert found is not None
    assert found.stuck
    assert not found.stepping


@pytest.mark.parametrize(
    "rightly",
    [
        {"waiting": 0},
        {"running": 8},
        {"kv_cache_usage": 0.8},
        {"strategy": StrategyType.STATIC},
    ],
)
def test_who_rightly_waits_does_not_stand_still(rightly: dict[str, Any]) -> None:
    assert after(*(core(**rightly) for _ in range(READINGS))) is None


def test_a_full_cache_without_a_request_that_holds_it_is_no_reason() -> None:
    found = after(*(core(running=0, kv_cache_usage=0.9) for _ in range(READINGS)))
    assert found is not None
    assert found.stuck


def test_whoever_is_let_in_ends_it() -> None:
    found = after(*(core() for _ in range(READINGS)), core(prefilled=1))
    assert found is not None
    assert not found.stuck
