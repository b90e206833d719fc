"""The waiting queues of vLLM's scheduler, as far as admission reads and reorders them.

vLLM takes requests from the front of its queue until the active limit is reached. So a limit of what runs plus `k`, and
`k` requests brought to the front, admits exactly these. Requests never leave the queues here, and only the queues' own
operations move them: an engine core sleeps for ever over work that it does not see.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import compress, count, islice
from operator import is_
from typing import Any, Final

from flyball_engine.contract import AnyKnob, BatchingKnob, SchedulingPolicy
from flyball_engine.vllm.kv_transfer import loads_prompts

_NEEDED: Final = (
    "deferred_waiting",
    "kv_holding_waiting",
    "num_waiting_for_streaming_input",
    "policy",
    "_handle_blocked_waiting_request",
)
#: Why nobody is chosen where prompts are loaded.
LOADS_IN_ITS_ORDER: Final = "with a KV connector vLLM starts loading whatever waits, in an order of its own"
#: The same where their encoder's output is.
PASSES_OVER_TRANSIT: Final = "with an encoder cache connector vLLM passes over requests in transit"
#: What admits chosen requests, not only a number of them.
_CHOOSING: Final = (
    BatchingKnob.STATIC,
    BatchingKnob.DYNAMIC,
    BatchingKnob.BUCKETED,
    BatchingKnob.ADMISSION_DELAY_SECONDS,
    BatchingKnob.NO_EVICT,
)


class WaitingQueues:
    """What waits in one scheduler. Everything here runs on the core's own thread, between steps."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._module = sys.modules.get(type(scheduler.waiting).__module__)
        self.unsupported = _unsupported(scheduler, self._module)
        self.start_policy = (
            SchedulingPolicy(scheduler.policy.value) if hasattr(scheduler, "policy") else SchedulingPolicy.FCFS
        )
        self._policy = self.start_policy
        self._rearranged = False
        # How many stood before those that were put first last.
        self._before = 0

    @property
    def policy(self) -> SchedulingPolicy:
        """The order the queue is served in."""
        return self._policy

    @property
    def holding_slots(self) -> int:
        """Requests that hold a slot without running: streaming sessions that wait for input."""
        return int(getattr(self._scheduler, "num_waiting_for_streaming_input", 0))

    def preempted(self) -> list[Any]:
        """The requests in the queue that ran before."""
        return [request for request in self._scheduler.waiting if request.num_preemptions]

    def can_resume(self, request: Any) -> bool:
        """Whether vLLM would take this preempted one now: not while a step in flight may still deliver its token."""
        return not (getattr(request, "num_stale_output_tokens", 0) and not request.drop_stale_output)

    def holding_cache(self) -> list[Any]:
        """Requests that hold KV cache and could go on now: sessions with new input, which vLLM serves first."""
        # vLLM before 0.32 has them among those that wait.
        holding = getattr(self._scheduler, "kv_holding_waiting", ())
        return [request for request in holding if self.could_start(request)]

    def fresh(self) -> Iterator[Any]:
        """The requests that never ran and could start now, in the order of service."""
        for request in self._in_order():
            if not request.num_preemptions and self.could_start(request):
                yield request

    def could_start(self, request: Any) -> bool:
        """Whether it waits for room alone."""
        scheduler = self._scheduler
        if request not in getattr(scheduler, "deferred_waiting", ()):
            return True
        # vLLM looks at a deferred one only when it stands at the front, where it may never get. This is that look.
        return bool(scheduler._handle_blocked_waiting_request(request))  # noqa: SLF001 – see above

    @property
    def defers(self) -> bool:
        """Whether some of those that wait lack something else than room."""
        return bool(getattr(self._scheduler, "deferred_waiting", ()))

    def could_join(self, request: Any) -> bool:
        """Whether it waits for room alone, and no step in flight may still deliver its token."""
        deferred = getattr(self._scheduler, "deferred_waiting", ())
        return (not deferred or self.could_start(request)) and self.can_resume(request)

    def bring_forward(self, requests: Sequence[Any]) -> None:
        """Put these at the front of the queue, in this order; the others keep theirs."""
        waiting = self._scheduler.waiting
        if self._sorts_itself(waiting):
            waiting = self._scheduler.waiting = self._filled(SchedulingPolicy.FCFS)
        elif all(ahead is request for ahead, request in zip(islice(waiting, len(requests)), requests, strict=True)):
            return
        self._rearranged = True
        waiting.remove_requests(requests)
        # vLLM's own: they are prepended one after the other, so the last comes to stand first.
        waiting.prepend_requests(reversed(requests))

    def put_first(self, requests: Sequence[Any]) -> None:
        """Put these at the front of a queue in order of arrival; those that are not in it are left where they are.

        One pass finds them all, and turns the queue to each in turn: a search for each would look at all before it. It
        begins where the last ones stood: those before them, who are served behind, are seldom asked for.
        """
        waiting = self._scheduler.waiting
        if all(map(is_, waiting, requests)):
            return
        wanted, length = set(requests), len(waiting)
        before = self._before if self._before < length else 0
        waiting.rotate(-before)
        places = list(islice(compress(count(), map(wanted.__contains__, waiting)), len(wanted)))
        found, passed = [], 0
        for taken, place in enumerate(places):
            if turn := passed + taken - place:
                waiting.rotate(turn)
                passed -= turn
            found.append(waiting.popleft())
        if places:
            before -= len(places) - bisect_left(places, length - before)
            self._before = (before + places[0]) % max(1, len(waiting))
        self._rearranged = True
        waiting.rotate(passed + before)
        if len(found) < len(requests):
            there = set(found)
            requests = [request for request in requests if request in there]
        waiting.extendleft(reversed(requests))

    def restore(self) -> None:
        """Undo what was brought forward."""
        if BatchingKnob.POLICY not in self.unsupported:
            self.follow(self._policy)

    def follow(self, policy: SchedulingPolicy | None) -> None:
        """Serve in the order of `policy` from now on, None is the start policy; undoes what was brought forward."""
        wanted = self.start_policy if policy is None else policy
        if wanted is self._policy and not self._rearranged:
            return
        scheduler = self._scheduler
        scheduler.waiting = self._filled(wanted)
        if wanted is not self._policy:
            holding = self._new(wanted)
            for request in sorted(scheduler.kv_holding_waiting, key=_by_arrival):
                holding.add_request(request)
            scheduler.kv_holding_waiting = holding
            scheduler.policy = self._module.SchedulingPolicy(wanted.value)  # type: ignore[union-attr] # unsupported if None
        self._policy, self._rearranged = wanted, False

    def _in_order(self) -> list[Any]:
        waiting = self._scheduler.waiting
        # Brought forward once, a queue by priority is kept in order of arrival: see `bring_forward`.
        if self._policy is SchedulingPolicy.PRIORITY and not self._sorts_itself(waiting):
            return sorted(waiting)
        return list(waiting)

    def _sorts_itself(self, waiting: Any) -> bool:
        return not hasattr(waiting, "appendleft")

    def _filled(self, policy: SchedulingPolicy) -> Any:
        """A new queue with all that waits; where order is of arrival, what ran before comes first, as vLLM has it."""
        queue = self._new(policy)
        for request in sorted(self._scheduler.waiting, key=lambda one: (not one.num_preemptions, one.arrival_time)):
            queue.add_request(request)
        return queue

    def _new(self, policy: SchedulingPolicy) -> Any:
        module: Any = self._module
        return module.create_request_queue(module.SchedulingPolicy(policy.value))


def _by_arrival(request: Any) -> Any:
    return request.arrival_time


def _unsupported(scheduler: Any, module: Any) -> dict[AnyKnob, str]:
    """What this scheduler's queues do not allow. A limit on prefills needs none of them."""
    missing = [name for name in _NEEDED if not hasattr(scheduler, name)]
    if missing or not hasattr(module, "create_request_queue"):
        lacks = ", ".join(missing) or "way to make a queue"
        return dict.fromkeys((*_CHOOSING, BatchingKnob.POLICY), f"this vLLM's scheduler has no {lacks}")
    if loads_prompts(getattr(scheduler, "vllm_config", None)):
        return dict.fromkeys(_CHOOSING, LOADS_IN_ITS_ORDER)
    for attribute, reason in (
        ("ec_connector", PASSES_OVER_TRANSIT),
        ("lora_config", "with LoRA vLLM passes over requests whose adapter has no slot"),
    ):
        if getattr(scheduler, attribute, None) is not None:
            return dict.fromkeys(_CHOOSING, reason)
    if getattr(scheduler, "connector", None) is not None:
        # It is none of those that the promise counts.
        return {BatchingKnob.NO_EVICT: "with a KV connector prompts keep memory until another engine has read them"}
    return {}
