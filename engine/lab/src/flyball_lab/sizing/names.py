"""What each setting is called elsewhere, and what became of names that older guides use.

Sources: vLLM 0.32's own parser; TensorRT-LLM 1.x, nvidia.github.io/TensorRT-LLM/llm-api/reference/TorchLlmArgs.html;
Triton's backend for it, github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/model_config.md; SGLang,
docs.sglang.io/advanced_features/server_arguments.html. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Where an engine has no such setting.
NONE: Final = "-"


@dataclass(frozen=True, kw_only=True)
class SettingNames:
    """`purpose` in words; then its name in each engine."""

    purpose: str
    vllm: str
    tensorrt_llm: str
    triton: str
    sglang: str


@dataclass(frozen=True, kw_only=True)
class Removed:
    """A name that vLLM 0.32 refuses, or never had, and what to say today."""

    name: str
    today: str


SETTINGS: Final = (
    SettingNames(
        purpose="requests that run together, at most",
        vllm="--max-num-seqs; live below it: --max-num-active-seqs",
        tensorrt_llm="max_batch_size",
        triton="triton_max_batch_size, and max_batch_size of the engine build",
        sglang="--max-running-requests",
    ),
    SettingNames(
        purpose="tokens of one step, at most",
        vllm="--max-num-batched-tokens; live below it: --max-num-scheduled-tokens",
        tensorrt_llm="max_num_tokens",
        triton="max_num_tokens of the engine build",
        sglang="--chunked-prefill-size per prompt, --max-prefill-tokens per batch",
    ),
    SettingNames(
        purpose="prompts in chunks beside decodes",
        vllm="--enable-chunked-prefill (on)",
        tensorrt_llm="enable_chunked_prefill",
        triton="enable_chunked_context",
        sglang="on; off with --chunked-prefill-size -1",
    ),
    SettingNames(
        purpose="tokens of a step that one long prompt may take",
        vllm="--long-prefill-token-threshold",
        tensorrt_llm=NONE,
        triton=NONE,
        sglang="--chunked-prefill-size",
    ),
    SettingNames(
        purpose="context of one request, prompt and answer",
        vllm="--max-model-len",
        tensorrt_llm="max_seq_len",
        triton="max_seq_len of the engine build",
        sglang="--context-length",
    ),
    SettingNames(
        purpose="share of memory: vLLM of all, TensorRT-LLM of what weights leave free, SGLang for weights and cache",
        vllm="--gpu-memory-utilization",
        tensorrt_llm="kv_cache_config.free_gpu_memory_fraction",
        triton="kv_cache_free_gpu_mem_fraction",
        sglang="--mem-fraction-static",
    ),
    SettingNames(
        purpose="size of the KV cache, outright",
        vllm="--kv-cache-memory-bytes",
        tensorrt_llm="kv_cache_config.max_tokens",
        triton="max_tokens_in_paged_kv_cache",
        sglang="--max-total-tokens",
    ),
    SettingNames(
        purpose="numbers of the KV cache",
        vllm="--kv-cache-dtype",
        tensorrt_llm="kv_cache_config.dtype",
        triton="fixed by the engine build",
        sglang="--kv-cache-dtype",
    ),
    SettingNames(
        purpose="tokens per block of the cache",
        vllm="--block-size",
        tensorrt_llm="kv_cache_config.tokens_per_block",
        triton="fixed by the engine build",
        sglang="--page-size",
    ),
    SettingNames(
        purpose="reuse of common prefixes",
        vllm="--enable-prefix-caching (on)",
        tensorrt_llm="kv_cache_config.enable_block_reuse (on)",
        triton="enable_kv_cache_reuse",
        sglang="on; off with --disable-radix-cache",
    ),
    SettingNames(
        purpose="devices that share each layer",
        vllm="--tensor-parallel-size",
        tensorrt_llm="tensor_parallel_size",
        triton="fixed by the engine build",
        sglang="--tensor-parallel-size, --tp-size",
    ),
    SettingNames(
        purpose="what happens when the cache is full",
        vllm="the request is preempted and computed anew",
        tensorrt_llm="scheduler_config.capacity_scheduler_policy",
        triton="batch_scheduler_policy: max_utilization or guaranteed_no_evict",
        sglang="the request is retracted; --schedule-conservativeness makes that rarer",
    ),
    SettingNames(
        purpose="order of waiting requests",
        vllm="--scheduling-policy",
        tensorrt_llm=NONE,
        triton="priority_levels of Triton's dynamic batcher",
        sglang="--schedule-policy, --enable-priority-scheduling",
    ),
    SettingNames(
        purpose="requests that may wait, at most",
        vllm="--max-num-queued-reqs, --max-num-queued-tokens",
        tensorrt_llm=NONE,
        triton="max_queue_size",
        sglang="--max-queued-requests",
    ),
    SettingNames(
        purpose="waiting for a batch to fill",
        vllm=NONE,
        tensorrt_llm="batch_wait_timeout_ms",
        triton="max_queue_delay_microseconds",
        sglang=NONE,
    ),
)

REMOVED: Final = (
    Removed(name="throughput_optimization_level", today="never vLLM's; --performance-mode, --optimization-level"),
    Removed(name="chunked_prefill_batch_size", today="never vLLM's; --max-num-batched-tokens"),
    Removed(name="--num-scheduler-steps", today="none: async scheduling took its place"),
    Removed(name="--preemption-mode", today="none: a preempted request is always computed anew"),
    Removed(name="--swap-space", today="a KV offload connector"),
    Removed(name="--scheduler-delay-factor", today="none; nearest is --prefill-schedule-interval"),
    Removed(name="--use-v2-block-manager", today="none: there is one block manager"),
    Removed(name="--max-num-partial-prefills", today="--long-prefill-token-threshold"),
    Removed(name="--max-long-partial-prefills", today="--long-prefill-token-threshold"),
    Removed(name="--cuda-graph-sizes", today="--cudagraph-capture-sizes"),
    Removed(name="--max-seq-len-to-capture", today="--max-cudagraph-capture-size"),
    Removed(name="--disable-log-requests", today="--no-enable-log-requests"),
)
