"""What a governed core tells the gate: who is there, and how fast prompts are processed now."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball_engine.batching.gate import CoreLoad
from flyball_engine.contract import OnTime, Shed
from flyball_engine.control.state_file import StateReader, find_state_files
from flyball_engine.model import StepModel
from flyball_lab.harness.engine import setpoint
from support.plain_scheduler import GovernedCore, PlainConfig, PlainScheduler
from support.reflexes import a_budget

#: A step of 110 ms has 100 tokens.
MODEL = StepModel(t0=0.010, h=0.0, c1=0.001, c2=0.001, beta=0.0, g=0.0, kappa=1)


@pytest.fixture
def core(tmp_path: Path) -> GovernedCore:
    return GovernedCore(tmp_path, PlainScheduler(PlainConfig(max_num_seqs=64, max_num_batched_tokens=256)))


def sheds(core: GovernedCore, number: int = 1, *, trusted: bool = True, orders: bool = True) -> None:
    core.hooks.apply(
        setpoint(
            number,
            step=a_budget(0.110, MODEL, trusted=trusted),
            shed=Shed(ttft_deadline_seconds=2.0),
            on_time=OnTime(first_token_deadline_seconds=2.0) if orders else None,
        )
    )


def load(core: GovernedCore) -> CoreLoad:
    seen = StateReader(find_state_files(core.folder)[0]).load()
    assert seen is not None
    return seen


def plan(core: GovernedCore) -> None:
    """Plan a step, which is in flight then."""
    core.hooks.before_schedule()
    core.hooks.after_schedule(core.scheduler.schedule())


def per_token(core: GovernedCore) -> float:
    rate = load(core).rate
    assert rate is not None
    return rate.per_token


def test_without_a_deadline_or_a_trusted_model_there_is_no_rate(core: GovernedCore) -> None:
    assert load(core) == CoreLoad()
    core.hooks.apply(setpoint(1, step=a_budget(0.110, MODEL)))
    assert load(core).rate is None
    sheds(core, 2, trusted=False)
    assert load(core).rate is None


@pytest.mark.parametrize("orders", [True, False], ids=["in order", "as they come"])
def test_beside_more_decodes_prompts_take_longer(core: GovernedCore, orders: bool) -> None:
    sheds(core, orders=orders)
    assert per_token(core) == pytest.approx(0.110 / 100)
    for number in range(50):
        core.add(f"r{number}", prompt=1, output=1000)
    core.step(seconds=0.06)
    plan(core)
    assert per_token(core) == pytest.approx(0.110 / 50)


def test_who_is_there_is_told(core: GovernedCore) -> None:
    sheds(core, orders=False)
    for number in range(3):
        core.add(f"r{number}", prompt=80)
    plan(core)
    # 100 of 240 tokens are done: one prompt whole, and a part of a second.
    seen = load(core)
    assert (seen.running, seen.waiting, seen.prefills) == (2, 1, 1)
    assert seen.in_flight_seconds == pytest.approx(0.110 / 2)


def test_an_engine_that_has_served_all_is_idle_and_as_fast_as_ever(core: GovernedCore) -> None:
    sheds(core)
    for number in range(20):
        core.add(f"r{number}", prompt=4, output=2)
    while core.scheduler.requests:
        core.step()
    assert load(core).is_idle
    assert load(core).in_flight_seconds == 0.0


def test_what_was_aborted_is_no_longer_there(core: GovernedCore) -> None:
    sheds(core)
    core.add("gone", prompt=80)
    plan(core)
    core.scheduler.finish_requests("gone")
    core.hooks.after_finish()
    assert load(core).is_idle
    assert per_token(core) == pytest.approx(0.110 / 100)


def test_a_core_that_gave_up_tells_nothing(core: GovernedCore) -> None:
    sheds(core)
    core.hooks.give_up()
    assert StateReader(find_state_files(core.folder)[0]).load() is None
