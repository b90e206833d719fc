"""The waiting requests, in the order they are served in."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice

from flyball_engine.contract import Policy
from flyball_engine.simulator.requests import Request


class WaitingQueue:
    """Requests by arrival, under the priority policy by priority first.

    A preempted request takes its old place: among those that wait it came first.
    """

    def __init__(self, policy: Policy) -> None:
        self._by_priority = policy is Policy.PRIORITY
        self._entries: list[tuple[int, float, int, Request]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in self._entries)

    def push(self, request: Request) -> None:
        """A request waits, from its arrival or again."""
        insort(self._entries, (*self._key(request), request))

    def first(self, most: int) -> list[Request]:
        """Those who are next, at most so many."""
        return list(islice(self, most))

    def pop(self) -> Request:
        """Take who is next; there is one."""
        return self._entries.pop(0)[3]

    def remove(self, request: Request) -> None:
        """One of the waiting requests left."""
        del self._entries[bisect_left(self._entries, self._key(request), key=lambda entry: entry[:3])]

    def clear(self) -> list[Request]:
        """Take all."""
        found = list(self)
        self._entries.clear()
        return found

    def _key(self, request: Request) -> tuple[int, float, int]:
        return (request.priority if self._by_priority else 0, request.arrival, request.number)
