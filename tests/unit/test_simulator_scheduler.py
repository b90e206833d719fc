"""The simulated core schedules as vLLM's V1 does, under the plugin's limits."""

from __future__ import annotations

import pytest

from flyball_engine.batching.batch_metrics import batch_counts
from flyball_engine.batching.setpoint_enforcer import RunningBatch
from flyball_engine.batching.step_statistics import step_sums
from flyball_engine.contract import Knob, Metric, ObjectiveSpec, SchedulingPolicy, StepBudget
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.core_config import Speculation
from flyball_lab.simulator.requests import Fate, Request
from support.simulated import a_budget, a_core, a_request, a_setpoint, submitted

LATER = 1e6


def finished(core: Core, *requests: Request) -> list[Request]:
    """All are submitted and served to their end."""
    found = submitted(core, *requests)
    core.run(core.now + LATER)
    assert all(request.fate is Fate.FINISHED for request in found)
    return found


def active_limit(core: Core) -> int:
    return core.governed.limits(RunningBatch(decodes=0), core.scheduler.queue).active


def firsts(requests: list[Request]) -> list[float]:
    return [request.first_token or 0.0 for request in requests]


def test_a_request_alone_prefills_in_steps_of_the_token_limit_and_then_decodes() -> None:
    core = a_core(tokens=128)
    finished(core, a_request(300, 5))
    sums = {(one.bucket, one.kind.value): one for one in step_sums(core.statistics.sums)}
    assert sums[128, "mixed"].steps == 2
    assert sums[64, "mixed"].prefill_tokens == 300 - 256
    assert sums[1, "decode"].steps == 4
    assert sums[1, "decode"].kv_tokens == 301 + 302 + 303 + 304
    assert sums[128, "mixed"].prefill_attention == 128 * 64 + 128 * (128 + 64)


def test_first_come_is_first_served_and_later_prompts_take_what_is_left_of_a_step() -> None:
    first, second, third = finished(a_core(tokens=128), a_request(100), a_request(100), a_request(100))
    assert first.first_token is not None
    assert firsts([first, second, third]) == sorted(firsts([first, second, third]))
    assert len(set(firsts([first, second, third]))) == 3


def test_by_priority_the_most_urgent_waiting_one_is_next() -> None:
    core = a_core(seqs=1, policy=SchedulingPolicy.PRIORITY)
    running, late, urgent = finished(core, a_request(), a_request(priority=5), a_request(priority=1))
    assert firsts([running, urgent, late]) == sorted(firsts([running, late, urgent]))


def test_a_lower_active_limit_lets_the_running_ones_drain() -> None:
    core = a_core(seqs=8)
    submitted(core, *(a_request(16, 200) for _ in range(6)), *(a_request(16, 50) for _ in range(4)))
    core.run(0.5)
    assert len(core.scheduler.running) == 8
    core.apply(a_setpoint(active=2))
    core.run(2.0)
    assert core.scheduler.preemptions == 0
    assert len(core.scheduler.running) == 6, "two ended, none was admitted"
    core.run(LATER)
    assert core.ledger.collect().requests["finished"] == 10


def test_a_token_limit_below_the_running_decodes_is_lifted_to_them() -> None:
    core = a_core(seqs=32)
    submitted(core, *(a_request(16, 400) for _ in range(32)))
    core.run(1.0)
    core.apply(a_setpoint(active=2, tokens=4))
    core.run(1.5)
    asked, live, reason = core.governed.shown(core.scheduler.batch())[Knob.MAX_NUM_SCHEDULED_TOKENS]
    assert (asked, live, reason) == (4, 32, "decodes")


def test_prompts_that_began_before_decodes_leave_each_its_token() -> None:
    core = a_core(seqs=8, tokens=128)
    core.apply(a_setpoint(1, tokens=64, threshold=32))
    submitted(core, a_request(4000, 4), *(a_request(8, 300) for _ in range(4)))
    core.run(0.4)
    core.apply(a_setpoint(2, tokens=64, threshold=0))
    assert core.scheduler.batch().decodes == 4
    steps = core.scheduler.steps
    made = [request.made_at(steps) for request in core.scheduler.running]
    core.run(0.9)
    passed = core.scheduler.steps - steps
    assert passed > 3
    grown = [request.made_at(core.scheduler.steps) for request in core.scheduler.running]
    assert grown[1:] == [before + passed for before in made[1:]]


