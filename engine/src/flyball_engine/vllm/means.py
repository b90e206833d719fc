"""By what means vLLM's limits are moved and setpoints reach its engine cores, and what a version does not let us do.

The names are those of the list in `compat.py`. Pure.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from flyball_engine.contract import AnyKnob, Knob, QueueKnob
from flyball_engine.vllm.compat import Has


class Means(StrEnum):
    """How a limit is moved."""

    ADMISSION_LIMIT = "Scheduler.max_num_active_reqs"
    """vLLM's own limit of admission: it stops there, and what runs drains."""
    SLOTS = "Scheduler.max_num_running_reqs, before each step: never below what runs"
    """vLLM admits up to its slots and asserts them at the end of a step: lowered only as far as what runs."""
    STEP_TOKENS = "Scheduler.max_num_scheduled_tokens"
    """vLLM reads it at the top of each step."""
    DRAFTS = "Scheduler.dynamic_sd_lookup"
    """vLLM looks it up at each step, by the size of the batch; there only where the engine drafts by that."""
    CONFIGURATION = "SchedulerConfig.long_prefill_token_threshold, in a copy of the scheduler's own"
    """vLLM reads it for each prompt; workers read the shared configuration, which stays as it is."""


class Way(StrEnum):
    """How a setpoint gets from the API server to the engine cores."""

    TOGETHER = "AsyncMPClient.call_utility_all_async"
    """vLLM calls all of them and waits for all answers."""
    ONE_BY_ONE = "AsyncMPClient._call_utility_async, once for each of core_engines"
    """We call each of them and wait for all answers."""


#: How the limits of the queue are moved: vLLM reads them at each request.
QUEUE_MEANS: Final = "AsyncLLM.scheduler_config, in a copy of the API server's own"


class Lack(StrEnum):
    """What a version of vLLM does not let us do."""

    NO_THRESHOLD = "this vLLM has no long-prefill threshold"
    """Its scheduler splits prompts by the step's tokens alone."""
    NO_DRAFTS = "this vLLM drafts as deep as it was started for"
    """Its depth is looked up nowhere."""
    NO_QUEUE_LIMITS = "this vLLM has no such limit of its queue"
    """Its API server takes whatever comes."""
    NO_WAY_TO_CORES = "this vLLM's AsyncMPClient has no call to engine cores by name"
    """No setpoint can reach them."""


def means(scheduler: Has, config: Has) -> dict[Knob, Means | Lack]:
    """How each limit is moved on a scheduler that has what is needed, or why it cannot be."""
    return {
        Knob.MAX_NUM_ACTIVE_SEQS: Means.ADMISSION_LIMIT if scheduler("max_num_active_reqs") else Means.SLOTS,
        Knob.MAX_NUM_SCHEDULED_TOKENS: Means.STEP_TOKENS,
        Knob.LONG_PREFILL_TOKEN_THRESHOLD: (
            Means.CONFIGURATION if config("long_prefill_token_threshold") else Lack.NO_THRESHOLD
        ),
        Knob.NUM_SPECULATIVE_TOKENS: Means.DRAFTS if scheduler("dynamic_sd_lookup") else Lack.NO_DRAFTS,
    }


def queue_lacks(client: Has, config: Has) -> dict[AnyKnob, str]:
    """The limits of the queue that cannot be moved, and why."""
    asked = client("check_admission") and client("scheduler_config")
    return {knob: Lack.NO_QUEUE_LIMITS.value for knob in QueueKnob if not (asked and config(knob.name.lower()))}


def way(client: Has) -> Way | Lack:
    """How setpoints reach the engine cores, or why they cannot."""
    if client("call_utility_all_async"):
        return Way.TOGETHER
    if client("_call_utility_async") and client("core_engines"):
        return Way.ONE_BY_ONE
    return Lack.NO_WAY_TO_CORES
