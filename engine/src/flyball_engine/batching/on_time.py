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
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, merge
from typing import Any, Final, Generic, NamedTuple, TypeVar

#: Requests that are judged before one step, some 20 µs: a queue of 1,000 is judged anew every 36 steps or so.
JUDGED_IN_A_STEP: Final = 32
#: Verdicts that are put in force before one step; most of them change nothing.
_VERDICTS_IN_A_STEP: Final = 128
#: Seconds over which the turnover of slots is averaged: some tens of requests of an engine that is full.
_TURNOVER_SECONDS: Final = 10.0
#: Those that are late join while prompts are processed at this share of an idle engine's rate, or faster. Each of them
#: decodes for seconds, and slows down all prompts that come meanwhile. In simulation 0.9 is worth up to 2 % of goodput
#: over 0.75, and the longest wait is up to 40 s longer.
LEAST_RATE_FOR_LATE: Final = 0.9
#: The same for work without a deadline. At 0.9 batch work would get a third of what chats leave.
LEAST_RATE_FOR_BATCH: Final = 0.75
#: Seconds that the oldest of those behind has waited before it has its share. An overload that ends within them costs
#: those in time nothing, and proxies commonly give up on a silent server after a minute.
SHARED_AFTER: Final = 60.0
#: Seconds without a request that can be on time, after which late ones may join any batch. In the gaps between bursts,
#: which are shorter, they would fill the batch that the next burst finds.
QUIET: Final = 5.0

R = TypeVar("R")
#: What is sorted: a pending request comes last in it.
E = TypeVar("E", bound=tuple[Any, ...])


class PrefillRate(NamedTuple):
    """How fast prompts are processed under the present step budget and batch.

    `per_token`: seconds per prompt token, with its share of what steps cost anyway. `per_attention`: seconds per unit
    of prefill attention (token²). `free_slots`: requests that may join at once. `per_slot`: seconds until one more may,
    0 while that is not known. `of_idle`: the rate of tokens over that beside no decodes.
    """

    per_token: float
    per_attention: float = 0.0
    free_slots: float = math.inf
    per_slot: float = 0.0
    of_idle: float = 1.0

    def seconds(self, tokens: float, attention: float) -> float:
        """Time that the rest of a prompt takes."""
        return self.per_token * tokens + self.per_attention * attention

    def misses(self, deadline: float, *, tokens: float, attention: float, now: float) -> bool:
        """Whether a first token would come after the deadline if the rest of its prompt were served alone from now."""
        return now + self.seconds(tokens, attention) > deadline


