"""A governed scheduler whose steps are fitted into a time, step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flyball_engine.model import StepModel
from flyball_lab.harness.engine import setpoint
from support.plain_scheduler import GovernedCore, PlainConfig, PlainScheduler
from support.reflexes import a_budget

#: A step of 100 ms has 90 tokens.
MODEL = StepModel(t0=0.010, h=0.0, c1=0.001, c2=0.001, beta=0.0, g=0.0, kappa=1)


@pytest.fixture
def core(tmp_path: Path) -> GovernedCore:
    return GovernedCore(tmp_path, PlainScheduler(PlainConfig(max_num_seqs=64, max_num_batched_tokens=512)))


def step_as_predicted(core: GovernedCore, *, slowdown: float = 1.0) -> int:
    """One step that takes what the model says of it, or so many times that; its tokens."""
    core.hooks.before_schedule()
    output = core.scheduler.schedule()
    core.hooks.after_schedule(output)
    core.now += slowdown * (MODEL.t0 + MODEL.c1 * output.total_num_scheduled_tokens)
    core.scheduler.update_from_output(output)
    core.hooks.after_update(output)
    return output.total_num_scheduled_tokens


def test_each_step_gets_the_tokens_that_fit(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, step=a_budget(0.1, MODEL)))
    core.scheduler.add("long", prompt=3000)
    assert [step_as_predicted(core) for _ in range(10)] == [90] * 10
    report = core.report()
    assert report.step_budget_seconds == 0.1
    assert report.state.local_bias == pytest.approx(1.0)
    # The limits are the frame; what a step gets within it is no clamp.
    assert report.state.effective == report.state.start
    assert report.state.clamped == ()


def test_what_the_decodes_read_leaves_a_prompt_less(core: GovernedCore) -> None:
    reading = replace(MODEL, d=1e-5)
    for number in range(2):
        core.scheduler.add(f"r{number}", prompt=1000, output=1000)
    core.scheduler.add("long", prompt=30_000)
    while core.scheduler.requests["r1"].num_output_tokens == 0:
        core.step()
    core.hooks.apply(setpoint(1, step=a_budget(0.1, reading)))
    scheduled = core.step().num_scheduled_tokens
    # 90 ms are left, 20 of them for the contexts.
    assert 67 <= sum(scheduled.values()) <= 70


def test_the_limits_frame_the_budget(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, limits={"max_num_scheduled_tokens": 70}, step=a_budget(0.1, MODEL)))
    core.scheduler.add("long", prompt=3000)
    assert step_as_predicted(core) == 70


def test_a_slow_pod_gives_its_steps_less(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, step=a_budget(0.1, MODEL)))
    core.scheduler.add("long", prompt=100_000)
    for _ in range(150):
        tokens = step_as_predicted(core, slowdown=2.0)
    assert 38 <= tokens <= 41
    core.hooks.apply(setpoint(2, step=a_budget(0.1, MODEL)))
    assert step_as_predicted(core, slowdown=2.0) == tokens


def test_decodes_behind_a_long_prompt_advance_in_every_step(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, limits={"long_prefill_token_threshold": 64}))
    core.scheduler.add("long", prompt=100_000, output=5)
    for number in range(40):
        core.scheduler.add(f"r{number}", prompt=8, output=1000)
    for _ in range(3):
        core.step()
    core.hooks.apply(
        setpoint(2, limits={"long_prefill_token_threshold": 64}, step=a_budget(0.02, MODEL, least_prefill_chunk=20))
    )
    for _ in range(20):
        scheduled = core.step().num_scheduled_tokens
        assert scheduled["long"] == 20
        assert len(scheduled) == 41


def test_a_setpoint_without_a_budget_leaves_steps_to_the_limits(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, step=a_budget(0.1, MODEL)))
    core.hooks.apply(setpoint(2))
    core.scheduler.add("long", prompt=3000)
    assert step_as_predicted(core) == 512
    assert core.report().step_budget_seconds == 0


def test_an_untrusted_model_leaves_steps_to_the_limits(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, step=a_budget(0.1, MODEL, trusted=False)))
    core.scheduler.add("long", prompt=3000)
    assert [step_as_predicted(core) for _ in range(2)] == [512] * 2
    report = core.report()
    assert report.step_budget_seconds == 0
    assert report.state.local_bias == pytest.approx(1.0)


def test_a_budget_that_nobody_renews_expires(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, step=a_budget(0.1, MODEL), expires_seconds=60.0))
    core.scheduler.add("long", prompt=3000)
    core.now += 61
    assert step_as_predicted(core) == 512


def test_a_hang_under_a_budget_ends_it(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, step=a_budget(0.1, MODEL)))
    core.scheduler.add("long", prompt=3000)
    core.step()
    core.scheduler.frozen = True
    while core.report().state.watchdog_trips == 0:
        core.step(seconds=1)
    core.scheduler.frozen = False
    assert step_as_predicted(core) == 512
    core.hooks.apply(setpoint(1, step=a_budget(0.1, MODEL)))
    assert step_as_predicted(core) == 512


def test_a_fault_of_ours_ends_the_budget(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, step=a_budget(0.1, MODEL)))
    core.scheduler.add("long", prompt=3000)
    core.step()
    core.scheduler.kv_cache_manager = None  # type: ignore[assignment] # as if vLLM had changed under us
    core.step()
    assert core.step().total_num_scheduled_tokens == 512
    assert core.report().step_budget_seconds == 0
