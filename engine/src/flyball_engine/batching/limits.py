"""What the live limits of a step may be: between ceilings and floors.

A limit asked for is not always one an engine can run with. Above the start-up sizes the worker's buffers overflow;
below the running decodes the newest requests freeze without an error; below the longest part that cannot be split the
queue hangs. These functions turn what was asked into what is safe for the batch at hand, and say why.

Pure: imports only the standard library and the contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flyball_engine.contract import ClampReason

#: A prefill gets at least this many tokens a step: fewer cost more in steps than they spare in step time.
LEAST_CHUNK: Final = 16


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What an engine was started with, as far as it bounds the live limits.

    `tokens_per_decode`: 1 + speculative tokens. `least_chunk`: tokens a partial prefill must get to advance.
    `indivisible`: the longest part of a prompt that must go into one step whole (the model length without chunked
    prefill, an image, a state-space block); 0 if none. `depths`: numbers of draft tokens that the engine's graphs were
    made for, rising; empty where the depth cannot be moved. `graphs`: tokens of the steps that CUDA graphs were
    captured of, rising; empty where there are none.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    tokens_per_decode: int = 1
    least_chunk: int = LEAST_CHUNK
    indivisible: int = 0
    depths: tuple[int, ...] = ()
    graphs: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RequestedLimits:
    """A value for each knob, as asked for or once it is safe. `threshold` 0 is no cap; `depth` is draft tokens."""

    active: int
    tokens: int
    threshold: int
    depth: int = 0


@dataclass(frozen=True, kw_only=True)
class RunningBatch:
    """The running requests before a step: `decodes` of them decode, the others prefill.

    `prefills`: prompt tokens each partial prefill still has to process. Decodes are served before them.
    """

    decodes: int
    prefills: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Running requests."""
        return self.decodes + len(self.prefills)


@dataclass(frozen=True)
class Limited:
    """A limit that is safe, and why it differs from what was asked for (None: it does not)."""

    value: int
    reason: ClampReason | None = None


def active_limit(wanted: int, sizes: Sizes) -> Limited:
    """Requests that may run: at least 1 (0 would spin), at most the slots there are."""
    if wanted > sizes.max_num_seqs:
        return Limited(sizes.max_num_seqs, ClampReason.CEILING)
    return Limited(wanted) if wanted >= 1 else Limited(1, ClampReason.FLOOR)


def token_limit(wanted: int, *, active: int, batch: RunningBatch, sizes: Sizes) -> Limited:
    """Tokens a step may process: enough for every request that runs or may run, at most the start-up size.

    While requests over the active limit drain, the limit follows them down; that is the reason `decodes`.
    """
    ceiling = sizes.max_num_batched_tokens
    if wanted > ceiling:
        return Limited(ceiling, ClampReason.CEILING)
    floor = min(ceiling, _standing_floor(active, sizes))
    needed = min(ceiling, batch_floor(batch, sizes))
    if wanted >= max(floor, needed):
        return Limited(wanted)
    return Limited(needed, ClampReason.DECODES) if needed > floor else Limited(floor, ClampReason.FLOOR)


def _standing_floor(active: int, sizes: Sizes) -> int:
    decodes = sizes.tokens_per_decode * active
    # What cannot be split must fit beside a full batch of decodes, or it waits for them for ever.
    return decodes + sizes.indivisible if sizes.indivisible else max(decodes, sizes.least_chunk)


def batch_floor(batch: RunningBatch, sizes: Sizes) -> int:
    """Tokens a step must have so that every running request advances; of prompts of whole parts, one of them."""
    prefills = max(sizes.least_chunk * len(batch.prefills), sizes.indivisible) if batch.prefills else 0
    return sizes.tokens_per_decode * batch.decodes + prefills


def threshold_limit(wanted: int, sizes: Sizes) -> Limited:
    """Tokens of one prompt in one step: 0 is no cap; one below the least chunk or a whole part starves prefills."""
    least = min(sizes.max_model_len, max(sizes.least_chunk, sizes.indivisible))
    if wanted == 0 or least <= wanted <= sizes.max_model_len:
        return Limited(wanted)
    if wanted > sizes.max_model_len:
        return Limited(sizes.max_model_len, ClampReason.CEILING)
    return Limited(least, ClampReason.FLOOR)


def depth_limit(wanted: int, sizes: Sizes) -> Limited:
    """Draft tokens per request and step: only depths the engine was started with have a graph."""
    depths = sizes.depths
    if not depths or wanted in depths:
        return Limited(wanted)
    if wanted > depths[-1]:
        return Limited(depths[-1], ClampReason.CEILING)
    return Limited(max((depth for depth in depths if depth < wanted), default=depths[0]), ClampReason.SCHEDULE)
