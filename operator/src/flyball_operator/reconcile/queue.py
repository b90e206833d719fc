"""Which service is worked on next: each key once, one worker per key, failures further and further apart.

A hundred changes of one service make one look at it, not a hundred. A key that fails waits twice as long each time, up
to five minutes. A new generation of the spec ends the wait at once, for the user has changed something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

FIRST_RETRY_SECONDS: Final = 0.5
LONGEST_RETRY_SECONDS: Final = 300.0
#: Retries are spread by up to this share, so that what failed together is not tried together.
JITTER: Final = 0.2

#: Entries that may be over before the others are put in order anew.
_SPARE: Final = 64

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class Keys(Protocol[K_contra]):
    """What takes keys to work on."""

    def add(self, key: K_contra) -> None:
        """See `Schedule.add`."""
        ...

    def urge(self, key: K_contra) -> None:
        """See `Schedule.urge`."""
        ...


class Schedule(Generic[K]):
    """When each key is due. Pure but for what it remembers: the time is a parameter."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._due: dict[K, float] = {}
        #: What becomes due, numbered for those that do so at the same time. What `_due` contradicts is over.
        self._heap: list[tuple[float, int, K]] = []
        self._numbers = count()
        self._failures: dict[K, int] = {}
        self._active: set[K] = set()

    def __len__(self) -> int:
        """Keys that wait."""
        return len(self._due)

    @property
    def active(self) -> int:
        """Keys that are being worked on."""
        return len(self._active)

    def add(self, key: K, now: float, delay: float = 0.0) -> None:
        """Make the key due, no later than it already is. One that failed keeps waiting for its retry."""
        if key in self._failures and key in self._due:
            return
        if now + delay < self._due.get(key, float("inf")):
            self._put(key, now + delay)

    def urge(self, key: K, now: float) -> None:
        """Make the key due now, whatever failed before."""
        self._failures.pop(key, None)
        self._put(key, now)

    def take(self, now: float) -> K | None:
        """The key that has been due longest and is not being worked on; it is until `done`."""
        following = self._following()
        if following is None or following[0] > now:
            return None
        _, key = following
        del self._due[key]
        self._active.add(key)
        return key

    def wait(self, now: float) -> float | None:
        """Seconds until a key is due; None if none waits."""
        following = self._following()
        return max(0.0, following[0] - now) if following is not None else None

    def _put(self, key: K, due: float) -> None:
        self._due[key] = due
        heappush(self._heap, (due, next(self._numbers), key))
        if len(self._heap) > 2 * len(self._due) + _SPARE:
            # Most are over.
            self._heap = [(when, next(self._numbers), one) for one, when in self._due.items()]
            heapify(self._heap)

    def _following(self) -> tuple[float, K] | None:
        """The key that is due first of those that are not being worked on, and when."""
        active: list[tuple[float, int, K]] = []
        while self._heap:
            due, _, key = self._heap[0]
            if self._due.get(key) == due and key not in self._active:
                break
            entry = heappop(self._heap)
            if self._due.get(key) == due:
                active.append(entry)
        found = (self._heap[0][0], self._heap[0][2]) if self._heap else None
        for entry in active:
            heappush(self._heap, entry)
        return found

    def done(self, key: K) -> None:
        """The work on the key has ended."""
        self._active.discard(key)

    def succeeded(self, key: K) -> None:
        """Forget its failures."""
        self._failures.pop(key, None)

    def failed(self, key: K, now: float) -> float:
        """Make it due again after a while; returns how long a while."""
        before = self._failures.get(key, 0)
        self._failures[key] = before + 1
        delay = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(before, 20))
        delay *= 1 + JITTER * (2 * self._jitter() - 1)
        # Already due: something happened while it was worked on. It waits all the same, or a fault would spin.
        self._put(key, now + delay)
        return delay


class KeyQueue(Generic[K]):
    """A `Schedule` that workers can wait on."""

    def __init__(self, *, clock: Callable[[], float], jitter: Callable[[], float]) -> None:
        self._clock = clock
        self._schedule: Schedule[K] = Schedule(jitter)
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._schedule)

    def add(self, key: K, delay: float = 0.0) -> None:
        """See `Schedule.add`."""
        self._schedule.add(key, self._clock(), delay)
        self._changed.set()

    def urge(self, key: K) -> None:
        """See `Schedule.urge`."""
        self._schedule.urge(key, self._clock())
        self._changed.set()

    async def get(self) -> K:
        """Wait for a key to work on. Call `done` after it."""
        while True:
            self._changed.clear()
            now = self._clock()
            key = self._schedule.take(now)
            if key is not None:
                self._idle.clear()
                return key
            try:
                async with asyncio.timeout(self._schedule.wait(now)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: K) -> None:
        """The work on the key has ended."""
        self._schedule.done(key)
        if not self._schedule.active:
            self._idle.set()
        self._changed.set()

    async def idle(self) -> None:
        """Wait until no key is being worked on."""
        await self._idle.wait()

    def succeeded(self, key: K) -> None:
        """Forget its failures."""
        self._schedule.succeeded(key)

    def failed(self, key: K) -> float:
        """Try it again after a while; returns how many seconds."""
        self._changed.set()
        return self._schedule.failed(key, self._clock())
