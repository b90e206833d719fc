"""Which requests vLLM may admit in the next step: the strategies of `batching.strategies` on vLLM's queues.

vLLM's own admission gate does it. Before each step the active limit is set to what runs plus how many may join. Those
that may join are brought to the front of the queue. While a batch gathers and nothing runs the gate is at 0. vLLM then
looks again every millisecond, as while it waits for a grammar, and sees new requests at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final

from flyball_engine.batching.output_lengths import OutputLengths, tokens_to_end
from flyball_engine.batching.strategies import SchedulerState, Waiting, decide
from flyball_engine.contract import AnyKnob, Batching, BatchingKnob, SchedulingPolicy, StrategyType
from flyball_engine.vllm.queue import WaitingQueues
from flyball_engine.vllm.scheduler_adapter import SchedulerAdapter

_OWN_WAY: Final = Batching()
_ENDED_BY_ITSELF: Final = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")


class Admission:
    """Holds one scheduler to a strategy. Everything here runs on the core's own thread, between steps.

    `queues`: what waits there. `holds`: whether requests are admitted in another way than vLLM's own.
    """

    def __init__(self, scheduler: Any, adapter: SchedulerAdapter, *, arrived: Callable[[str], float | None]) -> None:
        """`arrived`: when a request entered the queue, by its name."""
        self._arrived = arrived
        self._adapter = adapter
        self.queues = WaitingQueues(scheduler)
        self.unsupported: dict[AnyKnob, str] = (
            dict.fromkeys(BatchingKnob, reason) if (reason := adapter.ungoverned) else self.queues.unsupported
        )
        self._batching = _OWN_WAY
        self.holds = False
        self._called: tuple[str, ...] = ()
        self._held_until: float | None = None
        self._lengths = OutputLengths()
        self._open_ended: dict[str, Any] = {}

    @property
    def strategy(self) -> StrategyType:
        """The strategy in force."""
        strategy = self._batching.strategy
        return StrategyType.CONTINUOUS if strategy is None else StrategyType(strategy.type)

    @property
    def policy(self) -> SchedulingPolicy:
        """The order of the queue in force."""
        return self.queues.policy

    def use(self, batching: Batching) -> None:
        """Admit like this from the next step on. An engine that cannot goes on in vLLM's own way."""
        if any(knob in self.unsupported for knob in batching.given()):
            batching = _OWN_WAY
        if batching == self._batching:
            return
        self._batching, self._called, self._held_until = batching, (), None
        self.holds = batching != _OWN_WAY
        if BatchingKnob.POLICY not in self.unsupported:
            self.queues.follow(batching.policy)

    def limit(self, *, active: int, prefilling: int, now: float) -> int:
        """How many may run in the coming step, of the `active` limit; brings forward who may join."""
        running, holding = len(self._adapter.running), self.queues.holding_slots
        slots = active - running - holding
        if not self._batching.holds_back:
            state = SchedulerState(now=now, queue=(), running=running, slots=slots, prefilling=prefilling)
            return min(active, running + holding + decide(self._batching, (), state).most)
        preempted, first = self.queues.preempted(), self.queues.holding_cache()
        resuming = [request for request in preempted if self.queues.can_resume(request)]
        shown: dict[str, Any] = {}
        state = SchedulerState(
            now=now,
            queue=self._shown(shown, now),
            running=running + len(preempted) - len(resuming),
            slots=slots,
            resuming=len(first) + len(resuming),
            prefilling=prefilling,
            kv_free=self._kv_free((*self._adapter.running, *preempted, *first)),
        )
        decision = decide(self._batching, self._called, state)
        self._called, self._held_until = decision.called, decision.held_until
        if decision.most:
            self.queues.bring_forward([*resuming, *(shown[name] for name in decision.admit or ())])
        return min(active, running + holding + decision.most)

    def gathers(self, now: float) -> bool:
        """Whether those that wait are kept back by intent, and not for longer than was asked for."""
        return self._held_until is not None and now <= self._held_until

    def joined(self, requests: Iterable[Any]) -> None:
        """These were admitted in the step just planned."""
        if BatchingKnob.NO_EVICT not in self.unsupported:
            longest = self._adapter.sizes.max_model_len
            for request in requests:
                if request.num_prompt_tokens + request.max_tokens >= longest:
                    self._open_ended[request.request_id] = request

    def ended(self, names: Collection[str]) -> None:
        """These are gone: learn from those that ended by themselves."""
        if not self._open_ended:
            return
        for name in names:
            request = self._open_ended.pop(name, None)
            if request is not None and request.status.name in _ENDED_BY_ITSELF:
                self._lengths.ended(request.num_output_tokens)

    def _shown(self, shown: dict[str, Any], now: float) -> Iterator[Waiting]:
        evicts = self._batching.no_evict is None
        for request in self.queues.fresh():
            shown[request.request_id] = request
            yield Waiting(
                name=request.request_id,
                arrived=now if (arrived := self._arrived(request.request_id)) is None else arrived,
                prompt_tokens=request.num_prompt_tokens,
                kv_tokens=0 if evicts else self._to_end(request),
            )

    def _kv_free(self, holding: Iterable[Any]) -> int:
        if self._batching.no_evict is None:
            return 0
        # One block is never anyone's.
        return self._adapter.kv_cache_tokens - self._adapter.block_tokens - sum(map(self._to_end, holding))

    def _to_end(self, request: Any) -> int:
        """KV tokens of a request at its end, in whole blocks, with the room of its last step's drafts."""
        promise, sizes, block = self._batching.no_evict, self._adapter.sizes, self._adapter.block_tokens
        tokens = tokens_to_end(
            prompt=request.num_prompt_tokens,
            produced=request.num_output_tokens,
            most=self._most(request),
            expected=self._lengths.quantile(promise.quantile) if promise else None,
            model_length=sizes.max_model_len,
        )
        return -(-(tokens + sizes.tokens_per_decode) // block) * block

    def _most(self, request: Any) -> int | None:
        """Output tokens the request named; None if none: vLLM then fills in what the model's length leaves."""
        named: int = request.max_tokens
        return named if request.num_prompt_tokens + named < self._adapter.sizes.max_model_len else None
