"""What the live limits of a step may be: ceilings, floors, and a share for decodes that no prefill can eat.

A limit asked for is not always one an engine can run with. Above the start-up sizes the worker's buffers overflow;
below the running decodes the newest requests freeze without an error; below the longest part that cannot be split the
queue hangs. These functions turn what was asked into what is safe for the batch at hand, and say why.

Pure: imports only the standard library and the contract.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    made for, rising; empty where the depth cannot be moved.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    tokens_per_decode: int = 1
    least_chunk: int = LEAST_CHUNK
    indivisible: int = 0
    depths: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Limits to run with, before clamping: each knob has a value. `threshold` 0 is no cap; `depth` is draft tokens."""

    active: int
    tokens: int
    threshold: int
    depth: int = 0


@dataclass(frozen=True, kw_only=True)
class RunningBatch:
    """The running requests before a step: `decodes` of them decode, the others prefill.

    `prefills`: prompt tokens each partial prefill still has to process. `decodes_behind`: some decode stands after a
    partial prefill, so that the prefill is served first.
    """

    decodes: int
    prefills: tuple[int, ...] = ()
    decodes_behind: bool = False

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
    """Tokens a step must have so that every running request advances."""
    return sizes.tokens_per_decode * batch.decodes + sizes.least_chunk * len(batch.prefills)


def threshold_limit(wanted: int, sizes: Sizes) -> Limited:
    """Tokens of one prompt in one step: 0 is no cap; a cap below the least chunk would starve prefills."""
    if wanted == 0 or sizes.least_chunk <= wanted <= sizes.max_model_len:
        return Limited(wanted)
    if wanted > sizes.max_model_len:
        return Limited(sizes.max_model_len, ClampReason.CEILING)
    return Limited(sizes.least_chunk, ClampReason.FLOOR)


def depth_limit(wanted: int, sizes: Sizes) -> Limited:
    """Draft tokens per request and step: only depths the engine was started with have a graph."""
    depths = sizes.depths
    if not depths or wanted in depths:
        return Limited(wanted)
    if wanted > depths[-1]:
        return Limited(depths[-1], ClampReason.CEILING)
    return Limited(max((depth for depth in depths if depth < wanted), default=depths[0]), ClampReason.SCHEDULE)


def step_threshold(configured: int, *, tokens: int, batch: RunningBatch, sizes: Sizes, adaptive: bool = False) -> int:
    """The long-prefill threshold of one step: `configured`, or less where decodes would get nothing.

    vLLM serves running requests in order of admission, so a partial prefill may stand before decodes and take the whole
    budget; then prefills are levelled to what the decodes leave. `adaptive` says that vLLM may raise the threshold by
    itself, so that `configured` bounds nothing.
    """
    if not batch.decodes_behind:
        return configured
    room = tokens - sizes.tokens_per_decode * batch.decodes
    cap = sizes.max_num_batched_tokens if adaptive or not configured else configured
    if sum(min(cap, remaining) for remaining in batch.prefills) <= room:
        return configured
    # A threshold below the tokens of one decode would cut its drafts too.
    return max(sizes.tokens_per_decode, min(cap, _level(batch.prefills, room)))


def _level(demands: Sequence[int], room: int) -> int:
    """The largest cap per demand whose capped sum fits into `room` (water filling)."""
    ordered = sorted(demands)
    for served, demand in enumerate(ordered):
        share = room // (len(ordered) - served)
        if demand > share:
            return share
        room -= demand
    return ordered[-1]
