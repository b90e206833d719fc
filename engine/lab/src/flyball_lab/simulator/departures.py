"""When the clients of a simulated engine leave that are still there."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from flyball_lab.simulator.requests import Fate, Request


class Departures:
    """Whoever leaves soonest stands first. One that leaves sooner than it said stands twice, and counts once."""

    def __init__(self) -> None:
        self._leaving: list[tuple[float, int, Request]] = []

    def expect(self, request: Request) -> None:
        """Its client leaves when it says, if it does."""
        if math.isfinite(request.leaves):
            heapq.heappush(self._leaving, (request.leaves, request.number, request))

    def due(self, now: float) -> Iterator[tuple[float, Request]]:
        """Whose clients have left by now, and when."""
        while self._leaving and self._leaving[0][0] <= now:
            at, _, request = heapq.heappop(self._leaving)
            if request.fate is Fate.OPEN and request.leaves <= at:
                yield at, request

    def next(self) -> float:
        """When the next client leaves."""
        leaving = self._leaving
        while leaving and (leaving[0][2].fate is not Fate.OPEN or leaving[0][2].leaves > leaving[0][0]):
            heapq.heappop(leaving)
        return leaving[0][0] if leaving else math.inf
