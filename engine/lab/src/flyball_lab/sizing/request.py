"""What is asked of a sizing, and what of it a model allows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flyball_lab.sizing.config import AUTO
from flyball_lab.sizing.errors import RequestError
from flyball_lab.sizing.shape import Heads, ModelShape

#: Tokens of prompt and answer together, where the request does not say and the model can hold them.
USUAL_CONTEXT: Final = 8192
#: Share of the memory, where the request does not say. vLLM's own is 0.92 (vllm/config/cache.py): less is sized than it
#: takes.
USUAL_UTILIZATION: Final = 0.9
#: Bytes of one cached number, by vLLM's --kv-cache-dtype; auto is the model's own.
KV_DTYPES: Final[Mapping[str, int]] = {"bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
#: Devices in one engine; beyond one node's, tensor parallelism is not sensible.
MOST_DEVICES: Final = 64
#: vLLM rounds the vocabulary up to this before it splits it (vllm/model_executor/layers/vocab_parallel_embedding.py,
#: DEFAULT_VOCAB_PADDING_SIZE, 0.32).
VOCABULARY_STEP: Final = 64


@dataclass(frozen=True, kw_only=True)
class SizingRequest:
    """What is asked. Names as vLLM's flags; `context` in tokens, None for the usual one."""

    tensor_parallel: int = 1
    context: int | None = None
    utilization: float = USUAL_UTILIZATION
    dtype: str = AUTO
    kv_dtype: str = AUTO
    weights: str = AUTO
    preset: str = "throughput"


def kv_dtype(asked: str, model: ModelShape) -> tuple[str, int]:
    """Name and bytes of a cached number. Raises `RequestError`."""
    if asked == AUTO:
        return model.dtype, model.number_bytes
    if asked not in KV_DTYPES:
        raise RequestError("kv-dtype", f"is {asked!r:.60}", ", ".join((AUTO, *KV_DTYPES)))
    return asked, KV_DTYPES[asked]


def degrees(model: ModelShape) -> tuple[int, ...]:
    """Numbers of devices that vLLM can split the model over.

    Query heads, the width of every feed-forward part and the padded vocabulary must divide (`divide` in
    vllm/distributed/utils.py, which vllm/model_executor/layers/linear.py and vocab_parallel_embedding.py call, and an
    assertion in fused_moe/config.py); key heads divide, or are replicated evenly.
    """
    query, kv = _heads(model)
    vocabulary = -(-model.vocabulary // VOCABULARY_STEP) * VOCABULARY_STEP
    divided = (query, vocabulary, *_widths(model))
    return tuple(
        count
        for count in range(1, min(query, MOST_DEVICES) + 1)
        if not any(size % count for size in divided) and (kv % count == 0 or count % kv == 0)
    )


def check_split(model: ModelShape, count: int) -> None:
    """Raises `RequestError` unless the model can be split over that many devices."""
    possible = degrees(model)
    if count not in possible:
        query, kv = _heads(model)
        widths = " and ".join(map(str, _widths(model)))
        raise RequestError(
            "tensor-parallel",
            f"is {count}, and the model has {query} query and {kv} key-value heads, feed-forward parts {widths} wide "
            f"and a vocabulary of {model.vocabulary}",
            ", ".join(map(str, possible)),
        )


def check_utilization(share: float) -> None:
    """Raises `RequestError` unless it is a share."""
    if not 0 < share <= 1:
        raise RequestError("utilization", f"is {share}", "a number above 0 and at most 1, such as 0.9")


def context_of(asked: int | None, model: ModelShape) -> int:
    """Tokens of one request. Raises `RequestError` where the model cannot have so many."""
    if asked is None:
        return min(USUAL_CONTEXT, model.longest)
    if not 1 <= asked <= model.longest:
        raise RequestError("context", f"is {asked} tokens", f"1 to {model.longest}, the model's longest")
    return asked


def _heads(model: ModelShape) -> tuple[int, int]:
    kind = model.attention
    return kind.query, kind.kv if isinstance(kind, Heads) else 1


def _widths(model: ModelShape) -> list[int]:
    """Of the feed-forward parts that there are: dense, experts, shared experts."""
    found: set[int] = set()
    for experts in {layer.experts for layer in model.layers}:
        found |= {model.width} if experts is None else {experts.width, experts.shared or experts.width}
    return sorted(found)
