"""The on-time order of a simulated core's prompts: `batching.on_time`, told what happens to them.

What counts as work is what the prefix cache lacks of a prompt. The order holds under first come, first served: the
priority policy is an order of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import islice

from flyball_engine.batching.classes import prefill_shares, terms
from flyball_engine.batching.gate import PrefillWork, prompt_work
from flyball_engine.batching.judgement import JUDGED_IN_A_STEP
from flyball_engine.batching.on_time import OnTimeOrder
from flyball_engine.batching.prefill_rate import PrefillRate, SlotTurnover
from flyball_engine.batching.step_order import StepOrder, step_order
from flyball_engine.batching.step_token_budgeter import LOOK_AHEAD, Queue
from flyball_engine.contract import Classes, OnTime, OrderCounts
from flyball_lab.simulator.requests import Request
from flyball_lab.simulator.scheduler import Scheduler, remaining


class PromptOrder:
    """The order, while there is one. `moved_behind` and `in_time_after_all` count, whatever comes of the order."""

    def __init__(self, scheduler: Scheduler, *, refusable: Callable[[Request], bool] = lambda _: False) -> None:
        """`refusable`: whether a request may be refused yet."""
        self._scheduler = scheduler
        self._refusable = refusable
        self._on_time: OnTime | None = None
        self._classes: Classes | None = None
        self._order = self.new_order(late_share=0.0)
        self._turnover = SlotTurnover()
        self._full = False
        self._looked = 0.0
        self._counted = (0, 0)
        self._prefixes = 0

    @property
    def holds(self) -> bool:
        """Whether prompts are served in this order."""
        return self._on_time is not None

    @property
    def moved_behind(self) -> int:
        """Requests that were given up once."""
        return self._counted[0] + self._order.moved_behind

    @property
    def in_time_after_all(self) -> int:
        """Those of them whose first token came by its deadline."""
        return self._counted[1] + self._order.in_time_after_all

    def counts(self, now: float) -> OrderCounts:
        """What came of the order, as an engine tells it."""
        return OrderCounts(
            moved_behind=self.moved_behind,
            in_time_after_all=self.in_time_after_all,
            behind=self._order.behind(),
            longest_wait_seconds=max(0.0, self._order.longest_wait(now)),
        )

    def follow(self, on_time: OnTime | None, classes: Classes | None = None) -> None:
        """The order from the next step on, with these classes of requests; None leaves it to the engine."""
        if (on_time, classes) == (self._on_time, self._classes):
            return
        self._counted = (self.moved_behind, self.in_time_after_all)
        self._on_time, self._classes = on_time, classes
        late_share = on_time.late_share if on_time is not None else 0.0
        self._order = self.new_order(late_share=late_share)
        self._order.keep(late_share, prefill_shares(classes))
        for request in (*self._scheduler.prefilling, *self._scheduler.waiting):
            self.came(request)

    def new_order(self, *, late_share: float) -> OnTimeOrder[Request]:
        """An empty one; whoever compares orders may have another."""
        return OnTimeOrder(late_share=late_share)

    def came(self, request: Request) -> None:
        """A request entered the queue."""
        on_time = self._on_time
        if on_time is not None and not request.made:
            work, promised = self.work(request), terms(on_time, self._classes, request.of_class)
            self._order.add(
                request,
                arrived=request.arrival,
                deadline=request.arrival + promised.seconds,
                tokens=work.tokens,
                attention=work.attention,
                weight=promised.weight,
                of_class=request.of_class,
                refusable=self._refusable(request),
            )

    def gone(self, request: Request) -> None:
        """A request left."""
        self._order.discard(request)

    def stays(self, request: Request) -> None:
        """A request is served in any case from now on."""
        self._order.stays(request)

    def judge(self, rate: PrefillRate, now: float, *, active: int, refuses: bool) -> None:
        """Make the set anew, as far as a step has time for it. `active`: requests that may run.

        `refuses`: whether requests are refused that may be.
        """
        self._order.refuses = refuses
        prefixes = self._scheduler.prefixes.changes
        if prefixes != self._prefixes:
            self._prefixes = prefixes
            for request in self._scheduler.waiting:
                if request.prefix is not None:
                    self.progressed(request)
        slots = 0 if self._full else max(0, active - len(self._scheduler.running))
        self._order.judge(rate._replace(free_slots=slots, per_slot=self._turnover.per_slot), now)

    def queue(self) -> Queue:
        """What the next step may serve, in this order: whoever stands first may have all that the decodes leave."""
        scheduler = self._scheduler
        first = [*scheduler.resuming, *(one.request for one in islice(self._order.in_order(), LOOK_AHEAD))]
        return Queue(
            decodes=scheduler.batch().decodes,
            tokens_per_decode=scheduler.tokens_per_decode,
            waiting=[scheduler.prompt(request) for request in first[:LOOK_AHEAD]],
            more=len(first) >= LOOK_AHEAD,
            kv_tokens=scheduler.context_tokens,
        )

    def step(self, rate: PrefillRate, *, tokens: int, active: int) -> StepOrder[Request]:
        """Who has the tokens of the next step; requests whose first token is there come before them all."""
        scheduler, order = self._scheduler, self._order
        resuming, owed = scheduler.resuming, order.owed
        begun = [found for request in scheduler.prefilling if (found := order.get(request)) is not None]
        begun.sort(key=lambda one: (one is not owed, *one.rank()))
        slots = active - len(scheduler.running) - sum(not request.running for request in resuming)
        self._full = slots <= 0
        return step_order(
            order.candidates(rate, JUDGED_IN_A_STEP),
            [one.request for one in begun],
            tokens=tokens - sum(remaining(request) for request in resuming),
            slots=slots,
            most=JUDGED_IN_A_STEP,
            memory=scheduler.free_tokens() if begun else math.inf,
        )

    def ended(self, requests: int, now: float) -> None:
        """Steps ended, and with them so many requests."""
        if self._full:
            self._turnover.observe(now - self._looked, requests)
        self._looked = now

    def served(self, chunks: dict[Request, int], *, most: int, now: float) -> None:
        """A step ends that processed these parts of prompts; it had room for `most` tokens."""
        tokens, behind = 0, Counter[str]()
        for request, chunk in chunks.items():
            pending = self._order.get(request)
            if pending is not None:
                tokens += chunk
                behind[pending.of_class] += 0 if pending.on_time else chunk
        self._order.served(tokens=tokens, behind=behind, most=most, now=now)

    def progressed(self, request: Request) -> None:
        """What is left of its prompt is another: some was processed, or it lost its blocks."""
        work = self.work(request)
        self._order.progressed(request, tokens=work.tokens, attention=work.attention, begun=request.running)

    def started(self, request: Request, now: float) -> None:
        """Its first token is there."""
        self._order.started(request, now)

    def work(self, request: Request) -> PrefillWork:
        """What is to be processed of its prompt, without what the prefix cache holds."""
        return prompt_work(
            request.target, request.computed if request.running else self._scheduler.prefixes.hit(request)
        )
