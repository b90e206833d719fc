"""What a core tells the gate: the backlog, and what it had received when it counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball_engine.batching.backlog import Backlog
from flyball_engine.batching.gate import CoreLoad, Work
from flyball_engine.control.state_file import StateReader, find_state_files
from support.engine import setpoint
from support.plain_scheduler import GovernedCore, PlainConfig, PlainScheduler


@pytest.fixture
def core(tmp_path: Path) -> GovernedCore:
    return GovernedCore(tmp_path, PlainScheduler(PlainConfig(max_num_seqs=8, max_num_batched_tokens=256)))


def load(core: GovernedCore) -> CoreLoad:
    seen = StateReader(find_state_files(core.folder)[0]).load()
    assert seen is not None
    return seen


def test_an_idle_core_has_all_its_places(core: GovernedCore) -> None:
    seen = load(core)
    assert (seen.backlog, seen.decodes, seen.places) == (Work(), 0, 8)
    assert (seen.tokens, seen.pipeline_depth, seen.bias) == (256, 1, 1.0)


def test_prompts_that_wait_or_have_begun_are_backlog(core: GovernedCore) -> None:
    for number in range(12):
        core.scheduler.add(f"r{number}", prompt=100)
        core.governor.received(core.scheduler.requests[f"r{number}"])
    core.step()
    seen = load(core)
    # 256 of 1200 tokens are done: two prompts whole, and half of a third.
    half = 44 * (56 + 44 / 2)
    assert seen.backlog == Work(9, 1200 - 256, 9 * 100 * 50 + half)
    assert (seen.decodes, seen.running) == (2, 3)
    assert seen.places == 5
    assert seen.received == 12
    assert not seen.knows_prefixes


def test_the_limits_in_force_are_told(core: GovernedCore) -> None:
    core.governor.apply(setpoint(1, limits={"max_num_active_seqs": 3, "max_num_scheduled_tokens": 64}))
    core.step()
    seen = load(core)
    assert (seen.places, seen.tokens) == (3, 64)


def test_counting_takes_one_part_in_a_hundred_of_the_time() -> None:
    backlog = Backlog()
    assert backlog.due(0.0)
    backlog.counted(began=1.0, ended=1.01)
    assert not backlog.due(2.0)
    assert backlog.due(2.02)
