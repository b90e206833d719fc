"""What Flyball uses of vLLM's private classes, name by name, and what follows from what is absent. Pure.

vLLM says that its scheduler interface may change. So everything that is read, written, called or wrapped stands here:
the checks at start and the probe (`probe.py`, docs/versions.md) go by this list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

#: Whether something has an attribute of this name.
Has = Callable[[str], bool]


@dataclass(frozen=True, kw_only=True)
class Used:
    """A class or module of vLLM's: names we cannot do without, and those we can, each with what happens without it."""

    module: str
    name: str
    needed: tuple[str, ...] = ()
    optional: Mapping[str, str] = field(default_factory=dict)


SCHEDULER: Final = Used(
    module="vllm.v1.core.sched.scheduler",
    name="Scheduler",
    needed=(
        "running",
        "waiting",
        "requests",
        "scheduler_config",
        "vllm_config",
        "parallel_config",
        "cache_config",
        "max_num_running_reqs",
        "max_num_scheduled_tokens",
        "max_model_len",
        "get_request_counts",
        "kv_cache_manager",
        "schedule",
        "add_request",
        "update_from_output",
        "finish_requests",
        "finished_req_ids",
    ),
    optional={
        "connector": "no other engine's KV cache is taken to be waited for, and no decode to process its prompt again",
        "dynamic_sd_lookup": "num_speculative_tokens is refused",
        "finished_recving_kv_req_ids": "steps have no room for requests whose KV cache another engine computed",
        "kv_holding_waiting": "strategies that choose requests are refused, and policy",
        "num_waiting_for_streaming_input": "strategies that choose requests are refused, and policy",
        "policy": "strategies that choose requests are refused, and policy",
        "max_num_active_reqs": "requests are admitted up to the slots: those are set before each step",
        "adaptive_long_prefill_threshold": "vLLM never raises the long-prefill threshold by itself",
        "deferred_waiting": "`skipped_waiting` are the requests that wait for other things than room",
        "skipped_waiting": "`deferred_waiting` are the requests that wait for other things than room",
        "_pause_state": "the watchdog cannot tell a pause from a stall",
        "num_spec_tokens": "a decode is one token",
        "num_prefill_lookahead": "drafts need no prompt tokens ahead",
        "max_num_encoder_input_tokens": "no image has to go into one step whole",
        "need_mamba_block_aligned_split": "no state-space block has to go into one step whole",
        "local_prefill_interval": "prompts wait for a step of theirs on data-parallel ranks alone",
        "num_hash_lookahead_tokens": "a block's hash is taken to be of the block's tokens alone",
        **dict.fromkeys(("ec_connector", "lora_config"), "no request is taken to be passed over in the queue"),
        "_handle_blocked_waiting_request": "strategies that choose requests are refused, and policy",
    },
)
SCHEDULER_CONFIG: Final = Used(
    module="vllm.config.scheduler",
    name="SchedulerConfig",
    needed=("get_scheduler_cls", "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill"),
    optional={
        "long_prefill_token_threshold": "long_prefill_token_threshold is refused",
        "async_scheduling": "one step at a time is taken to be in flight",
        "max_num_queued_reqs": "queue.max_num_queued_reqs is refused",
        "max_num_queued_tokens": "queue.max_num_queued_tokens is refused",
        "is_multimodal_model": "no image has to go into one step whole",
        "disable_chunked_mm_input": "no image has to go into one step whole",
        "prefill_schedule_interval": "data-parallel ranks do not wait for each other with their prompts",
    },
)
_NO_ADAPTERS: Final = "no adapter of spec.adapters is loaded"
_BLIND: Final = "of prompts the share is taken to be cached that was lately"
_NOT_HARMONY: Final = "no model's prompts are taken to be in the Harmony format"
_NOT_LOADED: Final = "no prompt's KV cache is taken to be loaded from elsewhere, and requests are refused by a deadline"
#: What the step hooks read once, of the scheduler's own objects.
CACHE_CONFIG: Final = Used(
    module="vllm.config.cache",
    name="CacheConfig",
    needed=("num_gpu_blocks", "block_size"),
    optional={
        "prefix_caching_hash_algo": _BLIND,
        "enable_prefix_caching": "prefixes are taken to be cached",
        "kv_cache_size_tokens": "the cache holds num_gpu_blocks times block_size tokens",
    },
)
CACHE_MANAGER: Final = Used(
    module="vllm.v1.core.kv_cache_manager",
    name="KVCacheManager",
    needed=("usage",),
    optional=dict.fromkeys(("enable_caching", "kv_cache_config", "block_pool"), _BLIND),
)
#: Where the gate looks how much of a prompt is cached.
PREFIXES: Final = (
    Used(
        module="vllm.v1.core.block_pool",
        name="BlockPool",
        needed=("cached_block_hash_to_block", "hash_block_size", "num_gpu_blocks"),
    ),
    Used(module="vllm.v1.core.block_pool", name="BlockHashToBlockMap", needed=("_cache",)),
    Used(
        module="vllm.entrypoints.serve.engine.serving",
        name="BaseServing",
        optional={
            "_check_model": "prompts for adapters are looked up as the model's own, and no priority names a class",
            "models": "prompts for adapters are looked up as the model's own",
        },
    ),
)
PARALLEL_CONFIG: Final = Used(
    module="vllm.config.parallel",
    name="ParallelConfig",
    optional={
        "pipeline_parallel_size": "one step at a time is taken to be in flight",
        "distributed_executor_backend": "there is no external launcher to refuse",
        "data_parallel_index": "`data_parallel_rank` numbers engine cores",
        "data_parallel_rank": "`data_parallel_index` numbers engine cores",
        "data_parallel_size": "an engine core is taken to be alone",
    },
)
#: What says of which sizes steps may be, and had better be; read once, like the above.
STEP_SIZES: Final = (
    Used(
        module="vllm.config.vllm",
        name="VllmConfig",
        optional={
            "speculative_config": "no drafter needs slots beside the scheduled tokens",
            "compilation_config": "steps are cut to any size",
            "model_config": _NOT_HARMONY,
            "kv_transfer_config": _NOT_LOADED,
        },
    ),
    Used(
        module="vllm.config.speculative",
        name="SpeculativeConfig",
        optional={"max_num_new_slots_for_drafting": "no drafter needs slots beside the scheduled tokens"},
    ),
    Used(
        module="vllm.config.compilation",
        name="CompilationConfig",
        optional=dict.fromkeys(("cudagraph_mode", "cudagraph_capture_sizes"), "steps are cut to any size"),
    ),
)
_AT_ARRIVAL: Final = "requests are refused at arrival alone, not what became late while it waited"
_STEP_OUTPUT: Final = "vllm.v1.core.sched.output"
#: What the step hooks read of each request, of each step's output, and of the core that it answers to. Looked at when
#: the plugin registers, before there is a request; the scheduler is asked itself, when it is made.
STEP: Final = (
    Used(
        module="vllm.v1.request",
        name="Request",
        needed=(
            "request_id",
            "max_tokens",
            "num_preemptions",
            "arrival_time",
            "num_tokens",
            "num_prompt_tokens",
            "num_output_tokens",
            "output_token_ids",
            "num_computed_tokens",
            "is_prefill_chunk",
            "status",
        ),
        optional={
            **dict.fromkeys(
                ("lora_request", "mm_features", "kv_transfer_params"), "room is taken to be all that it needs to join"
            ),
            "num_stale_output_tokens": "what was preempted is taken to be free to go on",
            "drop_stale_output": "what was preempted is taken to be free to go on",
            "block_hashes": _BLIND,
            "skip_reading_prefix_cache": "every request is taken to look for its prompt in the cache",
            **dict.fromkeys(("client_index", "sampling_params", "take_events", "trace_headers"), _AT_ARRIVAL),
        },
    ),
    Used(module="vllm.v1.request", name="RequestStatus", optional={"FINISHED_ERROR": _AT_ARRIVAL}),
    Used(
        module=_STEP_OUTPUT,
        name="SchedulerOutput",
        needed=(
            "num_scheduled_tokens",
            "total_num_scheduled_tokens",
            "finished_req_ids",
            "scheduled_cached_reqs",
            "scheduled_new_reqs",
        ),
    ),
    Used(module=_STEP_OUTPUT, name="CachedRequestData", needed=("num_computed_tokens",)),
    Used(module=_STEP_OUTPUT, name="NewRequestData", needed=("num_computed_tokens",)),
    Used(module="vllm.v1.engine.core", name="EngineCore", needed=("scheduler",)),
)
_OUTPUTS: Final = "vllm.v1.engine.output_processor"
#: What the count of requests wraps and reads; looked at when the API server is built.
COUNTING: Final = (
    Used(
        module=_OUTPUTS,
        name="OutputProcessor",
        needed=("request_states", "add_request", "_update_stats_from_output", "_update_stats_from_finished"),
    ),
    Used(
        module=_OUTPUTS,
        name="RequestState",
        needed=("detokenizer", "prompt_len", "num_cached_tokens"),
        optional={"parent_req": _AT_ARRIVAL},
    ),
    Used(
        module="vllm.v1.engine",
        name="EngineCoreRequest",
        needed=("request_id",),
        optional={"sampling_params": _AT_ARRIVAL, "lora_request": "no request is counted by its adapter"},
    ),
    Used(
        module="vllm.v1.engine",
        name="EngineCoreOutput",
        needed=("new_token_ids",),
        optional=dict.fromkeys(("request_id", "finish_reason", "stop_reason", "events", "trace_headers"), _AT_ARRIVAL)
        | {"prefill_stats": "what was cached of a prompt is what vLLM tells the client"},
    ),
    Used(module="vllm.v1.engine", name="FinishReason", needed=("ABORT", "ERROR")),
)
#: What else tells an engine core of what it may refuse, and the API server of what was refused.
TELLING: Final = (
    Used(
        module="vllm.sampling_params", name="SamplingParams", optional=dict.fromkeys(("n", "extra_args"), _AT_ARRIVAL)
    ),
    Used(module="vllm.v1.engine.parallel_sampling", name="ParentRequest", optional={"sampling_params": _AT_ARRIVAL}),
    Used(module="vllm.v1.engine", name="EngineCoreOutputs", optional={"outputs": _AT_ARRIVAL}),
)
#: Where requests are refused by a deadline.
GATE: Final = (
    Used(module="vllm.renderers.base", name="BaseRenderer", needed=("process_for_engine_async",)),
    Used(
        module="vllm.renderers.online_renderer",
        name="OnlineRenderer",
        optional={
            "_make_request_with_harmony": "requests to gpt-oss models are not refused by a deadline",
            "render_responses_harmony_messages": "of a gpt-oss model's responses the gate is asked in their route",
        },
    ),
    Used(
        module="vllm.entrypoints.openai.responses.serving",
        name="OpenAIServingResponses",
        optional={"_make_request_with_harmony": "of a gpt-oss model's responses the gate is asked in the renderer"},
    ),
    Used(
        module="vllm.config.model",
        name="ModelConfig",
        optional={"hf_config": _NOT_HARMONY},
    ),
    Used(
        module="vllm.config.kv_transfer",
        name="KVTransferConfig",
        optional={
            "kv_connector": _NOT_LOADED,
            "is_kv_consumer": "with a KV connector, prompts are taken to be loaded from elsewhere",
        },
    ),
)
#: Where vLLM's own limits of its queue are asked, and moved.
QUEUE: Final = Used(
    module="vllm.v1.engine.async_llm",
    name="AsyncLLM",
    needed=("engine_core", "errored", "vllm_config"),
    optional={
        "add_lora": _NO_ADAPTERS,
        "check_admission": "queue limits are refused",
        "scheduler_config": "queue limits are refused",
    },
)
#: What carries setpoints from the API server to the engine cores; one of two ways is enough.
CLIENT: Final = Used(
    module="vllm.v1.engine.core_client",
    name="AsyncMPClient",
    optional={
        "call_utility_all_async": "engine cores are called one by one",
        "_call_utility_async": "engine cores are called together",
        "core_engines": "engine cores are called together, and none is taken to be unseen",
        **dict.fromkeys(("client_count", "client_index"), "an API server is taken to be the only one"),
    },
)
_UNCHOSEN: Final = "strategies that choose requests are refused, and policy"
#: What puts the queue in another order; a scheduler's own is asked itself, when that is made.
ORDERING: Final = Used(
    module="vllm.v1.core.sched.request_queue",
    name="FCFSRequestQueue",
    needed=("extendleft", "popleft", "rotate"),
)
#: What adapters are loaded with while the engine runs.
ADAPTERS: Final = (
    Used(module="vllm.lora.request", name="LoRARequest", needed=("lora_name", "lora_int_id", "lora_path")),
    Used(module=QUEUE.module, name=QUEUE.name, needed=("add_lora",)),
    Used(
        module="vllm.entrypoints.openai.models.serving",
        name="OpenAIServingModels",
        needed=("lora_requests", "is_base_model"),
    ),
)
#: What is used here and there, modules among it: of these, the names that we import or call.
ELSEWHERE: Final = (
    Used(
        module="vllm.v1.core.sched",
        name="request_queue",
        optional=dict.fromkeys(("create_request_queue", "SchedulingPolicy"), _UNCHOSEN),
    ),
    Used(
        module="vllm.v1.core.sched.request_queue",
        name="RequestQueue",
        optional=dict.fromkeys(("add_request", "prepend_requests", "remove_requests"), _UNCHOSEN),
    ),
    Used(
        module=ORDERING.module,
        name=ORDERING.name,
        optional={
            **dict.fromkeys(ORDERING.needed, "the on-time order is refused"),
            "appendleft": "a queue is taken to be sorted by priority",
        },
    ),
    Used(
        module="vllm.v1.core",
        name="kv_cache_utils",
        optional=dict.fromkeys(("NONE_HASH", "generate_block_hash_extra_keys", "hash_block_tokens"), _BLIND),
    ),
    Used(module="vllm.utils", name="hashing", optional={"get_hash_fn_by_name": _BLIND}),
    Used(module="vllm.v1", name="kv_cache_interface", optional={"FullAttentionSpec": _BLIND}),
    Used(module="vllm.v1.kv_cache_interface", name="KVCacheConfig", optional={"kv_cache_groups": _BLIND}),
    Used(module="vllm.v1.kv_cache_interface", name="KVCacheGroupSpec", optional={"kv_cache_spec": _BLIND}),
    Used(
        module="vllm.entrypoints.openai.models.serving",
        name="OpenAIServingModels",
        optional={
            "lora_requests": f"prompts for adapters are looked up as the model's own, and {_NO_ADAPTERS}",
            "is_base_model": _NO_ADAPTERS,
        },
    ),
    Used(
        module="vllm.lora.request",
        name="LoRARequest",
        optional=dict.fromkeys(("lora_name", "lora_int_id", "lora_path"), _NO_ADAPTERS),
    ),
    Used(
        module="vllm.entrypoints.cli.serve",
        name="ServeSubcommand",
        optional=dict.fromkeys(("cmd", "validate"), "no engine has several API servers"),
    ),
    Used(module="vllm", name="exceptions", optional={"GracefulHTTPError": "what is refused is an HTTPException"}),
    Used(module="vllm", name="version", needed=("__version__",)),
)
#: All that Flyball needs, and all there is.
GOVERNING: Final = (SCHEDULER, SCHEDULER_CONFIG, CACHE_CONFIG, CACHE_MANAGER, PARALLEL_CONFIG, *STEP)
EVERYTHING: Final = (*GOVERNING, *STEP_SIZES, *COUNTING, *TELLING, *GATE, *PREFIXES, QUEUE, CLIENT, *ELSEWHERE)


def _refusing(*, core: bool) -> tuple[Used, ...]:
    """What refusing needs after arrival, in the engine core or in the API server."""
    found = []
    for used in EVERYTHING:
        names = tuple(name for name, without in used.optional.items() if without == _AT_ARRIVAL)
        if names and (used.module in _CORE_MODULES) is core:
            found.append(Used(module=used.module, name=used.name, needed=names))
    return tuple(found)


_CORE_MODULES: Final = ("vllm.v1.request", "vllm.v1.engine")
#: What an engine core needs to refuse a request that waits, and what an API server needs to have it refused.
REFUSING: Final = _refusing(core=True)
MARKING: Final = _refusing(core=False)


def lacking(used: Used, has: Has) -> str | None:
    """What it lacks of what we cannot do without, in words; None if nothing."""
    absent = [name for name in used.needed if not has(name)]
    return f"this vLLM's {used.name} has no {', '.join(absent)}" if absent else None
