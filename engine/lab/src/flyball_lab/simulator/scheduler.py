"""vLLM's V1 scheduler, as far as it decides what a step processes; decodes are kept in sums.

Its order, as Flyball has it: running decodes first, with one token and their drafts, then the prompts that have begun,
in order of admission, with what the step's tokens and the long-prefill threshold leave (one request alone has no
threshold); then waiting ones while places, tokens and blocks for the whole prompt last. A running request that finds no
block takes that of the last in this order, which waits again and computes all its tokens anew; in such a step nobody is
admitted.

Prompts may have an order of their own (`batching.on_time`). Then prompts that were preempted after their first token
come first, then the others in that order. The last of that order is the first to lose blocks.

Every decode is served in every step: `batching.setpoint_enforcer` gives a step at least the tokens of its decodes. So
all decodes advance together, and one number, the count of steps, says how far each is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator

from flyball_engine.batching.setpoint_enforcer import RequestedLimits, RunningBatch, Sizes
from flyball_engine.batching.step_order import StepOrder
from flyball_engine.batching.step_statistics import Occupancy, Step
from flyball_engine.batching.step_token_budgeter import LOOK_AHEAD, Prompt, Queue
from flyball_engine.contract import SchedulingPolicy
from flyball_lab.simulator.kv import BLOCK_TOKENS, PrefixCache, blocks
from flyball_lab.simulator.queue import WaitingQueue
from flyball_lab.simulator.requests import Request
from flyball_lab.simulator.step_plan import StepPlan


class Scheduler:
    """The queue, the running requests, and the KV cache.

    `decode_steps` says in how many steps a decode makes so many tokens with so many drafts: fewer than tokens.
    """

    def __init__(
        self,
        *,
        sizes: Sizes,
        kv_tokens: int,
        policy: SchedulingPolicy,
        decode_steps: Callable[[int, int], int] | None = None,
    ) -> None:
        """Raises ValueError for sizes that vLLM refuses to start with."""
        if kv_tokens < sizes.max_model_len:
            raise ValueError(f"a KV cache of {kv_tokens} tokens cannot hold one request of {sizes.max_model_len}")
        if sizes.max_num_batched_tokens < sizes.max_num_seqs * sizes.tokens_per_decode:
            raise ValueError("max_num_batched_tokens must hold max_num_seqs decodes with their drafts")
        self.sizes = sizes
        self.capacity = kv_tokens // BLOCK_TOKENS
        self.waiting = WaitingQueue(policy)
        self.running: dict[Request, None] = {}
        self.prefixes = PrefixCache()
        self.steps = 0
        self.preemptions = 0
        self._by_priority = policy is SchedulingPolicy.PRIORITY
        self._decode_steps = decode_steps
        self._drafts = sizes.tokens_per_decode - 1
        self._decodes: dict[Request, None] = {}
        self._prefilling: dict[Request, None] = {}
        # Preempted after their first token, in the order of their preemption; they wait again.
        self._resuming: dict[Request, None] = {}
        self._ends: list[tuple[int, int, Request]] = []
        # Sums over the decodes: tokens in the cache, those that no prefix holds, tokens made per step.
        self._context = self._own = self._pace = 0.0

    @property
    def tokens_per_decode(self) -> int:
        """Tokens that a step processes for a decode."""
        return 1 + self._drafts

    def draft(self, depth: int) -> None:
        """Draft so many tokens for each decode from the next step on: those that run go on at another pace."""
        if depth == self._drafts or self._decode_steps is None:
            return
        self._drafts = depth
        self._ends.clear()
        self._context = self._own = self._pace = 0.0
        for request in self._decodes:
            grown = request.made_at(self.steps) - request.made
            request.deliveries += self.steps - request.joined
            request.made += grown
            request.target += grown
            self._set_pace(request)

    @property
    def growth(self) -> float:
        """Tokens that all decodes together make in a step."""
        return self._pace

    @property
    def prefilling(self) -> Iterable[Request]:
        """Running requests whose prompt is not processed yet, in order of admission."""
        return self._prefilling

    @property
    def resuming(self) -> Iterable[Request]:
        """Requests with a first token whose prompt is processed again, or is to be."""
        return [*(request for request in self._prefilling if request.made), *self._resuming]

    def free_tokens(self) -> float:
        """Tokens that the cache has room for beside what runs, if each decode takes one block more: no more at least.

        Prefixes that nobody uses give way.
        """
        decodes = (self._own + self._pace) / BLOCK_TOKENS + len(self._decodes)
        return BLOCK_TOKENS * (self.capacity - self.prefixes.used - self._prefill_blocks({}) - decodes)

    def batch(self) -> RunningBatch:
        """The running requests, as far as limits depend on them."""
        if not self._prefilling:
            return RunningBatch(decodes=len(self._decodes))
        return RunningBatch(
            decodes=len(self._decodes),
            prefills=tuple(request.target - request.computed for request in self._prefilling),
        )

    def queue(self) -> Queue:
        """What the next step may serve, as far as its time depends on it."""
        batch, head = self.batch(), self.waiting.first(LOOK_AHEAD)
        return Queue(
            decodes=batch.decodes,
            tokens_per_decode=self.tokens_per_decode,
            prefilling=[self.prompt(request) for request in self._prefilling],
            waiting=[self.prompt(request) for request in head],
            more=len(head) == LOOK_AHEAD,
            kv_tokens=self.context_tokens,
        )

    def prompt(self, request: Request) -> Prompt:
        """What is left of its prompt, after what is computed or cached."""
        computed = request.computed if request.running else self.prefixes.hit(request)
        return Prompt(remaining=request.target - computed, context=computed)

    @property
    def context_tokens(self) -> float:
        """Tokens in the cache that the decodes of a step read."""
        return self._context

    def held_tokens(self) -> int:
        """Tokens in the cache that running requests hold."""
        return int(self._context) + sum(request.computed for request in self._prefilling)

    def used_blocks(self) -> int:
        """Blocks that running requests hold."""
        return self.prefixes.used + self._decode_blocks(0) + self._prefill_blocks({})

    def plan(self, limits: RequestedLimits, order: StepOrder[Request] | None = None) -> StepPlan:
        """What the next step processes; preempts and admits on the way. `order`: of those without a first token."""
        alone = len(self.running) + len(self.waiting) == 1
        cap = limits.threshold if limits.threshold and not alone else limits.tokens
        if order is not None and order.threshold:
            cap = min(cap, order.threshold)
        chunks: dict[Request, int] = {}
        preempted, admitted = self._make_room(chunks, order), list[Request]()
        budget = self._serve(self._begun(order), chunks, preempted, order, tokens=limits.tokens, cap=cap)
        if not preempted and budget > 0:
            admitted, budget = self._admit(chunks, self._next(order), active=limits.active, cap=cap, budget=budget)
            if order is not None and not admitted:
                # The one that they were to make way for has no room: they go on.
                self._serve(order.parked, chunks, preempted, order, tokens=limits.tokens, cap=cap)
        return self._composed(chunks, limits, tuple(preempted), tuple(admitted))

    def steps_until_change(self) -> int:
        """Steps of decodes alone until one ends or blocks may run out; at least 1 if any decodes."""
        while self._ends and self._ends[0][2].ends != self._ends[0][0]:
            heapq.heappop(self._ends)
        if not self._ends:
            return 0
        most, others = self._ends[0][0] - self.steps, self._prefill_blocks({})
        if self._fit(most, others):
            return most
        least = 1  # the plan has made room for the next step
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if self._fit(middle, others) else (least, middle)
        return least

    def advance(self, steps: int, chunks: dict[Request, int]) -> tuple[list[Request], list[Request]]:
        """Steps were made, more than one only without chunks.

        Returns the requests whose prompt was completed, which made a token, and those that have all their tokens.
        """
        self.steps += steps
        self._context += steps * self._pace
        self._own += steps * self._pace
        for request, tokens in chunks.items():
            request.computed += tokens
            self.prefixes.computed(request)
        # What the steps took was taken before those that end now gave theirs back.
        self._spare()
        ended = list(self._ended())
        joined = []
        for request in chunks:
            if request.computed >= request.target:
                del self._prefilling[request]
                joined.append(request)
                if self._join(request):
                    ended.append(request)
        return joined, ended

    def remove(self, request: Request) -> None:
        """A request leaves unfinished."""
        if request.running:
            self._drop(request)
        else:
            self.waiting.remove(request)
            self._resuming.pop(request, None)

    def clear(self) -> list[Request]:
        """The engine crashed: all requests, and an empty cache."""
        gone = list(self.running)
        for request in gone:
            self._drop(request)
        self.prefixes = PrefixCache()
        self._resuming.clear()
        return gone + self.waiting.clear()

    def _composed(
        self,
        chunks: dict[Request, int],
        limits: RequestedLimits,
        preempted: tuple[Request, ...],
        admitted: tuple[Request, ...],
    ) -> StepPlan:
        decodes, prefill, attention, squares, reread = len(self._decodes), 0, 0.0, 0, 0
        for request, tokens in chunks.items():
            prefill += tokens
            attention += tokens * (request.computed + tokens / 2)
            squares += tokens * (2 * (request.computed - request.found) + tokens)
            reread += request.computed
        tokens = (self._drafts + 1) * decodes
        occupancy = Occupancy(decodes + len(chunks), len(self.running), limits.active, limits.tokens)
        step = Step(
            tokens=tokens + prefill,
            prefill_tokens=prefill,
            decodes=decodes,
            kv_tokens=self._context + tokens,
            prefill_attention=attention,
            prefill_squares=squares,
            occupancy=occupancy,
        )
        return StepPlan(step, chunks, reread, preempted, admitted)

    def _begun(self, order: StepOrder[Request] | None) -> list[Request]:
        """The prompts that the step goes on with, in order."""
        if order is None:
            return list(self._prefilling)
        return [*(request for request in self._prefilling if request.made), *order.running]

    def _next(self, order: StepOrder[Request] | None) -> Iterator[Request]:
        """Who is to be admitted, one after the other; each is, before the next is asked for."""
        if order is not None:
            yield from [*self._resuming, *order.joining]
            return
        while self.waiting:
            yield self.waiting.first(1)[0]

    def _serve(
        self,
        prompts: Iterable[Request],
        chunks: dict[Request, int],
        preempted: list[Request],
        order: StepOrder[Request] | None,
        *,
        tokens: int,
        cap: int,
    ) -> int:
        """Tokens of the step for prompts that have begun, and blocks, for which some are `preempted`; what is left."""
        left = tokens - (self._drafts + 1) * len(self._decodes) - sum(chunks.values())
        for request in prompts:
            served = min(request.target - request.computed, cap, left) if request.running else 0
            if served <= 0:
                continue
            chunks[request] = served
            preempted += self._make_room(chunks, order)
            if request not in chunks:
                break
            # Whoever was to be served and lost its place for this one leaves its tokens to the next.
            left = tokens - (self._drafts + 1) * len(self._decodes) - sum(chunks.values())
        return left

    def _make_room(self, chunks: dict[Request, int], order: StepOrder[Request] | None) -> list[Request]:
        """Preempt the last until every running request has its blocks; those that were."""
        preempted: list[Request] = []
        while not self._fit(1, self._prefill_blocks(chunks)) and len(self.running) > 1:
            victim = self._victim(order)
            chunks.pop(victim, None)
            self._preempt(victim)
            preempted.append(victim)
        return preempted

    def _admit(
        self, chunks: dict[Request, int], candidates: Iterator[Request], *, active: int, cap: int, budget: int
    ) -> tuple[list[Request], int]:
        """Admit who comes next, as long as there is room; those that were, and the tokens that are left."""
        held, admitted = -1, list[Request]()
        while budget > 0 and len(self.running) < active and (request := next(candidates, None)) is not None:
            hit = self.prefixes.hit(request)
            # The whole prompt must have room, though only the first chunk takes it now.
            held = self._prefill_blocks(chunks) if held < 0 else held
            revived = self.prefixes.revived(request)
            if not self._fit(1, held + blocks(request.target - hit) + revived):
                break
            self.waiting.remove(request)
            self._resuming.pop(request, None)
            self.prefixes.use(request, hit)
            if request.cached is None:
                request.cached = hit
            tokens = min(request.target - hit, cap, budget)
            request.computed, request.found, request.running = hit, hit, True
            self.running[request] = None
            self._prefilling[request] = None
            chunks[request] = tokens
            budget -= tokens
            held += blocks(tokens)
            admitted.append(request)
        return admitted, budget

    def _fit(self, steps: int, others: int) -> bool:
        """Whether the decodes have blocks for so many steps more, beside `others`.

        A block more for each than its tokens fill is enough; only near the brim are blocks counted.
        """
        room = self.capacity - self.prefixes.used - others
        decodes = len(self._decodes)
        bound = (self._own + steps * self._pace + self._drafts * decodes) / BLOCK_TOKENS + decodes
        return bound <= room or self._decode_blocks(steps) <= room

    def _decode_blocks(self, steps: int) -> int:
        until, drafts = self.steps + steps, self._drafts
        return sum(
            blocks(request.target - request.shared + request.pace * (until - request.joined) + drafts)
            for request in self._decodes
        )

    def _prefill_blocks(self, chunks: dict[Request, int]) -> int:
        return sum(blocks(request.computed - request.shared + chunks.get(request, 0)) for request in self._prefilling)

    def _spare(self) -> None:
        """Unused prefixes give way to what requests hold."""
        if self.prefixes.spare and not self._fit(0, self._prefill_blocks({}) + self.prefixes.spare):
            self.prefixes.shrink(self.capacity - self.used_blocks())

    def _victim(self, order: StepOrder[Request] | None) -> Request:
        if self._by_priority:
            return max(self.running, key=lambda request: (request.priority, request.arrival, request.number))
        if order is not None:
            last = next((one for one in (*order.parked[::-1], *order.running[::-1]) if one.running), None)
            if last is not None:
                return last
        return next(reversed(self._prefilling or self._decodes))

    def _preempt(self, victim: Request) -> None:
        self._drop(victim)
        victim.preemptions += 1
        victim.computed, victim.target = 0, victim.prompt + victim.made
        self.preemptions += 1
        self.waiting.push(victim)
        if victim.made:
            self._resuming[victim] = None

    def _join(self, request: Request) -> bool:
        """A prompt is complete and makes its first token, or after a preemption its next; whether that was the last."""
        request.made += 1
        request.deliveries += 1
        if request.output <= request.made:
            self.prefixes.release(request)
            del self.running[request]
            request.running = False
            return True
        self._decodes[request] = None
        self._set_pace(request)
        return False

    def _set_pace(self, request: Request) -> None:
        """From this step on a decode makes its remaining tokens at the pace that its drafts allow."""
        remaining = request.output - request.made
        steps = self._decode_steps(remaining, self._drafts) if self._decode_steps else remaining
        # A multiple of 2**-20, so that sums of it are exact in whatever order they are taken.
        request.pace = int(remaining / steps * 2**20) / 2**20
        request.joined = self.steps
        request.ends = self.steps + steps
        heapq.heappush(self._ends, (request.ends, request.number, request))
        self._context += request.target
        self._own += request.target - request.shared
        self._pace += request.pace

    def _ended(self) -> Iterator[Request]:
        while self._ends and self._ends[0][0] <= self.steps:
            ends, _, request = heapq.heappop(self._ends)
            if request.ends == ends:
                self._drop(request)
                request.made = request.output
                yield request

    def _drop(self, request: Request) -> None:
        """A running request runs no more."""
        del self.running[request]
        request.running = False
        if request in self._decodes:
            del self._decodes[request]
            steps = self.steps - request.joined
            grown = request.pace * steps
            request.made = request.made_at(self.steps)
            request.deliveries += steps
            request.ends = -1
            self._context -= request.target + grown
            self._own -= request.target - request.shared + grown
            self._pace -= request.pace
        else:
            del self._prefilling[request]
        self.prefixes.release(request)


def remaining(request: Request) -> int:
    """Tokens of its prompt that are still to be processed, as if no prefix were cached."""
    return request.target - request.computed
