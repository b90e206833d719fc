"""Which waiting requests may join the running ones in the coming step: the strategies of `contract.Batching`.

Every strategy is an admission policy before the same step: it lets requests out of the queue, and what a step does with
them is the engine's. A strategy *calls* requests, all members of a batch at once. They join when there is room for
them, maybe over several steps. While some batch runs or is called, a batching strategy calls nobody else.

Requests that ran before and were preempted are members of what runs: they come first, under every strategy, bounded by
slots and the prefill limit alone.

Pure: the clock is a parameter, and nothing here knows which engine it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from flyball_engine.knobs import Batched, Batching, Bucketed, Dynamic


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A request that waits for its first admission and could start now.

    `arrived`: when it entered the queue, seconds on the clock of `SchedulerState.now`. `kv_tokens`: tokens it will
    hold in the KV cache when it ends, as expected (0 where nobody asks).
    """

    name: str
    arrived: float
    prompt_tokens: int
    kv_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class SchedulerState:
    """An engine before a step.

    `queue`: what waits, in the order of service; read once at most, and no further than needed. `running`: requests
    that began and have not ended, but for `resuming`: the preempted ones that could go on now. `prefilling`: running
    ones whose prompt is being processed. `slots`: how many more may run under the active limit. `kv_free`: KV tokens
    that neither running nor resuming ones will need to their ends.
    """

    now: float
    queue: Iterable[Waiting]
    running: int
    slots: int
    resuming: int = 0
    prefilling: int = 0
    kv_free: int = 0


@dataclass(frozen=True, kw_only=True)
class BatchDecision:
    """Who may join in the coming step.

    `most`: how many, resuming ones included. `admit`: which new ones, in this order; None is whoever stands first.
    `called`: to be given to the next decision. `held_until`: when those kept back are let go at the latest, None if
    nobody is kept back by the clock.
    """

    most: int
    admit: tuple[str, ...] | None
    called: tuple[str, ...] = ()
    held_until: float | None = None


def decide(batching: Batching, called: Sequence[str], state: SchedulerState) -> BatchDecision:
    """Decide on one step; `called` is that of the decision before it, empty at first and after a change of strategy."""
    room = max(0, state.slots)
    if batching.max_concurrent_prefills is not None:
        room = min(room, max(0, batching.max_concurrent_prefills - state.prefilling))
    if not batching.holds_back:
        return BatchDecision(most=room, admit=None)
    resumed = min(room, state.resuming)
    if resumed == room:
        # Whoever is called now could not join: a long queue need not be read in every step of a full engine.
        return BatchDecision(most=resumed, admit=(), called=tuple(called))
    if not isinstance(batching.strategy, Batched) and not batching.admission_delay_seconds:
        members, held_until = list(islice(state.queue, room - resumed)), None
    else:
        members, held_until = _members(batching, called, state)
    joining = _fitting(batching, members, state)[: room - resumed]
    return BatchDecision(
        most=resumed + len(joining),
        admit=tuple(request.name for request in joining),
        called=tuple(request.name for request in members),
        held_until=held_until,
    )


def _members(batching: Batching, called: Sequence[str], state: SchedulerState) -> tuple[list[Waiting], float | None]:
    """Who is called and has not joined yet, and until when others are kept back."""
    one_batch = isinstance(batching.strategy, Batched)
    if one_batch and not called and state.running + state.resuming:
        return [], None
    waiting = list(state.queue)
    by_name = {request.name: request for request in waiting}
    members = [by_name.pop(name) for name in called if name in by_name]
    others = list(by_name.values())
    if not others or (one_batch and (members or state.running + state.resuming)):
        return members, None
    batch, is_full = _next_batch(batching, others, state)
    lets_go = min(request.arrived for request in others) + _delay(batching)
    if is_full or state.now >= lets_go:
        return members + batch, None
    return members, lets_go


def _delay(batching: Batching) -> float:
    strategy = batching.strategy
    return strategy.max_delay_seconds if isinstance(strategy, Dynamic) else batching.admission_delay_seconds


def _next_batch(batching: Batching, waiting: list[Waiting], state: SchedulerState) -> tuple[list[Waiting], bool]:
    """The batch that would begin now, and whether waiting longer could not make it larger."""
    strategy = batching.strategy
    if not isinstance(strategy, Batched):
        return waiting, len(waiting) >= state.slots
    most = max(1, min(strategy.batch_size, state.slots))
    like = _alike(strategy, waiting, most) if isinstance(strategy, Bucketed) else waiting
    batch = like[:most]
    is_full = len(batch) == most
    if isinstance(strategy, Dynamic) and strategy.max_batch_tokens is not None:
        batch, is_heavy = _lighter(batch, strategy.max_batch_tokens)
        is_full = is_full or is_heavy
    fitting = _fitting(batching, batch, state)
    return fitting, is_full or len(fitting) < len(batch)


def _alike(strategy: Bucketed, waiting: list[Waiting], most: int) -> list[Waiting]:
    """Requests of like prompt lengths, among them the one that stands first."""
    first = waiting[0]
    if strategy.sorted:
        by_length = sorted(waiting, key=lambda request: request.prompt_tokens)
        start = by_length.index(first) // most * most
        # The first leads, then the nearest: whatever is cut off the batch's end, the first is in.
        return sorted(
            by_length[start : start + most],
            key=lambda one: (one is not first, abs(one.prompt_tokens - first.prompt_tokens)),
        )
    edges = strategy.boundaries
    bucket = bisect_left(edges, first.prompt_tokens)
    return [request for request in waiting if bisect_left(edges, request.prompt_tokens) == bucket]


def _lighter(batch: list[Waiting], most_tokens: int) -> tuple[list[Waiting], bool]:
    """As many from the front as have `most_tokens` prompt tokens together, at least one; and whether that bound."""
    total = 0
    for index, request in enumerate(batch):
        total += request.prompt_tokens
        if total > most_tokens:
            return batch[: max(1, index)], True
    return batch, total == most_tokens


def _fitting(batching: Batching, waiting: list[Waiting], state: SchedulerState) -> list[Waiting]:
    """Those from the front that fit to their ends. What fits into no cache at all may run alone."""
    if batching.no_evict is None:
        return waiting
    free, alone = state.kv_free, not state.running + state.resuming
    for index, request in enumerate(waiting):
        if request.kv_tokens > free and not (alone and index == 0):
            return waiting[:index]
        free -= request.kv_tokens
    return waiting
