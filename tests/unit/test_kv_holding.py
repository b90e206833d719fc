"""Requests that wait with KV cache of their own, loaded from elsewhere or of a session, have room in a step, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball_engine.model import StepModel
from flyball_lab.harness.engine import setpoint
from support.plain_scheduler import GovernedCore, PlainConfig, PlainRequest, PlainScheduler, PlainStatus
from support.reflexes import a_budget

#: A token takes a millisecond.
MODEL = StepModel(t0=0.0, h=0.0, c1=1e-3, c2=1e-3, beta=0.0, g=0.0, kappa=1)
NAMES = [f"held{number}" for number in range(8)]


@pytest.fixture
def core(tmp_path: Path) -> GovernedCore:
    """A minute is more than any step takes; beside those that hold cache a short prompt waits."""
    scheduler = PlainScheduler(PlainConfig(max_num_seqs=16, max_num_batched_tokens=8192))
    core = GovernedCore(tmp_path, scheduler)
    core.hooks.apply(setpoint(1, step=a_budget(60.0, MODEL)))
    scheduler.add("short", prompt=10)
    return core


def hold(core: GovernedCore, status: PlainStatus, *, computed: int = 32) -> None:
    """Eight requests of 1,000 tokens."""
    for name in NAMES:
        request = PlainRequest(
            name, num_tokens=1000, left=4, max_tokens=4, arrival_time=0, num_computed_tokens=computed
        )
        request.status = status
        core.scheduler.kv_holding_waiting.append(request)


def room(core: GovernedCore) -> int:
    """Tokens that the coming step may take."""
    core.hooks.before_schedule()
    return core.scheduler.max_num_scheduled_tokens


def test_what_was_loaded_fits_into_one_step_where_there_is_time(core: GovernedCore) -> None:
    hold(core, PlainStatus.WAITING_FOR_REMOTE_KVS)
    core.scheduler.finished_recving_kv_req_ids = set(NAMES)
    assert room(core) >= 8 * 968


def test_of_what_was_loaded_whole_the_last_token_is_computed(core: GovernedCore) -> None:
    core.scheduler.waiting.clear()
    hold(core, PlainStatus.WAITING_FOR_REMOTE_KVS, computed=1000)
    core.scheduler.finished_recving_kv_req_ids = set(NAMES)
    core.hooks.apply(setpoint(2, step=a_budget(60.0, MODEL, least_prefill_chunk=1)))
    assert room(core) >= 8


def test_a_session_with_new_input_has_room(core: GovernedCore) -> None:
    hold(core, PlainStatus.WAITING)
    assert room(core) >= 8 * 968


@pytest.mark.parametrize("status", [PlainStatus.WAITING_FOR_REMOTE_KVS, PlainStatus.WAITING_FOR_STREAMING_REQ])
def test_what_still_loads_or_waits_for_input_takes_none(core: GovernedCore, status: PlainStatus) -> None:
    hold(core, status)
    assert room(core) == 16
