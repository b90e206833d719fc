"""The names of the metrics that an engine adds.

Part of the contract, which exports them; a file of its own only for its length.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class MetricName(StrEnum):
    """Metrics the engine adds, on the control port's own `/metrics`, with a registry of its own.

    Counters carry `_total` when scraped. Labels are given beside each name; all have `engine` where a core is meant.
    """

    LIMIT = "flyball_limit"
    """gauge; engine, knob: effective live limit."""
    CEILING = "flyball_ceiling"
    """gauge; engine, knob (`max_num_seqs`, `max_num_batched_tokens`, `max_model_len`)."""
    SETPOINT_EPOCH = "flyball_setpoint_epoch"
    """gauge; engine: epoch of the applied setpoint, 0 before the first."""
    SETPOINT_GENERATION = "flyball_setpoint_generation"
    """gauge; engine: generation of the applied setpoint."""
    RETUNES = "flyball_retunes_total"
    """counter; outcome: `applied`, `unchanged`, `expired`, `watchdog`, or a `Refusal`."""
    REQUESTS = "flyball_requests_total"
    """counter; outcome: `finished`, `abandoned` (left when an objective was violated), `aborted` (left before that),
    `refused` (never started), `error`, `uncounted`: see `flyball_engine.batching.outcomes`."""
    CLASS_REQUESTS = "flyball_class_requests_total"
    """counter; class (as configured, or `default`), outcome (as above); absent where there are no classes."""
    ADAPTER_REQUESTS = "flyball_adapter_requests_total"
    """counter; adapter (of the service's list), outcome (as above): requests that reached the engine; absent without
    adapters."""
    ADAPTER_GENERATED_TOKENS = "flyball_adapter_generated_tokens_total"
    """counter; adapter: output tokens of its finished requests."""
    UNKNOWN_CLASS = "flyball_unknown_class_total"
    """counter: requests that named a class that nobody configured, and are of the default one."""
    ADMISSIONS = "flyball_admissions_total"
    """counter; decision (`admitted`, `refused`), reason: what the gate said, see `flyball_engine.batching.gate`."""
    OBJECTIVE_REQUESTS = "flyball_objective_requests_total"
    """counter; objective (id), outcome (`met`, `violated`); for InterTokenLatency of gaps, for others of requests."""
    OPEN_OBJECTIVE_REQUESTS = "flyball_open_objective_requests"
    """gauge; objective (id) of TimeToFirstToken or EndToEndLatency, outcome (`met`, `violated`): open requests behind
    its threshold, of which the outcome is certain before they end and are counted."""
    ALL_OBJECTIVES_REQUESTS = "flyball_all_objectives_requests_total"
    """counter; objectives (ids joined by `,`), outcome: goodput is the rate of `met`."""
    GENERATED_TOKENS = "flyball_generated_tokens_total"
    """counter: output tokens of finished requests."""
    PROMPT_TOKENS = "flyball_prompt_tokens_total"
    """counter: prompt tokens of finished requests."""
    CACHED_PROMPT_TOKENS = "flyball_cached_prompt_tokens_total"
    """counter: prompt tokens of finished requests that the prefix cache held."""
    RUNNING = "flyball_running"
    """gauge; engine: requests that run."""
    WAITING = "flyball_waiting"
    """gauge; engine: requests that wait."""
    KV_CACHE_USAGE = "flyball_kv_cache_usage"
    """gauge; engine: fraction 0…1."""
    KV_CACHE_TOKENS = "flyball_kv_cache_tokens"
    """gauge; engine: tokens the KV cache can hold."""
    RUNNING_KV_TOKENS = "flyball_running_kv_tokens"
    """gauge; engine: tokens in the KV cache that the requests of the newest step hold."""
    STEPS = "flyball_steps_total"
    """counter; engine, bucket, kind: see `StepSums.steps`; the six below likewise."""
    STEP_SECONDS = "flyball_step_seconds_total"
    STEP_SECONDS_SQUARED = "flyball_step_seconds_squared_total"
    STEP_TOKENS = "flyball_step_tokens_total"
    STEP_PREFILL_TOKENS = "flyball_step_prefill_tokens_total"
    STEP_DECODES = "flyball_step_decodes_total"
    STEP_KV_TOKENS = "flyball_step_kv_tokens_total"
    STEP_PREFILL_ATTENTION = "flyball_step_prefill_attention_total"
    TOKENS = "flyball_tokens_total"
    """counter; engine, phase (`prefill`, `decode`): tokens that steps processed. This and what follows, in
    docs/batch-metrics.md; computed by `flyball_engine.batching.batch_metrics`."""
    COMPUTED_PROMPT_TOKENS_SQUARED = "flyball_computed_prompt_tokens_squared_total"
    """counter; engine: Σ U² over prompts, U being the tokens that are computed of one; it grows chunk by chunk. Over
    `flyball_tokens_total{phase="prefill"}`: the U of the prompt that a prefill token is in on average."""
    SLOT_SECONDS = "flyball_slot_seconds_total"
    """counter; engine, state (`used`, `free` under the live limit, `withheld` above it): slots, each for the
    time of the steps."""
    TOKEN_ROOM = "flyball_token_room_total"
    """counter; engine, state (`used`, `free`): tokens that steps with a prompt might have processed."""
    BATCH_SIZE = "flyball_batch_size"
    """histogram over steps; engine: requests in the step."""
    QUEUE_SECONDS = "flyball_queue_seconds_total"
    """counter; engine, outcome (`admitted`, `left`): seconds that requests waited for their first admission."""
    QUEUED_REQUESTS = "flyball_queued_requests_total"
    """counter; engine, outcome: those requests."""
    OLDEST_WAITING_SECONDS = "flyball_oldest_waiting_seconds"
    """gauge; engine: age of the oldest request that was never admitted, as of the last step; 0 if there is none."""
    MOVED_BEHIND = "flyball_moved_behind_total"
    """counter; engine: requests that the on-time order gave up as late once, see `flyball_engine.batching.on_time`."""
    IN_TIME_AFTER_ALL = "flyball_in_time_after_all_total"
    """counter; engine: those of them whose first token came by its deadline."""
    BEHIND = "flyball_behind"
    """gauge; engine: requests that the on-time order serves behind all others now."""
    LONGEST_WAIT_BEHIND_SECONDS = "flyball_longest_wait_behind_seconds"
    """gauge; engine: how long the oldest of those has waited; 0 if there is none."""
    HEADROOM_SECONDS = "flyball_first_token_headroom_seconds"
    """gauge: seconds that a prompt which comes now may take to have its first token in time, behind all that can be on
    time. Of the engine core that has most, as of its last step; absent where nothing is ordered. On vLLM's port, too.
    """
    DRAFT_POSITIONS = "flyball_draft_positions_total"
    """counter; engine, position (from 1), state (`offered`, `drafted`, `accepted`): decodes for which a step might
    draft so many tokens, for which it did, and for which the model took them. Absent without speculation."""
    PREEMPTIONS = "flyball_preemptions_total"
    """counter; engine: requests that lost their KV cache, to be computed anew."""
    COHORTS = "flyball_cohorts_total"
    """counter; engine: batches that were, or would have been, padded; see `flyball_engine.batching.cohorts`."""
    COHORT_REQUESTS = "flyball_cohort_requests_total"
    """counter; engine: their requests."""
    COHORT_TOKENS = "flyball_cohort_tokens_total"
    """counter; engine, phase (`prompt`, `output`): their tokens."""
    COHORT_PADDED_TOKENS = "flyball_cohort_padded_tokens_total"
    """counter; engine, phase: what padded batches of them compute, each as long as its longest."""
    LONGEST_STEP_SECONDS = "flyball_longest_step_seconds"
    """gauge; engine."""
    STEP_BUDGET_SECONDS = "flyball_step_budget_seconds"
    """gauge; engine: time a step may take, 0 where the limits alone hold."""
    LOCAL_BIAS = "flyball_local_bias"
    """gauge; engine: what steps take over what the setpoint's model says, as a moving average in which the newest step
    has weight 0.04; absent before a model came."""
    WATCHDOG_TRIPS = "flyball_watchdog_trips_total"
    """counter; engine."""
    UNSUPPORTED = "flyball_unsupported"
    """gauge = 1; knob, reason."""
    STRATEGY = "flyball_strategy"
    """gauge = 1; engine, strategy, policy: how the core admits requests now."""


#: Sum of the engine's state file that `StepSums` fields come from, in the order they are stored and exported.
STEP_FIELDS: Final[Mapping[str, MetricName]] = {
    "steps": MetricName.STEPS,
    "seconds": MetricName.STEP_SECONDS,
    "seconds_squared": MetricName.STEP_SECONDS_SQUARED,
    "tokens": MetricName.STEP_TOKENS,
    "prefill_tokens": MetricName.STEP_PREFILL_TOKENS,
    "decodes": MetricName.STEP_DECODES,
    "kv_tokens": MetricName.STEP_KV_TOKENS,
    "prefill_attention": MetricName.STEP_PREFILL_ATTENTION,
}
