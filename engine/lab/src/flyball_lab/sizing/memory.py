"""What of a device's memory is left for the KV cache, and how many tokens and requests that holds. Pure."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Final

from flyball_lab.sizing.shape import Heads, ModelShape

#: Tokens in one block of vLLM's paged cache on GPUs (vllm/config/cache.py, DEFAULT_BLOCK_SIZE).
BLOCK_TOKENS: Final = 16
#: Steps whose tokens vLLM may have scheduled and not settled: with async scheduling the next one is under way
#: (vllm/config/vllm.py, max_in_flight_tokens, 0.32). Sliding windows keep their blocks that long.
STEPS_IN_FLIGHT: Final = 2
#: Bytes per logit of a sampling step with top-k and top-p: the logits in two and four bytes, sorted values, their
#: 64-bit indices, probabilities, running sums (vllm/v1/sample/ops/topk_topp_sampler.py, without a fused
#: kernel).
SAMPLER_BYTES: Final = 2 + 4 + 4 + 8 + 4 + 4
#: What a forward pass takes over the sum of its largest live tensors: allocator fragments and kernels' workspaces.
#: Llama-3-8B at 8192 tokens: 0.78 GiB by the sum, 1.26 GiB reported in github.com/vllm-project/vllm/pull/10511.
FORWARD_ALLOWANCE: Final = 1.6


@dataclass(frozen=True, kw_only=True)
class CacheShape:
    """The KV cache of one device.

    `layer_bytes` per token and layer; `groups` of layers whose blocks are handed out together, with the window of each,
    None where it attends to all; `group_layers` in each group. A group short of layers is padded.
    """

    layer_bytes: int
    groups: tuple[int | None, ...]
    group_layers: int


def cache_shape(model: ModelShape, *, tensor_parallel: int, kv_bytes: int) -> CacheShape:
    """As vLLM lays it out: heads split until one is left per device, then replicated; a latent is replicated at once.

    Layers that differ in their window are grouped as vLLM's hybrid cache manager does (vllm/v1/core/kv_cache_utils.py,
    _get_kv_cache_groups_uniform_page_size, 0.32): all groups have as many layers as the rarer kind has, or the commoner
    one if that is less than half as many again. `kv_bytes` of one stored number.
    """
    kinds = Counter(layer.window for layer in model.layers)
    fewest, most = min(kinds.values()), max(kinds.values())
    size = most if most < 1.5 * fewest else fewest
    groups = [window for window, count in kinds.items() for _ in range(math.ceil(count / size))]
    numbers = layer_numbers(model, tensor_parallel)
    return CacheShape(layer_bytes=numbers * kv_bytes, groups=tuple(groups), group_layers=size)


def layer_numbers(model: ModelShape, tensor_parallel: int) -> int:
    """Numbers that one layer stores per token on each device."""
    kind = model.attention
    if isinstance(kind, Heads):
        return 2 * math.ceil(kind.kv / tensor_parallel) * kind.dim
    return kind.rank + kind.rope


def request_blocks(cache: CacheShape, *, context: int, batched_tokens: int) -> int:
    """Blocks that a request of `context` tokens needs, as vLLM reserves them.

    A window holds its last tokens, those in flight, and one block because it need not start at a block's edge.
    """
    blocks = 0
    for window in cache.groups:
        if window is None:
            blocks += math.ceil(context / BLOCK_TOKENS)
        else:
            held = min(window - 1 + STEPS_IN_FLIGHT * batched_tokens, context)
            blocks += math.ceil(held / BLOCK_TOKENS) + 1
    return blocks


def capacity(cache: CacheShape, *, cache_bytes: int, context: int, batched_tokens: int) -> float:
    """Requests of `context` tokens that `cache_bytes` hold at once: what vLLM logs as its maximum concurrency.

    Times `context` it is what vLLM logs as the size of the cache in tokens.
    """
    block_bytes = cache.group_layers * cache.layer_bytes * BLOCK_TOKENS
    blocks = max(0, cache_bytes) // block_bytes
    return blocks / request_blocks(cache, context=context, batched_tokens=batched_tokens)


def activation_bytes(model: ModelShape, *, tensor_parallel: int, batched_tokens: int, seqs: int) -> int:
    """An estimate of what a full step needs beside weights and cache, as vLLM finds by running one at its ceilings.

    The larger of a layer's pass over `batched_tokens` and of sampling `seqs` requests over the whole vocabulary.
    """
    number = model.number_bytes
    widest = max(_layer_live(model, tensor_parallel), _attention_live(model, tensor_parallel))
    forward = batched_tokens * number * (2 * model.hidden + widest) * FORWARD_ALLOWANCE
    sampling = seqs * model.vocabulary * SAMPLER_BYTES + batched_tokens * model.hidden * number
    return round(max(forward, sampling))


def _layer_live(model: ModelShape, tensor_parallel: int) -> float:
    """Numbers per token alive in the widest feed-forward part: what goes into the last matrix, and what made it."""
    gates = 3 if model.gated else 2
    experts = next((layer.experts for layer in model.layers if layer.experts), None)
    dense = gates * model.width / tensor_parallel if any(layer.experts is None for layer in model.layers) else 0.0
    if experts is None:
        return dense
    width = experts.width / tensor_parallel
    return max(dense, experts.chosen * (width + max((gates - 1) * width, model.hidden)))


def _attention_live(model: ModelShape, tensor_parallel: int) -> float:
    """Numbers per token alive in attention: queries, keys, values, result."""
    kind = model.attention
    if isinstance(kind, Heads):
        return (2 * kind.query + 2 * kind.kv) * kind.dim / tensor_parallel
    return kind.query * (2 * (kind.nope + kind.rope) + 2 * kind.value) / tensor_parallel + kind.rank + kind.rope