class SlotTurnover:
    """How long it takes until one more request may join, where all slots are taken or the memory is."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._freed = 0.0

    @property
    def per_slot(self) -> float:
        """Seconds from one slot that comes free to the next; 0 while that is not known."""
        return self._seconds / self._freed if self._freed > 0 else 0.0

    def observe(self, seconds: float, freed: int) -> None:
        """For so many seconds nobody could join, and then so many slots came free."""
        kept = math.exp(-seconds / _TURNOVER_SECONDS)
        self._seconds = kept * self._seconds + seconds
        self._freed = kept * self._freed + freed


class Pending(Generic[R]):
    """A request without a first token.

    `arrived`, `deadline`: by the engine's clock; the deadline is infinite for work that has none. `tokens` and
    `attention` are still to be processed of its prompt, without what the prefix cache holds. `weight`: what its being
    on time is worth. `of_class`: the class of requests whose share it may have. `begun`: whether it has a slot.
    `on_time`: whether it is in the on-time set. `moved_behind`: whether it ever was given up. `refusable`: whether it
    is refused once it is hopeless, where anybody is.
    """

    __slots__ = (
        "arrived",
        "attention",
        "begun",
        "deadline",
        "moved_behind",
        "number",
        "of_class",
        "on_time",
        "refusable",
        "request",
        "tokens",
        "weight",
    )

    def __init__(
        self,
        request: R,
        *,
        number: int,
        arrived: float,
        deadline: float,
        tokens: float,
        attention: float,
        weight: float,
        of_class: str = "",
    ) -> None:
        self.request = request
        self.of_class = of_class
        self.number = number
        self.arrived = arrived
        self.deadline = deadline
        self.tokens = tokens
        self.attention = attention
        self.weight = weight
        self.begun = False
        self.on_time = math.isfinite(deadline)
        self.moved_behind = False
        self.refusable = False

    def rank(self) -> tuple[bool, float, int]:
        """Sorts as they are served: by deadline those on time, then by arrival."""
        return (not self.on_time, self.deadline if self.on_time else 0.0, self.number)


class OnTimeOrder(Generic[R]):
    """The requests without a first token, in the order to serve them.

    `moved_behind`: requests that were given up once, cumulative. `in_time_after_all`: those of them whose first token
    came by its deadline. `refuses`: whether requests are refused that may be, once they are hopeless.
    """

    def __init__(self, *, late_share: float) -> None:
        """`late_share`: see `keep`."""
        self.moved_behind = 0
        self.in_time_after_all = 0
        self.refuses = False
        self._pending: dict[R, Pending[R]] = {}
        self._numbers = 0
        # Sorted by deadline and by arrival; the numbers make each key unique.
        self._on_time: list[tuple[float, int, Pending[R]]] = []
        self._late: _Account[R] = _Account(late_share, None)
        self._accounts = [self._late]
        # Those of the latter that may be on time yet, by deadline.
        self._hopeful: list[tuple[float, int, Pending[R]]] = []
        # Those of the latter that have no deadline, by arrival.
        self._undated: list[tuple[int, Pending[R]]] = []
        self._judgement: _Judgement[R] | None = None
        self._most = 0.0
        self._now = 0.0
        #: When one that can be on time was pending last.
        self._waited_for = -math.inf

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, request: R) -> bool:
        return request in self._pending

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
        self._accounts = [self._late, *(_Account[R](share, name) for name, share in shares.items())]
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
                return
            # Those behind come back only while their deadline is ahead.
            del self._hopeful[: bisect_left(self._hopeful, (now,))]
            judgement = self._judgement = _Judgement(self._on_time, self._hopeful, now)
        if not judgement.is_complete and not judgement.go_on(rate, most):
            return
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

    def _most_owed(self) -> _Account[R]:
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
        _exchange(self._on_time, behind, back, on_time=True)
        _exchange(self._hopeful, back, behind, on_time=False)
        gone, come = (sorted([entry[1:] for entry in some]) for some in (back, behind))
        for account in self._accounts:
            account.move(gone=gone, come=come)


def holds_back(rate: PrefillRate) -> bool:
    """Whether some of those behind may not join at this rate."""
    return rate.of_idle < LEAST_RATE_FOR_LATE


def _exchange(entries: list[E], gone: Sequence[E], come: Sequence[E], *, on_time: bool) -> None:
    """Take some out of a sorted list and put others in, both sorted, too, and many. Who stays is `on_time`, or is not.

    Only the parts are made anew in which they are: a search for each would take several times as long.
    """
    if gone:
        here = _between(entries, gone)
        entries[here] = [entry for entry in entries[here] if entry[-1].on_time is on_time]
    if come:
        here = _between(entries, come)
        entries[here] = sorted([*entries[here], *come])


def _between(entries: Sequence[E], some: Sequence[E]) -> slice:
    """Where in a sorted list the first and the last of some others are, or would be."""
    return slice(bisect_left(entries, some[0]), bisect_right(entries, some[-1]))


class _Account(Generic[R]):
    """A `share` of the prefill tokens that some of those behind have: those `of_class`, all of them where it is None.

    `owed`: tokens that they may have before all others now. `waiting`: all of them, by arrival.
    """

    __slots__ = ("_staying", "of_class", "owed", "share", "waiting")

    def __init__(self, share: float, of_class: str | None) -> None:
        self.share = share
        self.of_class = of_class
        self.owed = 0.0
        self.waiting: list[tuple[int, Pending[R]]] = []
        # Those of them that are served in any case.
        self._staying: list[tuple[int, Pending[R]]] = []

    def sharing(self, *, refuses: bool, now: float) -> Pending[R] | None:
        """Who has the share, None if nobody has. `refuses`: whether requests are refused that may be.

        Of those that are served in any case there are few then, so these have it at once.
        """
        if self.of_class is None and not refuses:
            return self.waited(now)
        sharing = self._staying if refuses else self.waiting
        return sharing[0][1] if sharing else None

    def waited(self, now: float) -> Pending[R] | None:
        """The oldest of them, if it has waited for `SHARED_AFTER`."""
        oldest = self.waiting[0][1] if self.waiting else None
        return oldest if oldest is not None and now >= oldest.arrived + SHARED_AFTER else None

    def add(self, pending: Pending[R]) -> None:
        """One is served behind from now on."""
        if self.of_class is None or self.of_class == pending.of_class:
            insort(self.waiting, (pending.number, pending))
            if not pending.refusable:
                insort(self._staying, (pending.number, pending))

    def remove(self, pending: Pending[R]) -> None:
        """One is not any more."""
        if self.of_class is None or self.of_class == pending.of_class:
            del self.waiting[bisect_left(self.waiting, (pending.number,))]
            if not pending.refusable:
                del self._staying[bisect_left(self._staying, (pending.number,))]

    def move(self, *, gone: list[tuple[int, Pending[R]]], come: list[tuple[int, Pending[R]]]) -> None:
        """Many at once, by arrival: those that have `come` are served behind from now on, those `gone` not any more."""
        if self.of_class is not None:
            gone, come = ([entry for entry in some if entry[1].of_class == self.of_class] for some in (gone, come))
        _exchange(self.waiting, gone, come, on_time=False)
        gone, come = ([entry for entry in some if not entry[1].refusable] for some in (gone, come))
        _exchange(self._staying, gone, come, on_time=False)

    def forget(self) -> None:
        """None of them is known any more."""
        self.waiting.clear()
        self._staying.clear()

    def clear(self) -> None:
        """Nobody is there, and nothing is owed."""
        self.forget()
        self.owed = 0.0

    def served(self, tokens: int, got: float, most: float, *, shares: bool) -> float:
        """A step with room for `most` processed so many tokens, and they `got` some: how many of these count here.

        `shares`: whether somebody has the share, and others wanted the tokens, too.
        """
        if not shares:
            self.owed = 0.0
            return 0.0
        # No more is saved up, and no more is held against them, than they can get in one step.
        owed = self.owed + self.share * tokens - got
        self.owed = max(-most, min(most, owed))
        return max(0.0, got + min(0.0, owed + most))


class _Judgement(Generic[R]):
    """One pass over the requests by deadline, made in parts. Times are those of its beginning."""

    def __init__(
        self, on_time: list[tuple[float, int, Pending[R]]], hopeful: list[tuple[float, int, Pending[R]]], now: float
    ) -> None:
        """Of all that are `on_time` or `hopeful` now, both by deadline."""
        self.is_complete = False
        self.is_in_force = False
        self._told = 0
        self._on_time, self._hopeful = on_time.copy(), hopeful.copy()
        self._looked_at = (0, 0)
        self._now = now
        self._busy = 0.0
        self._joining = 0
        self._seen: list[Pending[R]] = []
        # The first to be given up stands first: seconds per weight, the largest.
        self._taken: list[tuple[float, int, float, bool, Pending[R]]] = []
        self._given_up: set[int] = set()

    def go_on(self, rate: PrefillRate, most: int) -> bool:
        """Look at so many more; whether that was the last of them."""
        # What this costs is what a step waits for: nothing is called that can be said in place.
        taken, given_up, now, busy, joining = self._taken, self._given_up, self._now, self._busy, self._joining
        per_token, per_attention, free_slots, per_slot, _ = rate
        looked = self._next(most)
        for deadline, number, pending in looked:
            # What `PrefillRate.seconds` says.
            seconds = per_token * pending.tokens + per_attention * pending.attention
            had_slot = pending.begun
            wait = 0.0
            # Slots are alike for all: who comes too late for one stays out, whatever the others need.
            if per_slot and not had_slot and joining + 1 > free_slots:
                wait = (joining + 1 - free_slots) * per_slot
            if now + wait + seconds > deadline:
                given_up.add(number)
                continue
            heappush(taken, (-seconds / pending.weight, -number, seconds, had_slot, pending))
            busy += seconds
            joining += not had_slot
            while taken and now + busy > deadline:
                _, _, spared, had_slot, dropped = heappop(taken)
                busy -= spared
                joining -= not had_slot
                given_up.add(dropped.number)
        self._busy, self._joining = busy, joining
        self._seen += [pending for _, _, pending in looked]
        self.is_complete = len(looked) < most
        return self.is_complete

    def _next(self, most: int) -> list[tuple[float, int, Pending[R]]]:
        """The next of both, by deadline."""
        first, second = self._looked_at
        found = sorted([*self._on_time[first : first + most], *self._hopeful[second : second + most]])[:most]
        if found:
            last = found[-1]
            self._looked_at = bisect_right(self._on_time, last, first), bisect_right(self._hopeful, last, second)
        return found

    def contradicted(self) -> list[Pending[R]]:
        """Of some more, who is where the verdict does not see them; once all were told of, it is in force."""
        part = self._seen[self._told : self._told + _VERDICTS_IN_A_STEP]
        self._told += len(part)
        self.is_in_force = len(part) < _VERDICTS_IN_A_STEP
        given_up = self._given_up
        return [pending for pending in part if pending.on_time is (pending.number in given_up)]


@dataclass(frozen=True)
class StepOrder(Generic[R]):
    """What the next step serves of the prompts.

    `running`: those that have begun, in order. `parked`: have begun, and wait this step. `joining`: to be admitted, in
    order. `threshold`: tokens of one prompt at most, 0 for no cap.
    """

    running: tuple[R, ...] = ()
    parked: tuple[R, ...] = ()
    joining: tuple[R, ...] = ()
    threshold: int = 0


def step_order(
    pending: Iterable[Pending[R]],
    begun: Sequence[R],
    *,
    tokens: int,
    slots: int,
    most: int,
    least_cap: int = 1,
    memory: float = math.inf,
) -> StepOrder[R]:
    """Who has the prompt `tokens` of the next step, where vLLM serves what has `begun` before what it admits.

    `pending`: in the order to serve them; read no further than the tokens last. `begun`: in that order, too. `slots`:
    requests that may join. `most`: requests that are looked at beside those that have begun. `least_cap`: the least cap
    on the tokens of one request that an engine can run with. `memory`: tokens that the KV cache has free for those that
    join. From the first prompt on that is longer, nobody joins: others would be parked for it, and keep what it lacks.

    A prompt that has begun and comes after one that joins is parked, or else it would take the tokens of the one that
    joins. It keeps its slot and its KV blocks. One runs all the same where a cap on each prompt leaves those before it
    what they need.
    """
    running: list[R] = []
    joining: list[R] = []
    has_begun = set(begun)
    left, longest, looked, cap = float(tokens), 0.0, 0, 0
    for one in pending:
        if left <= 0 or looked >= most:
            break
        if one.request in has_begun:
            if joining:
                if cap or not max(longest, least_cap) <= left:
                    continue
                cap = int(left)
            running.append(one.request)
        else:
            looked += 1
            memory -= one.tokens
            if len(joining) >= slots or memory < 0:
                slots = len(joining)
                continue
            joining.append(one.request)
        left -= one.tokens
        longest = max(longest, one.tokens)
    served = set(running)
    after = [request for request in begun if request not in served]
    if not joining:
        return StepOrder((*running, *after))
    return StepOrder(tuple(running), tuple(after), tuple(joining), cap)
