"""What each strategy promises, checked at every step of a scheduler scenario from vLLM's own lists, not from ours."""

from __future__ import annotations

import random
from bisect import bisect_left
from types import SimpleNamespace
from typing import Any

from flyball_engine.batching.draft_statistics import PROBE_SECONDS
from flyball_engine.contract import Batching, SchedulingPolicy
from flyball_engine.knobs import Batched, Bucketed, Continuous, Dynamic, NoEvict, Static, Strategy

#: What a scenario's requests have most often: prompts of 1, 5, 40, 200 and 600 tokens.
EDGES = (8, 100, 300)


def random_batching(choose: random.Random) -> Batching:
    """Any strategy with any knobs."""
    size = choose.choice([1, 3, 8, 32, 500])
    strategies: list[Strategy] = [
        Continuous(),
        Static(batch_size=size),
        Dynamic(
            batch_size=size,
            max_delay_seconds=choose.choice([0.0, 0.02, 0.1]),
            max_batch_tokens=choose.choice([None, 50, 1000]),
        ),
        Bucketed(batch_size=size, boundaries=EDGES),
        Bucketed(batch_size=size, sorted=True),
    ]
    strategy = choose.choice(strategies)
    return Batching(
        strategy=strategy,
        admission_delay_seconds=0.0 if isinstance(strategy, Dynamic) else choose.choice([0.0, 0.0, 0.02, 0.1]),
        no_evict=choose.choice([None, None, NoEvict(quantile=0.9)]),
        max_concurrent_prefills=choose.choice([None, None, 1, 2, 5]),
        policy=choose.choice([None, *SchedulingPolicy]),
    )


def wait_for_grammar(request: Any) -> None:
    """Have vLLM take it for a request whose grammar is being compiled."""
    request.status = type(request.status).WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    request.structured_output_request = SimpleNamespace(grammar=None)


def grammar_comes(requests: Any) -> None:
    """The grammars of these are compiled; of those that were admitted nothing is left of it."""
    for request in requests:
        if request.structured_output_request is not None:
            request.structured_output_request.grammar = object()
            if request.status.name == "RUNNING":
                request.structured_output_request = None


