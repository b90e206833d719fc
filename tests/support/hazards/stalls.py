"""Stalls that no setpoint can bring about, forced behind the floors: how long until the start values are back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flyball_engine.batching.setpoint_enforcer import RequestedLimits
from flyball_engine.batching.strategies import BatchDecision
from flyball_engine.contract import BatchingKnob
from flyball_engine.vllm import admission
from support.hazards.core import Core

#: Seconds of a step, by the scheduler's clock.
STEP = 0.05
#: Steps from one chunk of a prompt to the next: three times the watchdog's patience.
SELDOM = 200


def force(core: Core, change: Callable[[RequestedLimits], RequestedLimits]) -> None:
    """Whatever is to be written, but for the start values, is changed at the last moment."""
    adapter = core.hooks._adapter
    write = adapter.write

    def forced(limits: RequestedLimits, *, step_threshold: int) -> None:
        if limits != adapter.start:
            limits, step_threshold = change(limits), 0
        write(limits, step_threshold=step_threshold)

    adapter.write = forced  # type: ignore[method-assign] # this is what forces


def decodes_that_get_nothing(model: str) -> dict[str, Any]:
    """One token a step for eight decodes."""
    core = Core(model, governed=True)
    core.fill(8, output=400)
    force(core, lambda limits: limits._replace(tokens=1))
    core.retune(max_num_active_seqs=31)
    return _until_restored(core)


def a_prompt_that_gets_nothing(model: str) -> dict[str, Any]:
    """As many tokens a step as there are decodes, and a prompt that has begun."""
    core = Core(model, governed=True)
    core.retune(long_prefill_token_threshold=16)
    core.fill(8, output=400)
    core.add(prompt=900)
    core.step()
    force(core, lambda limits: limits._replace(tokens=8))
    core.retune(max_num_active_seqs=31)
    return _until_restored(core)


def a_queue_that_nobody_serves(model: str) -> dict[str, Any]:
    """Nobody may run."""
    core = Core(model, governed=True)
    force(core, lambda limits: limits._replace(active=0))
    core.retune(max_num_active_seqs=31)
    for _ in range(4):
        core.add(output=400)
    return _until_restored(core)


def a_prompt_too_long_for_a_step(model: str) -> dict[str, Any]:
    """Chunked prefill is off, and the prompt does not fit."""

    def unchunked(config: Any) -> None:
        config.scheduler_config.enable_chunked_prefill = False

    core = Core(model, governed=True, configure=unchunked, max_num_batched_tokens=1024)
    force(core, lambda limits: limits._replace(tokens=100))
    core.retune(max_num_active_seqs=31)
    core.add(prompt=600, output=400)
    return _until_restored(core)


def a_strategy_that_never_lets_go(model: str) -> dict[str, Any]:
    """A batch that is never due, with nobody waiting for a delay."""
    core = Core(model, governed=True)
    if lacking := core.lacking(BatchingKnob.STATIC):
        return lacking
    decide = vars(admission)["decide"]
    vars(admission)["decide"] = lambda *_: BatchDecision(most=0, admit=(), held_until=None)
    try:
        core.retune(batching={"strategy": {"type": "Static", "batch_size": 8}})
        for _ in range(4):
            core.add(output=400)
        return _until_restored(core)
    finally:
        vars(admission)["decide"] = decide


def prompts_that_wait_for_their_step(model: str) -> dict[str, Any]:
    """Beside eight decodes, a prompt gets a chunk in every two hundredth step, as vLLM was configured."""

    def seldom(config: Any) -> None:
        config.scheduler_config.prefill_schedule_interval = SELDOM

    core = Core(model, governed=True, configure=seldom)
    if not hasattr(core.scheduler, "local_prefill_interval"):
        return {"lacking": "this vLLM keeps such a pace among data-parallel ranks alone"}
    core.retune(long_prefill_token_threshold=16)
    core.fill(8)
    request, steps = core.requests[core.add(prompt=40)], 0
    while not request.num_output_tokens:
        core.step(seconds=STEP)
        steps += 1
    return {"steps": steps, "trips": core.report().state.watchdog_trips}


def _until_restored(core: Core) -> dict[str, Any]:
    """Step until the watchdog acts, at most for a minute; then to the end."""
    began, idle = core.now, False
    while not core.report().state.watchdog_trips and core.now < began + 60:
        core.step(seconds=STEP)
        # What a watchdog on an engine that has work and runs nothing would see.
        idle |= not core.scheduler.running
    state, seconds = core.report().state, core.now - began
    core.to_the_end()
    return {
        "trips": state.watchdog_trips,
        "seconds": seconds,
        "idle": idle,
        "restored": state.effective == state.start,
        "left": len(core.scheduler.requests),
    }


STALLS = (
    decodes_that_get_nothing,
    a_prompt_that_gets_nothing,
    a_queue_that_nobody_serves,
    a_prompt_too_long_for_a_step,
    a_strategy_that_never_lets_go,
    prompts_that_wait_for_their_step,
)
