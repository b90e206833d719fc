"""Notices that requests stand still although the engine steps.

Every hang that live limits could cause is silent in vLLM. The core goes on stepping and raises nothing, but some
running requests get no token any more, or the queue is never served. The floors in `setpoint_enforcer` rule out the
known ways; this watches for the unknown ones, so that the engine can return to its start values by itself.

A step costs next to nothing: what it served is kept as it is, and a step that served all that ran replaces those before
it. Only where several are kept is it looked who was served when: newest first, until all are found.

Pure: the clock is a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

#: Standing still for so long counts, and only over so many steps: one long step, or a paused engine, is no hang. With
#: the time between two checks, start values are back within 5 s; later only where 20 steps take longer than that.
PATIENCE_SECONDS: Final = 3.5
PATIENCE_STEPS: Final = 20
_CHECK_SECONDS: Final = 0.5
#: Steps that are kept between two checks at most, each with the names it served: at 512 running requests some 2 MiB.
_MOST_KEPT: Final = 64


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
        # Oldest first: who was served when. A request counts where it comes last.
        self._kept: list[tuple[_Mark, Collection[str]]] = []
        self._settled = 0
        self._served_all = False
        self._queue_still: _Mark | None = None
        self._checked = float("-inf")

    def served(self, requests: Collection[str], *, now: float, all_running: bool = False) -> None:
        """These requests got tokens in a step that ended at `now`; `all_running`: so did each that ran in it.

        They are kept, not copied: nobody may change them.
        """
        if all_running:
            self._forget()
        self._served_all = all_running
        self._kept.append((_Mark(now, self._step), requests))

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
        if now - self._checked < _CHECK_SECONDS and len(self._kept) - self._settled < _MOST_KEPT:
            return None
        self._checked = now
        return self._stalled_queue(now) or self._stalled_request(names, now)

    def reset(self) -> None:
        """Forget everything seen: after a return to start values all requests get their full patience anew."""
        self._forget()
        self._queue_still = None

    def _forget(self) -> None:
        self._kept.clear()
        self._settled = 0

    def _stalled_queue(self, now: float) -> Stall | None:
        mark = self._queue_still
        return Stall(None, now - mark.seconds) if mark is not None and self._too_old(mark, now) else None

    def _stalled_request(self, names: Callable[[], Iterable[str]], now: float) -> Stall | None:
        if self._served_all and len(self._kept) == 1 and not self._too_old(self._kept[0][0], now):
            # Whoever runs was served then, or came later.
            return None
        running = list(names())
        self._settle(running, now)
        if not self._kept or not self._too_old(self._kept[0][0], now):
            return None
        mark, oldest = self._kept[0]
        return Stall(next(name for name in running if name in oldest), now - mark.seconds)

    def _settle(self, running: Iterable[str], now: float) -> None:
        """Keep of each step those whom none served later. Finished requests take no memory then."""
        missing, kept = set(running), list[tuple[_Mark, Collection[str]]]()
        while missing and self._kept:
            mark, served = self._kept.pop()
            # Whoever is missing is looked for, not whoever was served: after the newest step these are few.
            left = missing.difference(served)
            if len(left) < len(missing):
                kept.append((mark, missing - left))
                missing = left
        kept.reverse()
        if missing:
            kept.append((_Mark(now, self._step), missing))
        self._kept, self._settled, self._served_all = kept, len(kept), False

    def _too_old(self, mark: _Mark, now: float) -> bool:
        return now - mark.seconds > self._seconds and self._step - mark.steps > self._steps
