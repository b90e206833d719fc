"""Which open requests have missed an objective already, by waiting: for a first token, or for the end.

A request counts when it ends. In the on-time order, who is late waits behind the others, maybe for minutes: what only
ends would look well meanwhile. What it costs depends on how many requests come, not on how many are open.

Pure: times are parameters, in seconds of any one clock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from flyball_engine.contract import Metric, ObjectiveSpec

#: What a wait alone can miss, whatever comes later: a mean over an answer may be kept yet.
_MISSED_BY_WAITING: Final = (Metric.TIME_TO_FIRST_TOKEN, Metric.END_TO_END_LATENCY)


class _Timed(Protocol):
    @property
    def arrival(self) -> float:
        """When it came in."""

    @property
    def of_class(self) -> str:
        """Its class."""


R = TypeVar("R", bound=_Timed)


class OverdueRequests(Generic[R]):
    """`missed` says of an open request, behind its deadline, whether it has missed an objective. For any thread."""

    def __init__(self, missed: Callable[[ObjectiveSpec, R, float], bool]) -> None:
        self._missed = missed
        self._lock = threading.Lock()
        self._waits: dict[ObjectiveSpec, _Waits[R]] = {}

    def follow(self, by_class: Mapping[str, Sequence[ObjectiveSpec]], present: Iterable[R]) -> None:
        """These are the objectives from now on. `present`: the open requests, the oldest first."""
        wanted = [one for each in by_class.values() for one in each if one.metric in _MISSED_BY_WAITING]
        with self._lock:
            self._waits = {objective: self._waits.get(objective) or _Waits(objective, present) for objective in wanted}

    def came(self, request: R) -> None:
        """It is open, and of its class for good."""
        with self._lock:
            for waits in self._waits.values():
                waits.add(request)

    def ended(self, request: R) -> None:
        """It is open no more."""
        with self._lock:
            for waits in self._waits.values():
                waits.discard(request)

    def counts(self, now: float) -> dict[str, int]:
        """By objective id, open requests that have missed it by now. Times that it is called with do not fall."""
        with self._lock:
            return {one.id: waits.look(self._missed, now) for one, waits in self._waits.items()}


class _Waits(Generic[R]):
    """Open requests of one objective: those whose deadline is ahead, by arrival, and those that missed it."""

    def __init__(self, objective: ObjectiveSpec, present: Iterable[R]) -> None:
        self._objective = objective
        self._ahead: OrderedDict[R, None] = OrderedDict()
        self._overdue: set[R] = set()
        for request in present:
            self.add(request)

    def add(self, request: R) -> None:
        if request.of_class == self._objective.of_class:
            self._ahead[request] = None

    def discard(self, request: R) -> None:
        self._ahead.pop(request, None)
        self._overdue.discard(request)

    def look(self, missed: Callable[[ObjectiveSpec, R, float], bool], now: float) -> int:
        while self._ahead:
            request = next(iter(self._ahead))
            if now - request.arrival <= self._objective.threshold_seconds:
                break
            del self._ahead[request]
            if missed(self._objective, request, now):
                self._overdue.add(request)
        return len(self._overdue)
