"""Shares of the prefill tokens for requests that are served behind: who has one, and what it is owed. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final, Generic

from flyball_engine.batching.pending import Pending, R, exchange

#: Seconds that the oldest of those behind has waited before it has its share. An overload that ends within them costs
#: those in time nothing, and proxies commonly give up on a silent server after a minute.
SHARED_AFTER: Final = 60.0


class Account(Generic[R]):
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
        exchange(self.waiting, gone, come, on_time=False)
        gone, come = ([entry for entry in some if not entry[1].refusable] for some in (gone, come))
        exchange(self._staying, gone, come, on_time=False)

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
