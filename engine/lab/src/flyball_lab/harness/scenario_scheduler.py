"""vLLM's scheduler for a scheduler scenario: as configured, governed, with no engine around it."""

from __future__ import annotations

from typing import Any

from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.structured_output import StructuredOutputManager

from flyball_engine.vllm.plugin import governed_class

#: Tokens in a block of the KV cache.
BLOCK = 32


def make_config(scenario: Any, model: str) -> VllmConfig:
    """The configuration of an engine for this `scenario.Scenario`."""
    scheduler = SchedulerConfig(
        max_num_seqs=scenario.max_num_seqs,
        max_num_batched_tokens=scenario.max_num_batched_tokens,
        max_model_len=1024,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        async_scheduling=scenario.asynchronous,
        policy=scenario.policy,
        watermark=0.0,
    )
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    cache.num_gpu_blocks = scenario.blocks
    model_config = ModelConfig(model=model, max_model_len=1024, dtype="float32", seed=0)
    drafts = None
    if scenario.drafts:
        drafts = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=4,
            prompt_lookup_max=4,
            num_speculative_tokens_per_batch_size=[(1, 4, 4), (5, 16, 2), (17, 32, 0)],
            target_model_config=model_config,
            target_parallel_config=ParallelConfig(),
        )
    return VllmConfig(
        scheduler_config=scheduler,
        model_config=model_config,
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
        speculative_config=drafts,
    )


def make_scheduler(config: VllmConfig, scenario: Any, *, governed: bool = True) -> Any:
    """The governed scheduler that vLLM would make, or the one below it, as vLLM made it."""
    # The CPU platform switches asynchronous scheduling off; the scheduler class is chosen by this field alone.
    config.scheduler_config.async_scheduling = scenario.asynchronous
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=config.model_config.dtype)
    kv = KVCacheConfig(
        num_blocks=scenario.blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    chosen = config.scheduler_config.get_scheduler_cls()
    if scenario.ratchet:
        older: Any = _older(chosen.__mro__[1])
        chosen = governed_class(older)
    if not governed:
        chosen = chosen.__mro__[1]
    return chosen(
        vllm_config=config,
        kv_cache_config=kv,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
        log_stats=True,
    )


def _older(base: type[Any]) -> type[Any]:
    """The scheduler as before 0.31: the slot count is the admission limit, too."""

    def gate(self: Any) -> int:
        if not self.__dict__.get("in_step"):
            raise AttributeError("max_num_active_reqs")
        return int(self.max_num_running_reqs)

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.in_step = True
        try:
            return base.schedule(self, *args, **kwargs)
        finally:
            self.in_step = False

    hidden = property(gate, lambda self, value: None)
    return type(f"Older{base.__name__}", (base,), {"max_num_active_reqs": hidden, "schedule": schedule})
