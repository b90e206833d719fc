"""Of which open requests it is certain already whether they meet an objective: of first tokens, or of the whole.

A request counts when it ends. In the on-time order, who is late waits behind the others, maybe for minutes: what only
ends would look well meanwhile. Answers are long, too: to count who is late at once and who is in time at the end would
look bad. So both are known here once the deadline has passed. What it costs depends on how many requests come, not on
how many are open.

Pure: times are parameters, in seconds of any one clock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from flyball_engine.contract import Metric, ObjectiveSpec

#: What is certain after a wait, whatever comes later: a mean over an answer may change yet.
_CERTAIN_AFTER: Final = (Metric.TIME_TO_FIRST_TOKEN, Metric.END_TO_END_LATENCY)


class _Timed(Protocol):
    @property
    def arrival(self) -> float:
        """When it came in."""

    @property
    def of_class(self) -> str:
        """Its class."""


R = TypeVar("R", bound=_Timed)


class OpenOutcomes(Generic[R]):
    """`verdict` says whether a request behind its deadline meets an objective, None if it has ended. For any thread."""

    def __init__(self, verdict: Callable[[ObjectiveSpec, R, float], bool | None]) -> None:
        self._verdict = verdict
        self._lock = threading.Lock()
        self._waits: dict[ObjectiveSpec, _Waits[R]] = {}

    def follow(self, by_class: Mapping[str, Sequence[ObjectiveSpec]], present: Iterable[R]) -> None:
        """These are the objectives from now on. `present`: the open requests, the oldest first."""
        wanted = [one for each in by_class.values() for one in each if one.metric in _CERTAIN_AFTER]
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

    def counts(self, now: float) -> dict[tuple[str, bool], int]:
        """Open requests by objective id, and whether they meet it. Times that it is called with do not fall."""
        found: dict[tuple[str, bool], int] = {}
        with self._lock:
            for one in self._waits.values():
                one.look(self._verdict, now)
                found |= {(one.id, True): len(one.met), (one.id, False): len(one.violated)}
        return found


class _Waits(Generic[R]):
    """Open requests of one objective: those whose deadline is ahead, by arrival, and those of which it is certain."""

    def __init__(self, objective: ObjectiveSpec, present: Iterable[R]) -> None:
        self.id = objective.id
        self._objective = objective
        self._ahead: OrderedDict[R, None] = OrderedDict()
        self.met: set[R] = set()
        self.violated: set[R] = set()
        for request in present:
            self.add(request)

    def add(self, request: R) -> None:
        if request.of_class == self._objective.of_class:
            self._ahead[request] = None

    def discard(self, request: R) -> None:
        self._ahead.pop(request, None)
        self.met.discard(request)
        self.violated.discard(request)

    def look(self, verdict: Callable[[ObjectiveSpec, R, float], bool | None], now: float) -> None:
        while self._ahead:
            request = next(iter(self._ahead))
            if now - request.arrival <= self._objective.threshold_seconds:
                return
            del self._ahead[request]
            meets = verdict(self._objective, request, now)
            if meets is not None:
                (self.met if meets else self.violated).add(request)
