"""What of a model decides its size: layers, heads, experts, vocabulary, and the bits of its numbers.

Norms, biases, rotary tables and attention sinks are left out: below 0.2 % of every model here. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Arithmetic(StrEnum):
    """In which numbers the matrix products of the weights run."""

    HALF = "half"
    """Two bytes: bfloat16 or float16, also where packed weights are unpacked first (int4, mxfp4)."""
    FP8 = "fp8"
    """One byte, on devices that multiply fp8; elsewhere unpacked to two."""


class Checkpoint(StrEnum):
    """Which checkpoint holds the weights as they are sized."""

    STATED = "stated"
    """The config's own; also where its packing is of a kind that is not sized, and somebody named one."""
    ON_LOAD = "on-load"
    """The config's own: its weights are unpacked, and vLLM packs them as it loads them, with `Packing.on_load`."""
    OTHER = "other"
    """Another one than the config's, packed so."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How the matrices are stored. Embeddings, output head and routers keep the model's own dtype.

    `bits` per weight, scales and zero points included; `experts_only`: all but the experts keep the dtype, too;
    `on_load`: vLLM's --quantization that packs unpacked weights so, None where none does.
    """

    name: str
    bits: float
    arithmetic: Arithmetic = Arithmetic.HALF
    experts_only: bool = False
    on_load: str | None = None


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Multi-head attention, and with fewer `kv` heads than `query` heads grouped- or multi-query attention.

    `dim` numbers per head, the same for keys and values.
    """

    query: int
    kv: int
    dim: int


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Multi-head latent attention: the cache holds one latent of `rank` and one rotary key of `rope` numbers per token.

    `query_rank` is None where queries are not compressed; `nope` and `value` are the dimensions of a head's keys
    (without their rotary part) and values. Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    query: int
    query_rank: int | None
    rank: int
    rope: int
    nope: int
    value: int


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of `count` experts of `width`, `chosen` per token, beside shared ones of `shared` width together."""

    count: int
    chosen: int
    width: int
    shared: int = 0


@dataclass(frozen=True, kw_only=True)
class Layer:
    """`window`: tokens the layer attends to, None for all; `experts`: None where the feed-forward part is dense."""

    window: int | None = None
    experts: Experts | None = None


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer.

    `hidden` and `width` (of the dense feed-forward part) in numbers per token; `gated`: it has three matrices, not two;
    `tied`: the output head is the embedding; `positions` rows of learned position embeddings; `longest` context in
    tokens; `number_bytes` of one unpacked weight or activation; `packing` as sized, which `checkpoint` holds, and
    `stated` the name of what the config states; `left_out` names what of the config is not counted.
    """

    name: str
    hidden: int
    width: int
    gated: bool
    attention: Heads | Latent
    layers: tuple[Layer, ...]
    vocabulary: int
    tied: bool
    positions: int
    longest: int
    dtype: str
    number_bytes: int
    packing: Packing
    stated: str
    checkpoint: Checkpoint
    left_out: tuple[str, ...] = ()

    @property
    def windowed(self) -> int:
        """Layers that attend to a window only."""
        return sum(layer.window is not None for layer in self.layers)
