"""What a governed scheduler counts of its batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball_engine.batching.batch_metrics import BatchCounts
from flyball_engine.contract import Batching
from flyball_engine.knobs import Static
from flyball_lab.harness.engine import setpoint
from support.plain_scheduler import GovernedCore, PlainConfig, PlainScheduler


@pytest.fixture
def core(tmp_path: Path) -> GovernedCore:
    return GovernedCore(tmp_path, PlainScheduler(PlainConfig(max_num_seqs=4, max_num_batched_tokens=256)))


def counts(core: GovernedCore) -> BatchCounts:
    core.hooks.touch()
    return core.report().batches


def run_out(core: GovernedCore) -> None:
    """Until nothing is left, and the step behind, which hears of the last end."""
    for _ in range(100):
        if not core.scheduler.requests:
            break
        core.step()
    core.step()
    assert core.hooks._open == {}


def test_a_static_batch_is_a_cohort_though_it_joins_over_several_steps(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, batching=Batching(strategy=Static(batch_size=3))))
    for output in (2, 4, 6, 5):
        core.add(f"r{output}", prompt=200 + 10 * output, output=output)
    run_out(core)
    counted = counts(core)
    assert (counted.cohorts, counted.cohort_requests) == (2, 4)
    assert (counted.cohort_outputs, counted.cohort_outputs_padded) == (17, 3 * 6 + 5)
    assert (counted.cohort_prompts, counted.cohort_prompts_padded) == (970, 3 * 260 + 250)


def test_continuously_the_next_ones_fill_the_cohort_that_began(core: GovernedCore) -> None:
    for output in (2, 4, 6, 5, 3):
        core.add(f"r{output}", prompt=10, output=output)
    run_out(core)
    # Four join at once; the fifth comes for the first that ended, and three would have been with it.
    counted = counts(core)
    assert (counted.cohorts, counted.cohort_requests) == (2, 5)
    assert counted.cohort_outputs_padded == 4 * 6 + 3


def test_slots_above_the_limit_are_withheld(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, limits={"max_num_active_seqs": 3}))
    core.add("a", prompt=10, output=2)
    core.step(seconds=1.0)
    counted = counts(core)
    assert (counted.slots_used, counted.slots_free, counted.slots_withheld) == (1.0, 2.0, 1.0)


def test_the_room_of_a_step_is_that_of_its_limit(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, limits={"max_num_scheduled_tokens": 100}))
    core.add("a", prompt=60, output=3)
    core.step()
    core.step()
    counted = counts(core)
    assert (counted.room_used, counted.room_free) == (60, 40)


def test_whoever_leaves_the_queue_waited_in_vain(core: GovernedCore) -> None:
    for number in range(5):
        core.add(f"r{number}", prompt=10, output=9)
    core.step(seconds=1.0)
    core.now += 2
    core.hooks.touch()
    assert core.report().oldest_waiting_seconds == pytest.approx(3.0)
    core.scheduler.finish_requests("r4", "r0")
    core.step()
    counted = counts(core)
    assert (counted.admitted, counted.left, counted.left_seconds) == (4, 1, 3.0)
    assert core.report().oldest_waiting_seconds == 0.0


def test_a_sessions_next_input_is_no_new_request(core: GovernedCore) -> None:
    core.add("a", prompt=10, output=3)
    core.step()
    core.hooks.received(core.scheduler.requests["a"])
    core.now += 5
    core.hooks.touch()
    assert core.report().oldest_waiting_seconds == 0.0
    run_out(core)
    counted = counts(core)
    assert (counted.admitted, counted.cohort_requests, counted.cohort_outputs) == (1, 1, 3)


def test_a_preempted_request_is_counted_and_joins_again_unseen(core: GovernedCore) -> None:
    for name in "ab":
        core.add(name, prompt=10, output=5)
    core.step()
    core.hooks.before_schedule()
    victim = core.scheduler.running.pop()
    output = core.scheduler.schedule()
    core.hooks.after_schedule(output)
    core.scheduler.update_from_output(output)
    core.hooks.after_update(output)
    core.scheduler.waiting.append(victim)
    run_out(core)
    counted = counts(core)
    assert (counted.preemptions, counted.admitted, counted.cohort_requests) == (1, 2, 2)


def test_what_is_found_cached_of_a_prompt_is_not_squared(core: GovernedCore) -> None:
    """A prompt of 700 tokens, of which 300 were in the cache, beside one of 40; a step has 256."""
    core.add("long", prompt=700, output=3)
    core.scheduler.requests["long"].num_computed_tokens = 300
    core.step()
    core.add("short", prompt=40, output=3)
    run_out(core)
    counted = counts(core)
    assert (counted.prefill_tokens, counted.prefill_squares) == (440, 400**2 + 40**2)


def test_after_a_preemption_what_is_found_then_counts(core: GovernedCore) -> None:
    core.add("a", prompt=500, output=2)
    core.scheduler.requests["a"].num_computed_tokens = 100
    core.step()
    core.scheduler.preempt("a")
    core.scheduler.requests["a"].num_computed_tokens = 200
    run_out(core)
    assert counts(core).prefill_squares == 256**2 + 300**2


def test_of_requests_that_ended_nothing_is_remembered(core: GovernedCore) -> None:
    for number in range(4):
        core.add(f"r{number}", prompt=300, output=2)
    core.step()
    assert len(core.hooks.found) > 0
    run_out(core)
    assert len(core.hooks.found) == 0
