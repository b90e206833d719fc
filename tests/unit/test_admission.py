"""Strategies on a governed scheduler: who joins in each step, what the read-back says, and what the watchdog thinks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flyball_engine.batching.strategies import BatchDecision
from flyball_engine.contract import Batching, BatchingKnob, Knob, SchedulingPolicy, StrategyType
from flyball_engine.control.state_file import StateReader, find_state_files
from flyball_engine.knobs import Bucketed, Dynamic, NoEvict, Static, Strategy
from flyball_engine.vllm import admission
from flyball_engine.vllm.step_hooks import StepHooks
from flyball_lab.harness.engine import setpoint
from support.plain_scheduler import GovernedCore, PlainScheduler, transferring


@pytest.fixture
def core(tmp_path: Path) -> GovernedCore:
    return GovernedCore(tmp_path)


def use(core: GovernedCore, strategy: Strategy | None = None, *, number: int = 1, **batching: Any) -> None:
    given: dict[str, Any] = {} if strategy is None else {"strategy": strategy}
    core.hooks.apply(setpoint(number, batching=Batching(**given, **batching)))


def fill(core: GovernedCore, *prompts: int, output: int = 3) -> None:
    for prompt in prompts:
        core.add(f"r{len(core.scheduler.requests)}-{prompt}", prompt=prompt, output=output)


def joins(core: GovernedCore, *, seconds: float = 0.1) -> list[str]:
    before = {request.request_id for request in core.scheduler.running}
    scheduled = core.step(seconds=seconds).num_scheduled_tokens
    return [name for name in scheduled if name not in before]


def test_the_strategy_in_force_is_read_back(core: GovernedCore) -> None:
    assert core.report().state.strategy is StrategyType.CONTINUOUS
    use(core, Static(batch_size=2), policy=SchedulingPolicy.PRIORITY)
    state = core.report().state
    assert (state.strategy, state.policy) == (StrategyType.STATIC, SchedulingPolicy.PRIORITY)
    use(core, number=2)
    state = core.report().state
    assert (state.strategy, state.policy) == (StrategyType.CONTINUOUS, SchedulingPolicy.FCFS)


def test_a_static_batch_shuts_the_gate_behind_it(core: GovernedCore) -> None:
    use(core, Static(batch_size=2))
    fill(core, 8, 9, 10)
    assert joins(core) == ["r0-8", "r1-9"]
    assert core.scheduler.max_num_active_reqs == 2
    assert core.report().state.effective.max_num_active_seqs == 16
    assert joins(core) == []
    assert joins(core) == []
    assert joins(core) == ["r2-10"]


def test_a_switch_back_opens_the_gate_at_once(core: GovernedCore) -> None:
    use(core, Static(batch_size=1))
    fill(core, 8, 9, 10)
    core.step()
    use(core, number=2)
    assert core.scheduler.max_num_active_reqs == 16
    assert joins(core) == ["r1-9", "r2-10"]


def test_a_bucket_is_brought_to_the_front(core: GovernedCore) -> None:
    use(core, Bucketed(batch_size=8, boundaries=(20,)))
    fill(core, 8, 100, 9, 101)
    assert joins(core) == ["r0-8", "r2-9"]
    assert [request.num_prompt_tokens for request in core.scheduler.waiting] == [100, 101]


def test_time_in_the_queue_counts_while_another_batch_runs(core: GovernedCore) -> None:
    use(core, Dynamic(batch_size=2, max_delay_seconds=1.0))
    fill(core, 8, 9, output=2)
    core.step()
    core.add("late", prompt=10)
    core.step(seconds=2)
    assert joins(core) == ["late"]


def test_a_batch_that_gathers_is_no_stall(core: GovernedCore) -> None:
    use(core, Dynamic(batch_size=8, max_delay_seconds=60.0))
    fill(core, 8)
    for _ in range(59):
        assert joins(core, seconds=1) == []
    assert core.report().state.watchdog_trips == 0
    core.step(seconds=1)
    assert joins(core) == ["r0-8"]


def test_a_session_with_new_input_goes_on_behind_a_shut_gate(core: GovernedCore) -> None:
    use(core, Static(batch_size=1))
    fill(core, 8, 9)
    core.step()
    session = core.scheduler.waiting.pop()
    core.scheduler.kv_holding_waiting.append(session)
    core.scheduler.deferred_waiting.add(session)
    session.ready = False
    core.hooks.before_schedule()
    assert core.scheduler.max_num_active_reqs == 1
    session.ready = True
    core.hooks.before_schedule()
    assert core.scheduler.max_num_active_reqs == 2


def test_a_request_that_cannot_start_is_not_counted(core: GovernedCore) -> None:
    use(core, Dynamic(batch_size=2, max_delay_seconds=30.0))
    fill(core, 8, 9)
    waits = core.scheduler.waiting[1]
    waits.ready = False
    core.scheduler.deferred_waiting.add(waits)
    assert joins(core) == []
    waits.ready = True
    assert joins(core) == ["r0-8", "r1-9"]


def test_what_was_preempted_is_not_let_in_while_a_token_of_it_is_in_flight(core: GovernedCore) -> None:
    use(core, Static(batch_size=1))
    fill(core, 8, 9)
    preempted = core.scheduler.waiting[0]
    preempted.num_preemptions, preempted.num_stale_output_tokens = 1, 1
    core.hooks.before_schedule()
    assert core.scheduler.max_num_active_reqs == 0
    preempted.num_stale_output_tokens = 0
    assert joins(core) == ["r0-8"]


def test_a_strategy_that_would_hold_for_ever_trips_the_watchdog(
    core: GovernedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> BatchDecision:
        return BatchDecision(most=0, admit=(), held_until=110.0)

    monkeypatch.setattr(admission, "decide", never)
    use(core, Static(batch_size=8))
    fill(core, 8)
    for _ in range(25):
        assert joins(core, seconds=1) == []
    assert core.report().state.watchdog_trips == 0
    for _ in range(12):
        core.step(seconds=1)
    state = core.report().state
    assert (state.watchdog_trips, state.strategy) == (1, StrategyType.CONTINUOUS)
    assert not core.scheduler.requests


def test_an_expired_setpoint_takes_its_strategy_along(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, batching=Batching(strategy=Static(batch_size=1)), expires_seconds=60.0))
    fill(core, 8, 9)
    core.step()
    core.now += 61
    assert joins(core) == ["r1-9"]
    assert core.report().state.strategy is StrategyType.CONTINUOUS


def test_a_fault_in_a_strategy_leaves_plain_scheduling(core: GovernedCore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> BatchDecision:
        raise ZeroDivisionError

    use(core, Static(batch_size=1))
    monkeypatch.setattr(admission, "decide", fails)
    fill(core, 8, 9, 10)
    assert len(joins(core)) == 3
    report = core.report()
    assert (report.governed, report.state.strategy) == (False, StrategyType.CONTINUOUS)


def test_no_evict_learns_from_requests_that_named_no_end(core: GovernedCore) -> None:
    # 10 000 tokens of cache, 4 096 the longest request: the third could overflow it.
    use(core, no_evict=NoEvict(quantile=1.0))
    for number in range(4):
        core.add(f"r{number}", prompt=96, output=5, most=4000)
    assert len(joins(core)) == 2
    while core.scheduler.requests:
        core.step()
    for number in range(4, 9):
        core.add(f"r{number}", prompt=8, output=5, most=4088)
    assert len(joins(core)) == 5


def test_a_prefill_limit_holds_back_prompts(core: GovernedCore) -> None:
    use(core, max_concurrent_prefills=1)
    fill(core, 300, 300, 8)
    assert joins(core) == ["r0-300"]
    assert joins(core) == []
    assert joins(core) == ["r1-300"]


@pytest.mark.parametrize("attribute", ["connector", "lora_config"])
def test_where_vllm_passes_over_requests_of_its_own_choice_no_order_is_promised(tmp_path: Path, attribute: str) -> None:
    scheduler = PlainScheduler()
    setattr(scheduler, attribute, SimpleNamespace())
    if attribute == "connector":
        scheduler.vllm_config = transferring("LMCacheConnectorV1", consumer=True)
    hooks = StepHooks(scheduler, folder=tmp_path)
    unsupported = StateReader(find_state_files(tmp_path)[0]).unsupported
    assert BatchingKnob.STATIC in unsupported
    assert BatchingKnob.NO_EVICT in unsupported
    assert BatchingKnob.MAX_CONCURRENT_PREFILLS not in unsupported
    assert BatchingKnob.POLICY not in unsupported
    # What the API server refuses does nothing if it reaches a core all the same.
    hooks.apply(setpoint(1, batching=Batching(strategy=Static(batch_size=1))))
    hooks.before_schedule()
    assert scheduler.max_num_active_reqs == 16


def test_where_no_prompt_is_loaded_requests_are_chosen_but_memory_is_not_promised(tmp_path: Path) -> None:
    scheduler = PlainScheduler()
    vars(scheduler)["connector"] = SimpleNamespace()
    scheduler.vllm_config = transferring(consumer=False)
    StepHooks(scheduler, folder=tmp_path)
    unsupported = StateReader(find_state_files(tmp_path)[0]).unsupported
    assert unsupported.keys() & set(BatchingKnob) == {BatchingKnob.NO_EVICT}
    assert "until another engine has read them" in unsupported[BatchingKnob.NO_EVICT]


def test_an_older_scheduler_names_what_it_has_not(tmp_path: Path) -> None:
    scheduler = PlainScheduler()
    del scheduler.kv_holding_waiting
    StepHooks(scheduler, folder=tmp_path)
    unsupported = StateReader(find_state_files(tmp_path)[0]).unsupported
    assert unsupported[BatchingKnob.POLICY] == "this vLLM's scheduler has no kv_holding_waiting"
    assert BatchingKnob.MAX_CONCURRENT_PREFILLS not in unsupported


def with_drafts(*, by_batch: list[int] | None, ranks: int = 1) -> PlainScheduler:
    scheduler: Any = PlainScheduler()
    scheduler.num_spec_tokens = 4
    scheduler.dynamic_sd_lookup = by_batch
    scheduler.parallel_config.data_parallel_size = ranks
    plain: PlainScheduler = scheduler
    return plain


@pytest.mark.parametrize(
    ("wanted", "by_batch", "effective", "reason"),
    [
        (4, [0, 4, 4, 2, 0], 4, None),
        (2, [0, 2, 2, 2, 0], 2, None),
        (3, [0, 2, 2, 2, 0], 2, "schedule"),
        (0, [0, 0, 0, 0, 0], 0, None),
        (9, [0, 4, 4, 2, 0], 4, "ceiling"),
    ],
)
def test_the_speculative_depth_stays_among_those_it_was_started_with(
    tmp_path: Path, wanted: int, by_batch: list[int], effective: int, reason: str | None
) -> None:
    scheduler: Any = with_drafts(by_batch=[0, 4, 4, 2, 0])
    hooks = StepHooks(scheduler, folder=tmp_path)
    hooks.apply(setpoint(1, limits={"num_speculative_tokens": wanted}))
    assert scheduler.dynamic_sd_lookup == by_batch
    report = StateReader(find_state_files(tmp_path)[0]).read()
    assert report is not None
    assert report.state.effective.num_speculative_tokens == effective
    assert [clamp.reason for clamp in report.state.clamped] == ([reason] if reason else [])
    hooks.apply(setpoint(2))
    assert scheduler.dynamic_sd_lookup == [0, 4, 4, 2, 0]


@pytest.mark.parametrize(
    ("scheduler", "reason"),
    [
        (PlainScheduler(), "without speculative decoding"),
        (with_drafts(by_batch=None), "without num_speculative_tokens_per_batch_size"),
        (with_drafts(by_batch=[0, 4, 2], ranks=2), "data-parallel ranks"),
    ],
)
def test_where_the_depth_cannot_be_moved_it_says_why(tmp_path: Path, scheduler: PlainScheduler, reason: str) -> None:
    StepHooks(scheduler, folder=tmp_path)
    unsupported = StateReader(find_state_files(tmp_path)[0]).unsupported
    assert reason in unsupported[Knob.NUM_SPECULATIVE_TOKENS]
