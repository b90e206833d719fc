"""The waiting requests, in the order they are served in."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice

from flyball_engine.contract import SchedulingPolicy
from flyball_lab.simulator.requests import Request


class WaitingQueue:
    """Requests by arrival, and before them those that were preempted, the last that was first. Or all by priority."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._by_priority = policy is SchedulingPolicy.PRIORITY
        self._entries: list[tuple[int, float, int, Request]] = []
        self._keys: dict[Request, tuple[int, float, int]] = {}
        self._front = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in self._entries)

    def push(self, request: Request) -> None:
        """A request waits, from its arrival or again."""
        key = (request.priority if self._by_priority else 0, request.arrival, request.number)
        if request.preemptions and not self._by_priority:
            self._front -= 1
            key = (self._front, 0.0, request.number)
        self._keys[request] = key
        insort(self._entries, (*key, request))

    def first(self, most: int) -> list[Request]:
        """Those who are next, at most so many."""
        return list(islice(self, most))

    def remove(self, request: Request) -> None:
        """One of the waiting requests left."""
        del self._entries[bisect_left(self._entries, self._keys.pop(request), key=lambda entry: entry[:3])]

    def clear(self) -> list[Request]:
        """Take all."""
        found = list(self)
        self._entries.clear()
        self._keys.clear()
        return found
