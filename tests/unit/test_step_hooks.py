"""What a governed scheduler does with setpoints, step by step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flyball_engine.contract import Clamp, ClampReason, Generation, Knob
from flyball_engine.control.state_file import StateReader, find_state_files
from flyball_engine.vllm.plugin import governed_class
from flyball_engine.vllm.scheduler_adapter import UngovernableError
from flyball_engine.vllm.step_hooks import StepHooks
from flyball_lab.harness.engine import setpoint
from support.plain_scheduler import GovernedCore, PlainConfig, PlainScheduler


@pytest.fixture
def core(tmp_path: Path) -> GovernedCore:
    return GovernedCore(tmp_path)


def fill(core: GovernedCore, requests: int, *, prompt: int = 8, output: int = 1000) -> None:
    first = len(core.scheduler.requests)
    for number in range(first, first + requests):
        core.scheduler.add(f"r{number}", prompt=prompt, output=output)


def test_before_the_first_setpoint_start_values_hold(core: GovernedCore) -> None:
    state = core.report().state
    assert state.applied is None
    assert state.effective == state.start
    assert state.clamped == ()


def test_a_setpoint_holds_from_the_next_step_on(core: GovernedCore) -> None:
    fill(core, 10)
    core.hooks.apply(setpoint(1, limits={"max_num_active_seqs": 3, "max_num_scheduled_tokens": 20}))
    assert core.report().state.applied == Generation(epoch=1, generation=1)
    assert core.step().total_num_scheduled_tokens == 20
    assert core.report().state.running == 3


def test_lowering_drains_and_never_preempts(core: GovernedCore) -> None:
    fill(core, 12, output=6)
    core.step()
    core.hooks.apply(setpoint(1, limits={"max_num_active_seqs": 2, "max_num_scheduled_tokens": 1}))
    fill(core, 8, output=6)
    seen = []
    while core.scheduler.requests:
        # Everything that runs gets a token in every step, although only 2 may run from now on.
        assert len(core.step().num_scheduled_tokens) >= len(core.scheduler.running)
        seen.append(core.report().state.running)
    assert seen[0] == 12
    assert max(seen[seen.index(2) :]) == 2
    assert not core.scheduler.requests


def test_the_token_limit_follows_the_drain_down(core: GovernedCore) -> None:
    for number in range(12):
        core.scheduler.add(f"r{number}", prompt=4, output=2 + number)
    core.step()
    core.hooks.apply(setpoint(1, limits={"max_num_active_seqs": 2, "max_num_scheduled_tokens": 16}))
    core.hooks.apply(setpoint(2, limits={"max_num_active_seqs": 2, "max_num_scheduled_tokens": 1}))
    limits = []
    while core.scheduler.requests:
        limits.append(core.report().state.effective.max_num_scheduled_tokens)
        core.step()
    assert set(limits) == {16}
    assert core.report().state.clamped[0].reason == "floor"


def test_a_retune_below_the_running_decodes_is_clamped_and_says_so(core: GovernedCore) -> None:
    core.scheduler = PlainScheduler(PlainConfig(max_num_seqs=64, max_num_batched_tokens=512))
    core.__post_init__()
    fill(core, 40)
    core.step()
    core.hooks.apply(setpoint(1, limits={"max_num_active_seqs": 4, "max_num_scheduled_tokens": 5}))
    assert core.report().state.clamped == (
        Clamp(knob=Knob.MAX_NUM_SCHEDULED_TOKENS, requested=5, effective=40, reason="decodes"),
    )


def test_limits_left_out_return_to_their_start_values(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, limits={"max_num_active_seqs": 3}))
    core.hooks.apply(setpoint(2, limits={"max_num_scheduled_tokens": 100}))
    effective = core.report().state.effective
    assert (effective.max_num_active_seqs, effective.max_num_scheduled_tokens) == (16, 100)


def test_an_older_setpoint_changes_nothing(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(5, epoch=2, limits={"max_num_active_seqs": 3}))
    core.hooks.apply(setpoint(9, epoch=1, limits={"max_num_active_seqs": 9}))
    state = core.report().state
    assert state.applied == Generation(epoch=2, generation=5)
    assert state.effective.max_num_active_seqs == 3


def test_a_prefill_before_decodes_does_not_starve_them(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, limits={"long_prefill_token_threshold": 64}))
    core.scheduler.add("long", prompt=3000, output=5)
    fill(core, 8)
    for _ in range(3):
        core.step()
    core.hooks.apply(setpoint(2, limits={"max_num_scheduled_tokens": 24, "long_prefill_token_threshold": 64}))
    for _ in range(10):
        scheduled = core.step().num_scheduled_tokens
        assert scheduled["long"] == 16
        assert len(scheduled) == 9


def test_a_setpoint_that_nobody_renews_expires(core: GovernedCore) -> None:
    wanted = setpoint(1, limits={"max_num_active_seqs": 3}, expires_seconds=60.0)
    core.hooks.apply(wanted)
    core.now += 50
    core.hooks.apply(wanted)
    core.now += 50
    core.hooks.touch()
    assert core.report().state.effective.max_num_active_seqs == 3
    core.now += 11
    core.hooks.touch()
    report = core.report()
    assert (report.state.applied, report.expiries) == (None, 1)
    assert report.state.effective == report.state.start
    core.hooks.apply(wanted)
    assert core.report().state.effective.max_num_active_seqs == 3


def test_the_order_holds_beyond_an_expiry(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(5, expires_seconds=60.0))
    core.now += 61
    core.hooks.touch()
    core.hooks.apply(setpoint(4))
    assert core.report().state.applied is None


def hang(core: GovernedCore) -> None:
    """A hang under a setpoint, of a kind that no floor knows."""
    fill(core, 3)
    core.hooks.apply(setpoint(1, limits={"max_num_active_seqs": 2}))
    core.step()
    core.scheduler.frozen = True
    while core.report().state.watchdog_trips == 0:
        core.step(seconds=1)


def test_a_hang_returns_to_start_values(core: GovernedCore) -> None:
    hang(core)
    state = core.report().state
    assert state.effective == state.start
    assert state.clamped == (Clamp(knob=Knob.MAX_NUM_ACTIVE_SEQS, requested=2, effective=16, reason="watchdog"),)


def test_the_setpoint_that_hung_is_not_taken_up_again(core: GovernedCore) -> None:
    hang(core)
    core.hooks.apply(setpoint(1, limits={"max_num_active_seqs": 2}))
    assert core.report().state.effective == core.report().state.start
    core.hooks.apply(setpoint(2, limits={"max_num_active_seqs": 2}))
    assert core.report().state.effective.max_num_active_seqs == 2


def test_a_hang_at_start_values_is_not_of_our_making(core: GovernedCore) -> None:
    fill(core, 3)
    core.step()
    core.scheduler.frozen = True
    for _ in range(100):
        core.step(seconds=1)
    assert core.report().state.watchdog_trips == 0


def test_a_fault_of_ours_leaves_plain_scheduling(core: GovernedCore, caplog: pytest.LogCaptureFixture) -> None:
    core.hooks.apply(setpoint(1, limits={"max_num_active_seqs": 2}))
    fill(core, 12, output=3)
    core.step()
    core.scheduler.kv_cache_manager = None  # type: ignore[assignment] # as if vLLM had changed under us
    core.step()
    assert "GoverningEnded" in caplog.text
    assert not core.report().governed
    while core.scheduler.requests:
        core.step()
    assert not core.scheduler.requests
    with pytest.raises(RuntimeError, match="no longer governed"):
        core.hooks.apply(setpoint(2))


def test_a_fault_in_what_restores_the_start_values_ends_no_step_either(
    core: GovernedCore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(*_: Any, **__: Any) -> None:
        raise AttributeError("max_num_scheduled_tokens")

    fill(core, 3, output=3)
    monkeypatch.setattr(core.hooks._adapter, "write", unable)
    core.hooks.apply(setpoint(1, limits={"max_num_active_seqs": 2}))
    while core.scheduler.requests:
        core.step()
    assert "StartValuesNotRestored" in caplog.text
    assert not core.report().governed


def test_without_the_admission_gate_the_slot_count_is_a_ratchet(core: GovernedCore) -> None:
    class Older(PlainScheduler):
        """vLLM before 0.31: one limit for slots and admission."""

        def __init__(self) -> None:
            super().__init__()
            del self.__dict__["max_num_active_reqs"]

        def schedule(self) -> Any:
            self.__dict__["max_num_active_reqs"] = self.max_num_running_reqs
            output = super().schedule()
            del self.__dict__["max_num_active_reqs"]
            return output

    core.scheduler = Older()
    core.__post_init__()
    fill(core, 10, output=5)
    core.step()
    core.hooks.apply(setpoint(1, limits={"max_num_active_seqs": 3}))
    fill(core, 10, output=5)
    seen = []
    while core.scheduler.requests:
        core.step()
        seen.append(core.report().state.running)
    assert max(seen) == 10
    assert 3 in seen
    core.hooks.apply(setpoint(2, limits={"max_num_active_seqs": 900}))
    core.step()
    assert core.scheduler.max_num_running_reqs == 16


def test_a_drafter_keeps_the_slots_that_its_engine_left_for_it(tmp_path: Path) -> None:
    scheduler = PlainScheduler(PlainConfig(max_num_seqs=16, max_num_batched_tokens=256))
    # 0.26 with a draft model: one slot for each of 16 requests.
    scheduler.vllm_config = SimpleNamespace(speculative_config=SimpleNamespace(max_num_new_slots_for_drafting=1))
    scheduler.max_num_scheduled_tokens = 240
    core = GovernedCore(tmp_path, scheduler)
    core.hooks.apply(setpoint(1, limits={"max_num_scheduled_tokens": 256}))
    assert scheduler.max_num_scheduled_tokens == 240
    (clamp,) = core.report().state.clamped
    assert (clamp.effective, clamp.reason) == (240, ClampReason.CEILING)


def test_chunked_prefill_off_makes_one_knob_unsupported(tmp_path: Path) -> None:
    scheduler = PlainScheduler(PlainConfig(max_num_batched_tokens=4096, enable_chunked_prefill=False))
    hooks = StepHooks(scheduler, folder=tmp_path)
    reader = StateReader(find_state_files(tmp_path)[0])
    assert reader.unsupported == {
        Knob.LONG_PREFILL_TOKEN_THRESHOLD: "chunked prefill is off",
        Knob.NUM_SPECULATIVE_TOKENS: "the engine was started without speculative decoding",
    }
    hooks.apply(setpoint(1, limits={"max_num_scheduled_tokens": 32}))
    # A prompt of the model's length goes into one step or into none.
    assert scheduler.max_num_scheduled_tokens == 4096


def test_the_external_launcher_is_left_alone(tmp_path: Path) -> None:
    scheduler = PlainScheduler()
    scheduler.parallel_config.distributed_executor_backend = "external_launcher"
    hooks = StepHooks(scheduler, folder=tmp_path)
    hooks.apply(setpoint(1, limits={"max_num_active_seqs": 2, "max_num_scheduled_tokens": 32}))
    assert (scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens) == (16, 256)
    report = StateReader(find_state_files(tmp_path)[0]).read()
    assert report is not None
    assert report.state.effective.given() == {}


def test_a_scheduler_of_another_kind_is_not_governed(tmp_path: Path) -> None:
    with pytest.raises(UngovernableError, match="running, waiting"):
        StepHooks(object(), folder=tmp_path)
    with pytest.raises(TypeError, match="no class"):
        governed_class("a factory")


def test_the_worker_s_configuration_is_never_touched(tmp_path: Path) -> None:
    config = PlainConfig()
    hooks = StepHooks(PlainScheduler(config), folder=tmp_path)
    hooks.apply(setpoint(1, limits={"long_prefill_token_threshold": 64, "max_num_scheduled_tokens": 100}))
    assert config == PlainConfig()


def test_prompts_that_wait_their_turn_are_no_stall(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(1, limits={"long_prefill_token_threshold": 16}))
    for number in range(10):
        core.scheduler.add(f"r{number}", prompt=3000)
    core.step()
    assert len(core.scheduler.running) == 10
    # From now on the first takes each step whole, until it is done.
    core.hooks.apply(setpoint(2, limits={"max_num_active_seqs": 12}))
    while core.scheduler.requests:
        core.step(seconds=3)
    assert core.report().state.watchdog_trips == 0


@pytest.mark.parametrize(
    ("ranks", "interval", "alone", "trips"),
    [(2, 30, None, 0), (2, 1, None, 1), (1, 30, None, 1), (1, 30, 30, 0), (2, 30, 1, 0), (1, 1, 1, 1)],
)
def test_prompts_that_wait_for_their_step_are_no_stall(
    tmp_path: Path, ranks: int, interval: int, alone: int | None, trips: int
) -> None:
    class Deferring(PlainScheduler):
        """Beside decodes, prompts get tokens in each thirtieth step alone."""

        steps = 0

        def schedule(self) -> Any:
            self.steps += 1
            return super().schedule()

        def _serve(self, request: Any, budget: int, scheduled: dict[str, int]) -> int:
            deferred = request.is_prefill_chunk and self.steps % 30 != 0
            return 0 if deferred else super()._serve(request, budget, scheduled)

    scheduler = Deferring()
    scheduler.parallel_config.data_parallel_size = ranks
    setattr(scheduler.scheduler_config, "prefill_schedule_interval", interval)  # noqa: B010 – the plain one has none
    if alone is not None:
        setattr(scheduler, "local_prefill_interval", alone)  # noqa: B010 – since 0.33
    core = GovernedCore(tmp_path, scheduler, watchdog=None)
    core.hooks.apply(setpoint(1, limits={"long_prefill_token_threshold": 16}))
    fill(core, 3)
    core.step()
    core.scheduler.add("long", prompt=40)
    while core.scheduler.requests["long"].num_output_tokens == 0:
        core.step(seconds=0.5)
    assert core.report().state.watchdog_trips == trips


def test_a_prompt_that_nobody_serves_beside_decodes_is_one(core: GovernedCore, monkeypatch: pytest.MonkeyPatch) -> None:
    core.hooks.apply(setpoint(1, limits={"long_prefill_token_threshold": 16}))
    fill(core, 3)
    core.step()
    core.scheduler.add("long", prompt=3000)
    core.step()
    write = core.hooks._adapter.write
    monkeypatch.setattr(
        core.hooks._adapter,
        "write",
        lambda limits, step_threshold: write(limits._replace(tokens=3), step_threshold=0),
    )
    core.hooks.apply(setpoint(2, limits={"max_num_active_seqs": 12}))
    for _ in range(30):
        assert "long" not in core.step(seconds=1).num_scheduled_tokens
    assert core.report().state.watchdog_trips >= 1


@pytest.mark.parametrize(("connector", "trips"), [(None, 1), (SimpleNamespace(), 0)])
def test_an_engine_that_waits_for_the_caches_of_others_has_more_patience(
    tmp_path: Path, connector: SimpleNamespace | None, trips: int
) -> None:
    scheduler = PlainScheduler()
    setattr(scheduler, "connector", connector)  # noqa: B010 – vLLM's has it, the plain one need not
    core = GovernedCore(tmp_path, scheduler, watchdog=None)
    core.hooks.apply(setpoint(1, limits={"max_num_active_seqs": 3}))
    core.add("r0", prompt=8, output=1000)
    core.step()
    scheduler.frozen = True
    for _ in range(50):
        core.step()
    assert core.report().state.watchdog_trips == trips
