"""The on-time order on vLLM's scheduler: which prompts a step serves, and in which order.

vLLM serves `running` from its front and then admits from the front of `waiting`. So before a step both are put in the
order of `batching.on_time`: decodes first, then the prompts that have begun, and the next to join at the front of
`waiting`. A prompt that has begun and comes after one that joins is taken out of `running` for the step, and put back
behind it right after. It keeps its KV blocks, and its slot is withheld from admission. What stands last in `running` is
what vLLM preempts first: a prompt that is late.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from flyball_engine.batching.classes import Terms, prefill_shares, terms
from flyball_engine.batching.on_time import OnTimeOrder
from flyball_engine.batching.pending import Pending
from flyball_engine.batching.prefill_rate import PrefillRate, SlotTurnover, holds_back
from flyball_engine.batching.setpoint_enforcer import RequestedLimits, RunningBatch
from flyball_engine.batching.step_order import StepOrder, step_order
from flyball_engine.batching.step_token_budgeter import Prompt, Queue
from flyball_engine.contract import DEFAULT_CLASS, AnyKnob, Classes, Knob, OnTime, OrderKnob, SchedulingPolicy
from flyball_engine.control.state_file import Slot
from flyball_engine.vllm.candidates import LOOKED_AT, Candidates
from flyball_engine.vllm.compat import ORDERING, lacking
from flyball_engine.vllm.kv_transfer import is_loaded, loads_prompts
from flyball_engine.vllm.queue import LOADS_IN_ITS_ORDER, PASSES_OVER_TRANSIT, WaitingQueues
from flyball_engine.vllm.refusal import class_in, told_of
from flyball_engine.vllm.scheduler_adapter import CachedTokens, SchedulerAdapter

#: Waiting requests whose cached blocks are looked up anew before a step: some 5 µs each.
_LOOKED_UP: Final = 2
#: Seconds that the API server may have had a request before the core; more is another clock than ours.
_LONGEST_AGE: Final = 3_600.0
#: Seconds that we may be held up between reading our clock and that of arrivals; more is a clock that was set.
_HELD_UP: Final = 0.05
#: No cap on the tokens of one prompt can be set.
_NO_CAP: Final = 2**31


class PromptOrder:
    """Keeps one scheduler's prompts in order. Everything here runs on the core's own thread, between steps.

    Of the step just planned: `first` is the prompt that was to be served first of those that had begun, None if none
    was, and `parks` is whether some waited.
    """

    def __init__(
        self,
        scheduler: Any,
        adapter: SchedulerAdapter,
        queues: WaitingQueues,
        *,
        cached: CachedTokens | None,
        refusable: Callable[[Any], bool] = lambda _: False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`cached`: what knows the prefix cache, None if nobody does. `wall`: the clock of arrivals.

        `refusable`: whether a request may be refused yet.
        """
        self._scheduler = scheduler
        self._adapter = adapter
        self._queues = queues
        self._refusable = refusable
        self._wall = wall
        #: What our clock shows over that of arrivals, in seconds.
        self._apart = -math.inf
        reason = adapter.ungoverned or _unsupported(scheduler, queues)
        self.unsupported: dict[AnyKnob, str] = {} if reason is None else {OrderKnob.ON_TIME: reason}
        self.first: Any = None
        self.parks = False
        self._on_time: OnTime | None = None
        self._classes: Classes | None = None
        self._terms: dict[str, Terms] = {}
        self._order: OnTimeOrder[Any] = OnTimeOrder(late_share=0.0)
        self._candidates = Candidates(scheduler, adapter, queues, self._order, cached=cached)
        self._turnover = SlotTurnover()
        # Those in the order and those that resume, by the names by which they end.
        self._named: dict[str, Any] = {}
        self._starting: dict[int, list[Pending[Any]]] = {}
        self._round: Iterator[Any] = iter(())
        self._looked = float("-inf")
        self._slots = 0
        # Whether the last step was planned with a rate of prompts, so that their waits are foreseen.
        self._foresees = False
        # The rate of prompts, where it keeps some of those behind from joining.
        self._rate: PrefillRate | None = None
        self._begun: list[Pending[Any]] = []
        self._next: list[Pending[Any]] = []
        self._joining: tuple[Any, ...] = ()
        self._parked: Sequence[Any] = ()

    @property
    def holds(self) -> bool:
        """Whether prompts are served in another order than vLLM's."""
        return self._on_time is not None

    def use(self, on_time: OnTime | None, now: float, classes: Classes | None = None) -> None:
        """Serve in this order from the next step on, with these classes of requests; None is vLLM's own."""
        if self.unsupported:
            on_time = None
        before, self._on_time = (self._on_time, self._classes), on_time
        self._classes = classes
        if (on_time, classes) == before or (on_time is None and before[0] is None):
            return
        if on_time is None:
            self.parks = False
            self._queues.restore()
            self._order.clear()
            self._candidates.clear()
            self._named.clear()
            self._starting.clear()
            return
        names = (DEFAULT_CLASS, *(() if classes is None else classes.names))
        self._terms = {name: terms(on_time, classes, name) for name in names}
        self._order.keep(on_time.late_share, prefill_shares(classes))
        if before[0] is not None:
            self._order.redate(self._due)
            return
        self._looked = now
        for request in (*self._adapter.prefilling(len(self._adapter.running)), *self._scheduler.waiting):
            self.received(request, now, told_of(request))

    def received(self, request: Any, now: float, told: Mapping[str, Any] | None) -> None:
        """A request came in, of which we were `told` this by its API server.

        What continues a session, or was preempted after its first token, is no prompt of ours.
        """
        if self._on_time is None or self._scheduler.requests.get(request.request_id) is not request:
            return
        if request.num_output_tokens:
            return
        arrived = self._arrived(request.arrival_time, now)
        tokens, attention = self._candidates.left(request)
        of_class = class_in(told)
        promised = self._terms.get(of_class) or self._terms[DEFAULT_CLASS]
        self._order.add(
            request,
            arrived=arrived,
            deadline=arrived + promised.seconds,
            tokens=tokens,
            attention=attention,
            weight=promised.weight,
            of_class=of_class,
            refusable=bool(told) and self._refusable(request),
        )
        self._named[request.request_id] = request

    def _arrived(self, arrival: float, now: float) -> float:
        """When a request arrived, by our clock. Core and API server are of one pod, so of one clock.

        The two clocks are read one after the other. Held up in between we would take a request for an older one, and it
        would overtake others. So of differences that are alike the largest counts.
        """
        apart = now - self._wall()
        if not 0.0 <= self._apart - apart <= _HELD_UP:
            self._apart = apart
        arrived = arrival + self._apart
        # An age it cannot have is of a clock that was set.
        return min(now, arrived) if -_HELD_UP <= now - arrived <= _LONGEST_AGE else now

    def stays(self, request: Any) -> None:
        """A request is served in any case from now on."""
        self._order.stays(request)

    def gone(self, name: str) -> None:
        """A request ended, whatever of it was served."""
        if (request := self._named.pop(name, None)) is None:
            return
        self._order.discard(request)
        self._candidates.gone(request)

    def decodes_first(self, prefilling: Sequence[Any]) -> None:
        """Put the prompts that have begun behind the decodes: vLLM gives the first of `running` all it can take."""
        running, prompts = self._scheduler.running, len(prefilling)
        if prompts and running[-prompts:] != prefilling:
            running[:] = [*(request for request in running if not request.is_prefill_chunk), *prefilling]

    def look(
        self,
        batch: RunningBatch,
        prefilling: Sequence[Any],
        *,
        limits: RequestedLimits,
        rate: PrefillRate | None,
        reach: float,
        kv_tokens: float,
        refuses: bool,
        now: float,
    ) -> Queue:
        """Who may have prompt tokens in the next step, in order.

        `limits`: those that hold. `rate`: of prompts beside the decodes, which read `kv_tokens` of the KV cache.
        `reach`: prompt tokens that fit into its time at most. `refuses`: whether requests are refused that may be.
        """
        order, sizes = self._order, self._adapter.sizes
        order.refuses = refuses
        self._slots = limits.active - len(self._adapter.running) - self._queues.holding_slots
        for request in self._candidates.note_preempted():
            self._named[request.request_id] = request
        resumed, begun = [], []
        for request in prefilling:
            pending = order.get(request)
            if pending is None:
                resumed.append(self._candidates.as_pending(request))
                continue
            pending.tokens, pending.attention = self._candidates.left(request)
            pending.begun = True
            begun.append(pending)
        decode_tokens = batch.decodes * self._adapter.tokens_per_decode
        self._foresees = rate is not None
        if rate is not None:
            slots = 0 if self._candidates.full else max(0, self._slots)
            order.judge(rate._replace(free_slots=slots, per_slot=self._turnover.per_slot), now)
        # Without a decode nothing but those behind may be there to be served.
        self._rate = rate if rate is not None and batch.decodes and holds_back(rate) else None
        self._look_up_some()
        owed = order.owed
        begun.sort(key=lambda one: (one is not owed, *one.rank()))
        self._begun = [*resumed, *begun]
        self._next = self._candidates.find(
            resumed,
            begun,
            slots=self._slots,
            tokens=limits.tokens - decode_tokens,
            reach=reach,
            decode_tokens=decode_tokens,
            rate=self._rate,
        )
        return Queue(
            decodes=batch.decodes,
            tokens_per_decode=self._adapter.tokens_per_decode,
            waiting=[_prompt(one) for one in self._next],
            # What is not to join may join all the same, where it stands next.
            more=self._adapter.waiting() > 0,
            indivisible=sizes.indivisible,
            kv_tokens=kv_tokens,
        )

    def arrange(self, *, tokens: int, decodes: int) -> tuple[int, int]:
        """Put both of vLLM's lists in order for a step of so many prompt tokens.

        Returns the slots to be withheld from admission, and the cap on the tokens of one prompt, 0 for none.
        """
        adapter, sizes = self._adapter, self._adapter.sizes
        # A cap below what cannot be split would stop it.
        caps = Knob.LONG_PREFILL_TOKEN_THRESHOLD not in adapter.unsupported and not sizes.indivisible
        plan = step_order(
            self._next,
            [one.request for one in self._begun],
            tokens=tokens,
            slots=self._slots,
            most=LOOKED_AT,
            least_cap=sizes.least_chunk if caps else _NO_CAP,
        )
        if plan.parked and not self._may_park(plan, decodes=decodes):
            plan = StepOrder((*plan.running, *plan.parked), (), plan.joining)
        running, prompts = self._scheduler.running, len(self._begun)
        if prompts:
            running[-prompts:] = plan.running
        self.first = next(iter(plan.running), None)
        self._joining, self._parked, self.parks = plan.joining, plan.parked, bool(plan.parked)
        resuming = [request for request in self._candidates.resuming if request not in plan.joining]
        self._queues.put_first([*plan.joining, *resuming] or self._kept_waiting())
        withheld = len(plan.parked)
        if self._rate is not None and not self._queues.holding_cache():
            # vLLM would go on admitting from the queue, where those behind are next.
            withheld += max(0, self._slots - len(plan.joining))
        return withheld, plan.threshold

    def restore(self) -> None:
        """Put back behind the others who was taken out for a step."""
        if self._parked:
            self._scheduler.running.extend(self._parked)
            self._parked = ()

    def planned(
        self, output: Any, served: Sequence[tuple[Any, int]], joined: Sequence[Any], *, room: int, lost: int, now: float
    ) -> None:
        """A step was planned that serves prompts so many tokens each, and which these requests `joined`.

        It had `room` for so many tokens; so many `lost` their places for it.
        """
        self._note_served(output, served, room=room, now=now)
        if self._candidates.full:
            self._turnover.observe(now - self._looked, len(output.finished_req_ids))
        self._looked = now
        # In a step that preempts vLLM admits nobody.
        had_room = output.total_num_scheduled_tokens < room and lost <= 0
        self._candidates.planned(self._joining, joined, had_room=had_room)

    def _note_served(self, output: Any, served: Sequence[tuple[Any, int]], *, room: int, now: float) -> None:
        """What a step has of prompts, and whose first token comes with it."""
        order, resuming, starting = self._order, self._candidates.resuming, []
        tokens, behind = 0, dict[str, int]()
        for request, processed in served:
            if resuming and request in resuming:
                del resuming[request], self._named[request.request_id]
            pending = order.get(request)
            if pending is None:
                continue
            tokens += processed
            if not pending.on_time:
                behind[pending.of_class] = behind.get(pending.of_class, 0) + processed
            if not request.is_prefill_chunk:
                starting.append(pending)
        order.served(tokens=tokens, behind=behind, most=room, now=now)
        if starting:
            self._starting[id(output)] = starting
            order.processed(starting)
            for pending in starting:
                self._named.pop(pending.request.request_id, None)
                self._candidates.gone(pending.request)

    def ended(self, output: Any, now: float) -> None:
        """A step ended: the first tokens of the prompts that it completed are there."""
        for pending in self._starting.pop(id(output), ()):
            if pending.moved_behind:
                self._order.first_token(pending, now)

    def tell(self, numbers: Any, now: float) -> None:
        """Write down what came of it."""
        order = self._order
        numbers[Slot.MOVED_BEHIND] = order.moved_behind
        numbers[Slot.IN_TIME_AFTER_ALL] = order.in_time_after_all
        numbers[Slot.BEHIND] = order.behind()
        numbers[Slot.LONGEST_WAIT_BEHIND_SECONDS] = max(0.0, order.longest_wait(now))
        numbers[Slot.HEADROOM_SECONDS] = self._headroom()

    def _headroom(self) -> float:
        """Seconds that a prompt which comes now may take to be on time; NaN where that is not known."""
        if self._on_time is None or math.isinf(seconds := self._terms[DEFAULT_CLASS].seconds):
            return math.nan
        # Nothing is judged while nothing runs, as before a first request: nobody is waited for then.
        if not self._adapter.running:
            return seconds
        return seconds - self._order.wait if self._foresees else math.nan

    def _due(self, pending: Pending[Any]) -> tuple[float, float]:
        promised = self._terms.get(pending.of_class) or self._terms[DEFAULT_CLASS]
        return pending.arrived + promised.seconds, promised.weight

    def _look_up_some(self) -> None:
        looked = 0
        for request in islice(self._round, _LOOKED_UP):
            looked += 1
            pending = self._order.get(request)
            if pending is not None and not pending.begun:
                pending.tokens, pending.attention = self._candidates.left(request)
        if looked < _LOOKED_UP:
            self._round = iter(tuple(self._order))

    def _kept_waiting(self) -> list[Any]:
        """Whom to put first where nobody is to join: the one that the others wait for."""
        owed = self._order.owed
        return [owed.request] if owed is not None and self._order.owes_all and not owed.begun else []

    def _may_park(self, plan: StepOrder[Any], *, decodes: int) -> bool:
        """Whether prompts that have begun may wait: not where the step could come to nothing for it."""
        adapter = self._adapter
        # Ranks that wait for each other, a pause and what cannot be split keep others from joining than room does.
        if adapter.defers_prefills or adapter.paused or adapter.sizes.indivisible:
            return False
        return bool(decodes or plan.running) or _is_simple(plan.joining[0])


def _prompt(one: Pending[Any]) -> Prompt:
    remaining = int(one.tokens)
    return Prompt(remaining, max(0, one.request.num_tokens - remaining))


def _is_simple(request: Any) -> bool:
    """Whether room is all that it needs to join."""
    return not (getattr(request, "lora_request", None) or getattr(request, "mm_features", None) or is_loaded(request))


def _unsupported(scheduler: Any, queues: WaitingQueues) -> str | None:
    """Why this scheduler's prompts cannot be ordered."""
    if loads_prompts(getattr(scheduler, "vllm_config", None)):
        return LOADS_IN_ITS_ORDER
    if getattr(scheduler, "ec_connector", None) is not None:
        return PASSES_OVER_TRANSIT
    if queues.start_policy is SchedulingPolicy.PRIORITY:
        return "the engine was started with --scheduling-policy=priority, which orders them"
    return lacking(ORDERING, functools.partial(hasattr, scheduler.waiting))
