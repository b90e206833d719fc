"""Notices that requests stand still although the engine steps.

Every hang that live limits could cause is silent in vLLM: the core goes on stepping, raises nothing, and either some
running requests get no token any more or the queue is never served. The floors in `limits` rule out the known ways;
this watches for the unknown ones, so that the engine can return to its start values by itself.

Pure: the clock is a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

#: Standing still for so long counts, and only over so many steps: one long step, or a paused engine, is no hang. With
#: the time between two checks, start values are back within 5 s; later only where 20 steps take longer than that.
PATIENCE_SECONDS: Final = 3.5
PATIENCE_STEPS: Final = 20
#: The same where a connector moves KV caches between engines: an engine then waits for others, and schedules nothing
#: meanwhile although nothing is wrong with it.
PATIENCE_WITH_CONNECTOR_SECONDS: Final = 60.0
_CHECK_SECONDS: Final = 0.5
#: Steps whose requests are remembered unmerged at most.
_MOST_UNMERGED: Final = 64


class _Mark(NamedTuple):
    """A moment, in seconds and in steps."""

    seconds: float
    steps: int


@dataclass(frozen=True)
class Stall:
    """What stands still: `request` a running one that gets no tokens, or None for the queue; `seconds` for how long."""

    request: str | None
    seconds: float


class Watchdog:
    """Keeps the age of each running request's last token, and of the queue's last admission."""

    def __init__(self, *, seconds: float = PATIENCE_SECONDS, steps: int = PATIENCE_STEPS) -> None:
        self._seconds = seconds
        self._steps = steps
        self._step = 0
        self._served: dict[str, _Mark] = {}
        # Steps since the last check: most requests are in all of them, and only the last counts.
        self._since: list[tuple[Iterable[str], _Mark]] = []
        self._queue_still: _Mark | None = None
        self._checked = float("-inf")

    def served(self, requests: Iterable[str], *, now: float) -> None:
        """These requests got tokens in a step that ended at `now`."""
        self._since.append((requests, _Mark(now, self._step)))
        if len(self._since) >= _MOST_UNMERGED:
            self._merge()

    def stepped(
        self, *, running: int, waiting: int, scheduled: int, names: Callable[[], Iterable[str]], now: float
    ) -> Stall | None:
        """A step was planned at `now` with `scheduled` tokens; tell what stands still, if something does.

        `names` gives the running requests that must get tokens; it is asked about twice a second, not in every step.
        """
        self._step += 1
        if waiting == 0 or running > 0 or scheduled > 0:
            self._queue_still = None
        elif self._queue_still is None:
            self._queue_still = _Mark(now, self._step)
        if now - self._checked < _CHECK_SECONDS:
            return None
        self._checked = now
        self._merge()
        return self._stalled_queue(now) or self._stalled_request(names(), now)

    def reset(self) -> None:
        """Forget everything seen: after a return to start values all requests get their full patience anew."""
        self._served.clear()
        self._since.clear()
        self._queue_still = None

    def _merge(self) -> None:
        for requests, mark in self._since:
            self._served.update(dict.fromkeys(requests, mark))
        self._since.clear()

    def _stalled_queue(self, now: float) -> Stall | None:
        mark = self._queue_still
        return Stall(None, now - mark.seconds) if mark is not None and self._too_old(mark, now) else None

    def _stalled_request(self, running: Iterable[str], now: float) -> Stall | None:
        # Rebuilt from the running ones, so that finished requests take no memory.
        fresh = _Mark(now, self._step)
        self._served = {request: self._served.get(request, fresh) for request in running}
        oldest = min(self._served.items(), key=lambda item: item[1].steps, default=None)
        if oldest is None or not self._too_old(oldest[1], now):
            return None
        return Stall(oldest[0], now - oldest[1].seconds)

    def _too_old(self, mark: _Mark, now: float) -> bool:
        return now - mark.seconds > self._seconds and self._step - mark.steps > self._steps