class Rules:
    """Looks at a scheduler before and after each step; `after` names the promises that were broken."""

    def __init__(self, scheduler: Any, *, block: int, blocks: int) -> None:
        self._scheduler = scheduler
        self._block, self._blocks = block, blocks
        self._batching = Batching()
        self._arrived: dict[str, float] = {}
        self._pool: dict[str, Any] = {}
        self._members: dict[str, Any] = {}
        self._still_since: float | None = None
        self._start_policy = SchedulingPolicy(scheduler.policy.value)
        self.in_batches = 0
        self.is_ordered = False
        self.depths: set[int] = set()
        self._probed = float("-inf")

    def added(self, name: str, now: float) -> None:
        """A request entered the queue."""
        self._arrived[name] = now

    def switched(self, batching: Batching, *, is_ordered: bool = False) -> None:
        """Another strategy is in force: what runs is nobody's batch, and nobody may join it.

        `is_ordered`: prompts are served in an order of their own.
        """
        self.is_ordered = is_ordered
        if batching != self._batching:
            self._batching = batching
            self._pool, self._members = {}, {}

    def before(self, now: float) -> None:
        """A step begins."""
        self._now = now
        waiting = list(self._scheduler.waiting)
        self._running = {one.request_id for one in self._scheduler.running}
        self._preempted = [one for one in waiting if one.num_preemptions]
        self._begun = [*self._scheduler.running, *self._preempted]
        self._prefilling = sum(one.is_prefill_chunk for one in self._scheduler.running)
        self._fresh = [one for one in waiting if not one.num_preemptions and _could_start(one)]

    def after(self, effective: dict[str, int], output: Any, *, in_flight: bool) -> list[str]:
        """A step was planned under these limits; `in_flight` says that the one before has not ended."""
        active = effective["max_num_active_seqs"]
        joined = [one for one in self._scheduler.running if one.request_id not in self._running]
        fresh = [one for one in joined if not one.num_preemptions]
        strategy = self._batching.strategy
        broken = [*self._prefills(joined), *self._cache(fresh), *self._order(fresh)]
        broken += self._progress(in_flight or bool(output.num_scheduled_tokens))
        if (depth := effective.get("num_speculative_tokens")) is not None:
            self.depths.add(output.num_spec_tokens_to_schedule)
            if output.num_scheduled_tokens and output.num_spec_tokens_to_schedule > depth:
                if self._now - self._probed < PROBE_SECONDS:
                    broken.append(f"{output.num_spec_tokens_to_schedule} drafts, {depth} may")
                self._probed = self._now
        if not isinstance(strategy, Batched):
            return broken + self._delay(fresh, active)
        return broken + self._batch(strategy, fresh, active)

    def _progress(self, advances: bool) -> list[str]:
        """Whoever could be served is kept back for the stated delay, and no longer."""
        if advances or not (self._begun or self._fresh):
            self._still_since = None
            return []
        self._still_since = self._now if self._still_since is None else self._still_since
        still = self._now - self._still_since
        return [f"nobody is served for {still:.1f} s"] if still > self._longest_delay() + 1.0 else []

    def _prefills(self, joined: list[Any]) -> list[str]:
        most = self._batching.max_concurrent_prefills
        over = most is not None and len(joined) > max(0, most - self._prefilling)
        return [f"{len(joined)} join {self._prefilling} that prefill, {most} may"] if over else []

    def _cache(self, fresh: list[Any]) -> list[str]:
        if self._batching.no_evict is None or not fresh or len(self._begun) + len(fresh) == 1:
            return []
        promised = sum(self._to_end(one) for one in (*self._begun, *fresh) if self._names_its_end(one))
        return [f"{promised} blocks promised of {self._blocks - 1}"] if promised > self._blocks - 1 else []

    def _names_its_end(self, one: Any) -> bool:
        return bool(one.num_prompt_tokens + one.max_tokens < 1024)

    def _to_end(self, one: Any) -> int:
        return int(-(-(one.num_prompt_tokens + one.max_tokens) // self._block))

    def _order(self, fresh: list[Any]) -> list[str]:
        batching = self._batching
        if isinstance(batching.strategy, Batched) or batching.admission_delay_seconds or self.is_ordered or not fresh:
            return []
        by_priority = (batching.policy or self._start_policy) is SchedulingPolicy.PRIORITY

        def place(one: Any) -> Any:
            return (one.priority if by_priority else 0, one.arrival_time)

        left = [place(one) for one in self._fresh if one not in fresh]
        late = max(map(place, fresh))
        return [f"{late} joins before {min(left)}"] if left and min(left) < late else []

    def _is_open(self, waiting: list[Any], delay: float, size: int) -> bool:
        oldest = min(self._arrived[one.request_id] for one in waiting)
        return self._now >= oldest + delay or len(waiting) >= size

    def _has_room(self, active: int) -> bool:
        """Whether a new request could join beside the preempted ones; who cannot join is not let go, either."""
        most = self._batching.max_concurrent_prefills
        room = active - len(self._running)
        room = room if most is None else min(room, most - self._prefilling)
        resuming = [one for one in self._preempted if not _is_stale(one)]
        return room > len(resuming)

    def _delay(self, fresh: list[Any], active: int) -> list[str]:
        delay = self._batching.admission_delay_seconds
        others = [one for one in self._fresh if one.request_id not in self._pool]
        if others and self._has_room(active) and self._is_open(others, delay, active - len(self._running)):
            self._pool |= {one.request_id: one for one in others}
        early = [one.request_id for one in fresh if one.request_id not in self._pool]
        return [f"{early} join before their time"] if delay and early else []

    def _batch(self, strategy: Static | Dynamic | Bucketed, fresh: list[Any], active: int) -> list[str]:
        if not fresh:
            late = not self._begun and self._fresh and self._is_open(self._fresh, self._longest_delay(), active + 999)
            return ["nothing runs, and the batch that is due does not begin"] if late else []
        self.in_batches += len(fresh)
        names = {one.request_id: one for one in fresh}
        may_go_on = names.keys() <= self._pool.keys() and len(self._members) + len(names) <= strategy.batch_size
        if self._begun and not may_go_on:
            return [f"{list(names)} join a batch of {len(self._members)} that runs"]
        broken = []
        if not self._begun:
            # A new batch, or the rest of one whose first members have ended already.
            if not may_go_on and not self._is_due(strategy, active):
                broken.append(f"a batch of {len(names)} begins before its time")
            self._pool = {one.request_id: one for one in self._fresh}
            self._members = {}
        self._members |= names
        if len(names) > strategy.batch_size:
            broken.append(f"{len(names)} begin a batch of {strategy.batch_size}")
        return broken + self._likeness(strategy)

    def _longest_delay(self) -> float:
        strategy = self._batching.strategy
        return strategy.max_delay_seconds if isinstance(strategy, Dynamic) else self._batching.admission_delay_seconds

    def _is_due(self, strategy: Static | Dynamic | Bucketed, active: int) -> bool:
        tokens = sum(one.num_prompt_tokens for one in self._fresh)
        is_heavy = isinstance(strategy, Dynamic) and tokens >= (strategy.max_batch_tokens or float("inf"))
        # Where the cache bounds the batch, a full one may be of any size.
        is_bounded = self._batching.no_evict is not None
        size = min(strategy.batch_size, active)
        return is_heavy or is_bounded or self._is_open(self._fresh, self._longest_delay(), size)

    def _likeness(self, strategy: Static | Dynamic | Bucketed) -> list[str]:
        if not isinstance(strategy, Bucketed) or strategy.sorted:
            return []
        buckets = {bisect_left(strategy.boundaries, one.num_prompt_tokens) for one in self._members.values()}
        return [f"buckets {buckets} in one batch"] if len(buckets) > 1 else []


def _is_stale(request: Any) -> bool:
    """Whether a step in flight may still deliver a token of it; older vLLMs drop that token by themselves."""
    return bool(getattr(request, "num_stale_output_tokens", 0) and not request.drop_stale_output)


def _could_start(request: Any) -> bool:
    if request.status.name != "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR":
        return True
    return request.structured_output_request.grammar is not None