def test_one_request_alone_has_no_threshold() -> None:
    core = a_core(tokens=128)
    core.apply(a_setpoint(threshold=16))
    finished(core, a_request(128, 1))
    assert core.scheduler.steps == 1


def test_when_blocks_run_out_the_youngest_waits_again_and_computes_anew() -> None:
    core = a_core(seqs=4, kv_tokens=1024, model_len=1024)
    old, young = finished(core, a_request(400, 300), a_request(400, 300))
    assert (old.preemptions, young.preemptions) == (0, 1)
    assert core.ledger.collect().generated_tokens == 600
    assert young.ended > old.ended


def test_under_priority_the_least_urgent_one_gives_way() -> None:
    core = a_core(seqs=4, kv_tokens=1024, model_len=1024, policy=SchedulingPolicy.PRIORITY)
    late, urgent = finished(core, a_request(400, 300, priority=2), a_request(400, 300, priority=1))
    assert (late.preemptions, urgent.preemptions) == (1, 0)


def test_a_prompt_waits_until_all_of_it_has_room() -> None:
    core = a_core(seqs=4, kv_tokens=1024, model_len=1024)
    first, second = submitted(core, a_request(900, 50), a_request(200, 10))
    core.run(0.5)
    assert first.running
    assert not second.running
    core.run(LATER)
    assert second.fate is Fate.FINISHED
    assert core.scheduler.preemptions == 0


def test_a_shared_prefix_is_computed_once_and_held_once() -> None:
    core = a_core(seqs=4, tokens=128)
    first, second = finished(core, a_request(500, 4, shared=480), a_request(500, 4, at=10.0, shared=480))
    assert (first.cached, second.cached) == (0, 480)
    assert second.first_token is not None
    assert first.first_token is not None
    assert second.first_token - second.arrival < (first.first_token - first.arrival) / 3
    counts = core.ledger.collect()
    assert (counts.prompt_tokens, counts.cached_prompt_tokens) == (1000, 480)


def test_an_unused_prefix_gives_way_when_its_blocks_are_needed() -> None:
    core = a_core(seqs=1, kv_tokens=1024, model_len=1024)
    finished(core, a_request(500, 4, shared=480))
    assert core.scheduler.prefixes.spare == 30
    finished(core, a_request(900, 20, at=core.now))
    assert core.scheduler.prefixes.spare < 30
    (again,) = finished(core, a_request(500, 4, at=core.now, shared=480))
    assert again.cached == 0


def test_accepted_drafts_shorten_an_answer() -> None:
    speculation = Speculation(drafts=3, acceptance=0.7)
    (plain,) = finished(a_core(), a_request(16, 1000))
    core = a_core(speculation=speculation)
    (drafted,) = finished(core, a_request(16, 1000))
    per_step = 1 + 0.7 + 0.7**2 + 0.7**3
    assert core.scheduler.steps == pytest.approx(1000 / per_step, rel=0.06)
    assert drafted.made == plain.made == 1000
    assert drafted.ended < plain.ended / 2


def test_drafts_refused_without_exception_change_nothing_but_the_cost() -> None:
    core = a_core(speculation=Speculation(drafts=3, acceptance=0.0))
    finished(core, a_request(16, 50))
    assert core.scheduler.steps == 50


def test_a_step_in_flight_is_waited_for() -> None:
    core = a_core()
    submitted(core, a_request(100, 400))
    core.run(0.105)
    core.apply(a_setpoint(active=3))
    assert core.governed.applied is None, "the engine hears of it between two steps"
    core.run(core.next_change)
    assert core.governed.applied is not None


def test_a_setpoint_expires_and_the_start_values_return() -> None:
    core = a_core()
    core.apply(a_setpoint(active=2, expires=60.0))
    assert active_limit(core) == 2
    core.run(61.0)
    assert core.governed.applied is None
    assert core.governed.expiries == 1
    assert active_limit(core) == 8


