"""The on-time order: which requests can still have their first token by its deadline, and who is served first.

The prompts of an engine core are jobs on one machine, its prefill. The most of them are on time if they are taken by
deadline. Whenever one would be late, the longest of those taken is given up: Moore and Hodgson, 1968. Where jobs have
weights, the one with the least weight per second of work is given up. Those that are given up, and those that have no
deadline, are served behind, in order of arrival. Once the oldest of them has waited for a minute, it has a share of the
prefill, so that nobody starves. Who will be refused before long needs no share: prompt tokens spent on it are lost.

A long queue is judged in parts, some requests before each step, so that no step waits for it. What a call costs depends
on how many requests it looks at, not on how many there are.

Pure: the clock is a parameter. Seconds and tokens throughout.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Final, Generic

from flyball_engine.batching.judgement import JUDGED_IN_A_STEP, Judgement
from flyball_engine.batching.pending import Pending, R, exchange
from flyball_engine.batching.prefill_rate import LEAST_RATE_FOR_BATCH, PrefillRate, holds_back
from flyball_engine.batching.shares import Account

#: Seconds without a request that can be on time, after which late ones may join any batch. In the gaps between bursts,
#: which are shorter, they would fill the batch that the next burst finds.
QUIET: Final = 5.0


class OnTimeOrder(Generic[R]):
    """The requests without a first token, in the order to serve them.

    `moved_behind`: requests that were given up once, cumulative. `in_time_after_all`: those of them whose first token
    came by its deadline. `refuses`: whether requests are refused that may be, once they are hopeless. `wait`: seconds
    until a prompt that comes now is begun behind all that can be on time, as of the last time that all were judged.
    """

    def __init__(self, *, late_share: float) -> None:
        """`late_share`: see `keep`."""
        self.moved_behind = 0
        self.in_time_after_all = 0
        self.refuses = False
        self.wait = 0.0
        self._pending: dict[R, Pending[R]] = {}
        self._numbers = 0
        # Sorted by deadline and by arrival; the numbers make each key unique.
        self._on_time: list[tuple[float, int, Pending[R]]] = []
        self._late: Account[R] = Account(late_share, None)
        self._accounts = [self._late]
        # Those of the latter that may be on time yet, by deadline.
        self._hopeful: list[tuple[float, int, Pending[R]]] = []
        # Those of the latter that have no deadline, by arrival.
        self._undated: list[tuple[int, Pending[R]]] = []
        self._judgement: Judgement[R] | None = None
        self._most = 0.0
        self._now = 0.0
        #: When one that can be on time was pending last.
        self._waited_for = -math.inf

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[R]:
        return iter(self._pending)

    def get(self, request: R) -> Pending[R] | None:
        """What is known of a request; None if it is not pending."""
        return self._pending.get(request)

    def add(
        self,
        request: R,
        *,
        arrived: float,
        deadline: float,
        tokens: float,
        attention: float = 0.0,
        weight: float = 1.0,
        of_class: str = "",
        refusable: bool = False,
    ) -> None:
        """A request came, or came back. It counts as on time until it is judged."""
        if request in self._pending:
            self.discard(request)
        self._numbers += 1
        pending = Pending(
            request,
            number=self._numbers,
            arrived=arrived,
            deadline=deadline,
            tokens=tokens,
            attention=attention,
            weight=weight,
            of_class=of_class,
        )
        pending.refusable = refusable
        self._pending[request] = pending
        self._place(pending)

    def stays(self, request: R) -> None:
        """A request is served in any case from now on."""
        pending = self._pending.get(request)
        if pending is not None and pending.refusable:
            self._take_out(pending)
            pending.refusable = False
            self._place(pending)

    def progressed(self, request: R, *, tokens: float, attention: float, begun: bool = True) -> None:
        """So much of its prompt is still to be processed; `begun`: whether it has a slot."""
        if (pending := self._pending.get(request)) is not None:
            pending.tokens, pending.attention, pending.begun = tokens, attention, begun

    def started(self, request: R, now: float) -> None:
        """Its first token is there."""
        if (pending := self.discard(request)) is not None:
            self.first_token(pending, now)

    def first_token(self, pending: Pending[R], now: float) -> None:
        """The first token of one that was taken out is there."""
        if pending.moved_behind and now <= pending.deadline:
            self.in_time_after_all += 1

    def discard(self, request: R) -> Pending[R] | None:
        """Its prompt is processed, or it is gone; what was known of it, None if it never was there."""
        pending = self._pending.pop(request, None)
        if pending is not None:
            self._take_out(pending)
        return pending

    def processed(self, some: Iterable[Pending[R]]) -> None:
        """Their prompts are processed: they are pending no more."""
        for pending in some:
            del self._pending[pending.request]
            self._take_out(pending)

    def clear(self) -> None:
        """Nobody is ordered any more."""
        self._pending.clear()
        for each in (self._on_time, self._hopeful):
            each.clear()
        self._undated.clear()
        for account in self._accounts:
            account.clear()
        self._judgement = None

    def keep(self, late_share: float, shares: Mapping[str, float]) -> None:
        """What of the prefill tokens is kept for those that are served behind.

        `late_share` is for the oldest of them all once it has waited for `SHARED_AFTER`, and each of the `shares` for
        the oldest of a class at once. What one gets by the share of its class is not held against the late.
        """
        self._late.share = late_share
        self._accounts = [self._late, *(Account[R](share, name) for name, share in shares.items())]
        for _, pending in self._late.waiting:
            for account in self._accounts[1:]:
                account.add(pending)

    def redate(self, due: Callable[[Pending[R]], tuple[float, float]]) -> None:
        """Each has another deadline and weight, which `due` gives. Who has its first deadline counts as on time."""
        for pending in self._pending.values():
            had = math.isfinite(pending.deadline)
            pending.deadline, pending.weight = due(pending)
            pending.on_time = math.isfinite(pending.deadline) and (pending.on_time or not had)
            # Nobody refuses what has no deadline any more: it needs its share.
            pending.refusable &= math.isfinite(pending.deadline)
        self._on_time.clear()
        self._hopeful.clear()
        self._undated.clear()
        for account in self._accounts:
            account.forget()
        for pending in self._pending.values():
            self._place(pending)
        self._judgement = None

    def judge(self, rate: PrefillRate, now: float, most: int = JUDGED_IN_A_STEP) -> None:
        """Look at some more requests, at most so many; once all were looked at the set is made anew."""
        judgement = self._judgement
        if judgement is None:
            if not self._on_time and not self._hopeful:
                self.wait = rate.slot_wait(1)
                return
            # Those behind come back only while their deadline is ahead.
            del self._hopeful[: bisect_left(self._hopeful, (now,))]
            judgement = self._judgement = Judgement(self._on_time, self._hopeful, now)
        if not judgement.is_complete:
            if not judgement.go_on(rate, most):
                return
            self.wait = judgement.wait(rate)
        known = self._pending
        moved = [pending for pending in judgement.contradicted() if known.get(pending.request) is pending]
        if moved:
            self._move(moved)
        if judgement.is_in_force:
            self._judgement = None

    def in_order(self) -> Iterator[Pending[R]]:
        """All that are pending, whoever is served first at first."""
        oldest = self.owed
        if oldest is not None:
            yield oldest
        for _, _, pending in self._on_time:
            yield pending
        for _, pending in self._late.waiting:
            if pending is not oldest:
                yield pending

    def served(self, *, tokens: int, behind: Mapping[str, int], most: int, now: float) -> None:
        """A step processed so many prompt `tokens`; it had room for `most`.

        `behind`: those of requests that stand behind, by class. What they get while nobody else wants it is not held
        against them.
        """
        self._most, self._now = float(most), now
        if self._on_time:
            self._waited_for = now
        others = float(sum(behind.values()))
        # The late last: what a class gets by its own share is not held against them.
        for account in reversed(self._accounts):
            got = others if account.of_class is None else float(behind.get(account.of_class, 0))
            shares = bool(self._on_time) and account.sharing(refuses=self.refuses, now=now) is not None
            others -= account.served(tokens, got, self._most, shares=shares)

    @property
    def owed(self) -> Pending[R] | None:
        """Of those that share the oldest of a class, if it is to be served before all others; None if not.

        Of several that are owed something it is the one that is owed most. Where nobody has been pending for `QUIET`
        that can be on time, it is the oldest of all, however large the batch: decodes may run for hours.
        """
        account = self._most_owed()
        if account.owed > 0:
            return account.sharing(refuses=self.refuses, now=self._now)
        return self._oldest_in_quiet()

    @property
    def owes_all(self) -> bool:
        """Whether it is owed as much as may be saved up: something else keeps it waiting."""
        owed = self._most_owed().owed
        return 0 < self._most <= owed or (owed <= 0 and self._oldest_in_quiet() is not None)

    def candidates(self, rate: PrefillRate, most: int) -> Iterator[Pending[R]]:
        """In order those that may be served beside the present batch; those that have begun always may.

        Of those behind the first `most` are looked at for some that have begun.
        """
        if not holds_back(rate):
            yield from self.in_order()
            return
        owed = self.owed
        if owed is not None:
            yield owed
        for _, _, pending in self._on_time:
            yield pending
        batch = self._undated if rate.of_idle >= LEAST_RATE_FOR_BATCH else []
        begun = [
            (number, pending)
            for number, pending in self._late.waiting[:most]
            if pending.begun and not (batch and math.isinf(pending.deadline))
        ]
        for _, pending in merge(begun, batch):
            if pending is not owed:
                yield pending

    def behind(self) -> int:
        """Requests that are served behind."""
        return len(self._late.waiting)

    def longest_wait(self, now: float) -> float:
        """Seconds that the oldest of those behind has waited; 0 where there is none."""
        return now - self._late.waiting[0][1].arrived if self._late.waiting else 0.0

    def _oldest_in_quiet(self) -> Pending[R] | None:
        """Who waited long enough, where nobody has been pending for `QUIET` that can be on time."""
        return self._late.waited(self._now) if self._now >= self._waited_for + QUIET else None

    def _most_owed(self) -> Account[R]:
        refuses, now, most = self.refuses, self._now, None
        for account in self._accounts:
            if (most is None or account.owed > most.owed) and account.sharing(refuses=refuses, now=now) is not None:
                most = account
        return self._late if most is None else most

    def _place(self, pending: Pending[R]) -> None:
        by_deadline = (pending.deadline, pending.number, pending)
        if pending.on_time:
            insort(self._on_time, by_deadline)
            return
        for account in self._accounts:
            account.add(pending)
        if math.isfinite(pending.deadline):
            insort(self._hopeful, by_deadline)
        else:
            insort(self._undated, (pending.number, pending))

    def _take_out(self, pending: Pending[R]) -> None:
        by_deadline = (pending.deadline, pending.number)
        if pending.on_time:
            del self._on_time[bisect_left(self._on_time, by_deadline)]
            return
        for account in self._accounts:
            account.remove(pending)
        if math.isinf(pending.deadline):
            del self._undated[bisect_left(self._undated, (pending.number,))]
            return
        index = bisect_left(self._hopeful, by_deadline)
        # Not there once its deadline has passed.
        if index < len(self._hopeful) and self._hopeful[index][2] is pending:
            del self._hopeful[index]

    def _move(self, moved: Sequence[Pending[R]]) -> None:
        """Those that had a place in the set lose it, and the others of these get one: together, as there are many."""
        back, behind = list[tuple[float, int, Pending[R]]](), list[tuple[float, int, Pending[R]]]()
        for pending in moved:
            pending.on_time = not pending.on_time
            (back if pending.on_time else behind).append((pending.deadline, pending.number, pending))
            if not pending.on_time and not pending.moved_behind:
                pending.moved_behind = True
                self.moved_behind += 1
        exchange(self._on_time, behind, back, on_time=True)
        exchange(self._hopeful, back, behind, on_time=False)
        gone, come = (sorted([entry[1:] for entry in some]) for some in (back, behind))
        for account in self._accounts:
            account.move(gone=gone, come=come)
