"""Who may have prompt tokens in the next step under the on-time order, in the order of service.

Those that have begun may, those that go on after a preemption, and of those that wait as many as slots, memory and
tokens last for. Who could not join lately is passed over for some steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from flyball_engine.batching.on_time import OnTimeOrder
from flyball_engine.batching.pending import Pending
from flyball_engine.batching.prefill_rate import PrefillRate
from flyball_engine.vllm.queue import WaitingQueues
from flyball_engine.vllm.scheduler_adapter import CachedTokens, SchedulerAdapter, computed_tokens

#: Waiting requests that are looked at before a step: more short prompts than that join in one step too seldom to pay.
LOOKED_AT: Final = 64
#: Steps for which one that could not join is passed over: adapters, encoders and grammars take some.
_PASSED_OVER: Final = 16


class Candidates:
    """Finds them for one scheduler. Everything here runs on the core's own thread, between steps.

    `full`: whether slots or memory kept somebody from joining. `resuming`: those preempted after their first token, in
    vLLM's order: who was preempted last stands first.
    """

    def __init__(
        self,
        scheduler: Any,
        adapter: SchedulerAdapter,
        queues: WaitingQueues,
        order: OnTimeOrder[Any],
        *,
        cached: CachedTokens | None,
    ) -> None:
        """`cached`: what knows the prefix cache, None if nobody does."""
        self._scheduler = scheduler
        self._adapter = adapter
        self._queues = queues
        self._order = order
        self._cached = cached
        self.full = False
        self.resuming: dict[Any, None] = {}
        self._passed_over: dict[Any, int] = {}
        self._step = 0

    def clear(self) -> None:
        """Nobody is ordered any more."""
        self.resuming.clear()
        self._passed_over.clear()

    def gone(self, request: Any) -> None:
        """A request ended."""
        self.resuming.pop(request, None)
        self._passed_over.pop(request, None)

    def left(self, request: Any) -> tuple[float, float]:
        """Tokens and attention that its prompt still takes, without what the prefix cache holds."""
        computed = computed_tokens(request, self._cached)
        # Of what was found whole, vLLM computes the last token.
        tokens = max(1, request.num_tokens - computed)
        return tokens, tokens * (computed + tokens / 2)

    def as_pending(self, request: Any) -> Pending[Any]:
        """One that has its first token, as if it were a prompt again."""
        tokens, attention = self.left(request)
        return Pending(request, number=0, arrived=0.0, deadline=0.0, tokens=tokens, attention=attention, weight=1.0)

    def note_preempted(self) -> Mapping[Any, None]:
        """Find who was preempted since: vLLM puts them before all that wait. Those that resume, newly so."""
        found: dict[Any, None] = {}
        for request in self._scheduler.waiting:
            if request.status.name != "PREEMPTED":
                break
            pending = self._order.get(request)
            if pending is None and request not in self.resuming:
                found[request] = None
            elif pending is not None and pending.begun:
                pending.begun = False
                pending.tokens, pending.attention = self.left(request)
        if found:
            self.resuming = found | self.resuming
        return found

    def find(
        self,
        resumed: Sequence[Pending[Any]],
        begun: Sequence[Pending[Any]],
        *,
        slots: int,
        tokens: int,
        reach: float,
        decode_tokens: int,
        rate: PrefillRate | None,
    ) -> list[Pending[Any]]:
        """Those that have begun and those that may join, in order, until the prompt `tokens` are spoken for.

        `resumed`: of those that have begun, who went on after a preemption. `slots`: requests that may join. `reach`:
        prompt tokens that fit into the step's time at most: where memory is not short, nobody beyond is looked at.
        `rate`: of prompts, where it keeps some of those behind from joining.
        """
        adapter, order = self._adapter, self._order
        free = (1.0 - adapter.kv_cache_usage) * adapter.kv_cache_tokens - decode_tokens
        resuming, free, slots = self._that_resume(free, slots)
        found = [*resumed, *resuming]
        tokens -= sum([int(one.tokens) for one in found])
        known, passed_over, block = self._scheduler.requests, self._passed_over, adapter.block_tokens
        running, defers, looked = {one.request: one for one in begun}, self._queues.defers, 0
        if tokens <= 0 or slots <= 0:
            return [*found, *begun]
        # Where memory may be short, it is to be seen whether it keeps somebody from joining.
        roomy = free >= tokens + adapter.sizes.max_model_len + LOOKED_AT * block
        reach = reach if roomy else math.inf
        for one in order.in_order() if rate is None else order.candidates(rate, LOOKED_AT):
            if one.begun:
                # It was aborted since the last step.
                if running.pop(one.request, None) is None:
                    continue
            else:
                if looked >= LOOKED_AT:
                    break
                looked += 1
                request = one.request
                # Most can: what is asked of each is asked in place.
                if (
                    request.request_id not in known
                    or (passed_over and self._is_passed_over(request))
                    or ((defers or request.num_preemptions) and not self._queues.could_join(request))
                ):
                    continue
                one.tokens, one.attention = self.left(request)
                if (need := one.tokens + block) > free:
                    self.full = True
                    # Where it was passed over often enough, what comes free is its.
                    if one is order.owed and order.owes_all:
                        break
                    continue
                free -= need
                slots -= 1
                # One that has begun and comes after one that joins may leave it its tokens.
                reach -= one.tokens
            tokens -= int(one.tokens)
            found.append(one)
            if tokens <= 0 or slots <= 0 or reach < 0:
                break
        return [*found, *running.values()]

    def planned(self, joining: Sequence[Any], joined: Sequence[Any], *, had_room: bool) -> None:
        """A step was planned in which these were to join, and these did; it `had_room` for more.

        Where it had, the first that was to join and did not, could not.
        """
        self._step += 1
        if not had_room:
            return
        there = set(joined)
        missing = next((request for request in joining if request not in there), None)
        # A pause and ranks that wait for each other keep back whoever it is.
        kept = self._adapter.paused or self._adapter.defers_prefills
        if missing is not None and not kept and missing.request_id in self._scheduler.requests:
            self._passed_over[missing] = self._step + _PASSED_OVER

    def _that_resume(self, free: float, slots: int) -> tuple[list[Pending[Any]], float, int]:
        """Those that go on after a preemption, of so many `free` tokens of KV; and the tokens and slots they leave.

        Who lost the memory it had comes before whoever had none: where it cannot go on yet, no slot is left.
        """
        self.full = slots <= 0
        found = []
        for request in self.resuming:
            if request.request_id not in self._scheduler.requests or not self._queues.could_join(request):
                continue
            one = self.as_pending(request)
            free -= one.tokens + self._adapter.block_tokens
            if free < 0 or slots <= 0 or self._is_passed_over(request):
                self.full, slots = True, 0
                break
            slots -= 1
            found.append(one)
        return found, free, slots

    def _is_passed_over(self, request: Any) -> bool:
        until = self._passed_over.get(request)
        if until is None:
            return False
        if self._step < until:
            return True
        del self._passed_over[request]
        return False