def longest_step(budget: StepBudget | None, *, slow_down: float = 1.0) -> float:
    """Of streams beside which long prompts come in, on a plant that is as slow as said."""
    core = a_core(seqs=16, tokens=2048)
    core.plant.slow_down = slow_down
    core.apply(a_setpoint(1, step=budget))
    submitted(core, *(a_request(16, 400) for _ in range(8)))
    core.run(1.0)
    core.apply(a_setpoint(2, step=budget))
    core.apply(a_setpoint(3, step=budget))
    submitted(core, *(a_request(3000, 4, at=1.0 + 0.1 * number) for number in range(4)))
    core.run(40.0)
    return core.statistics.longest_seconds


def test_a_step_budget_bounds_every_step() -> None:
    assert longest_step(None) > 1.0
    assert longest_step(a_budget(0.1)) == pytest.approx(0.1, rel=0.05)


def test_what_the_model_does_not_know_is_learnt_as_local_bias() -> None:
    core = a_core()
    core.plant.slow_down = 1.5
    core.apply(a_setpoint(step=a_budget(0.1)))
    finished(core, a_request(100, 1000))
    assert core.governed.budgeter.bias == pytest.approx(1.5, rel=0.15)
    assert longest_step(a_budget(0.1), slow_down=1.5) == pytest.approx(0.1, rel=0.15)


def test_an_older_setpoint_changes_nothing() -> None:
    core = a_core()
    core.apply(a_setpoint(2, active=2))
    core.apply(a_setpoint(1, active=5))
    assert active_limit(core) == 2


@pytest.mark.parametrize("kv_tokens", [4095, 16])
def test_a_cache_that_cannot_hold_one_request_is_refused(kv_tokens: int) -> None:
    with pytest.raises(ValueError, match="cannot hold one request of 4096"):
        a_core(kv_tokens=kv_tokens)


def test_steps_too_small_for_a_full_batch_of_drafts_are_refused() -> None:
    with pytest.raises(ValueError, match="with their drafts"):
        a_core(seqs=64, tokens=128, speculation=Speculation(drafts=3, acceptance=0.5))


def test_objectives_are_counted_as_the_real_engine_counts_them() -> None:
    core = a_core()
    step = ObjectiveSpec(metric=Metric.INTER_TOKEN_LATENCY, threshold_seconds=0.0105)
    first = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=1.0)
    core.follow(a_setpoint(objectives=(step, first)))
    finished(core, a_request(100, 1000))
    counts = core.ledger.collect()
    assert counts.objectives[first.id, "met"] == 1
    gaps = counts.objectives[step.id, "met"], counts.objectives[step.id, "violated"]
    assert sum(gaps) == 999
    assert gaps[0] == pytest.approx(300, abs=1), "0.4 ms of context fit: 400 tokens, of which 100 were the prompt"
    assert counts.requests["finished"] == 1


def test_batches_are_counted_with_those_that_prefill() -> None:
    core = a_core(seqs=4, tokens=128)
    first, second = submitted(core, a_request(300, 20), a_request(64, 6))
    core.run(60.0)
    counts = batch_counts(core.batches.sums)
    # 128 of the first; 128 of it; 44 of it and the second; the second's 5 decodes; and the first's other 14.
    seconds = [sums.seconds for sums in step_sums(core.statistics.sums)]
    assert counts.slots_used == pytest.approx(first.ended + second.ended - counts.admitted_seconds)
    assert counts.slots_used + counts.slots_free == pytest.approx(4 * sum(seconds))
    assert counts.step_requests == 1 + 1 + 2 + 5 * 2 + 14
    assert (counts.room_used, counts.room_free) == (364, 20)
    assert (counts.prefill_tokens, counts.decode_tokens) == (364, 24)
    assert (counts.cohorts, counts.cohort_outputs_padded, counts.cohort_prompts_padded) == (2, 26, 364)


def test_what_the_prefix_cache_has_of_a_prompt_is_not_among_what_is_computed_of_it() -> None:
    core = a_core(tokens=128)
    finished(core, a_request(400, shared=320))
    finished(core, a_request(500, shared=320))
    assert batch_counts(core.batches.sums).prefill_squares == 400**2 + (500 - 320) ** 2
