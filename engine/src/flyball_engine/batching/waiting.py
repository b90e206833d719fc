"""How long requests wait for their first admission, in constant time per request.

Pure: the clock is a parameter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final

#: Entries of requests that wait no more and may stay beside as many that do.
_SLACK: Final = 64


class Arrivals:
    """The requests that wait for their first admission, by arrival."""

    def __init__(self) -> None:
        self._at: dict[Hashable, float] = {}
        # In order of arrival; who waits no more is dropped when it comes to stand first. (The first entry of a dict
        # whose first entries were deleted is not found in constant time.)
        self._order: deque[tuple[float, Hashable]] = deque()

    def __len__(self) -> int:
        return len(self._at)

    def add(self, request: Hashable, now: float) -> None:
        """A request entered the queue."""
        self._at[request] = now
        self._order.append((now, request))
        if len(self._order) > 2 * len(self._at) + _SLACK:
            self._order = deque(entry for entry in self._order if self._waits(entry))

    def take(self, request: Hashable) -> float | None:
        """A request was admitted, or left: when it came; None if it did not wait here."""
        return self._at.pop(request, None)

    def oldest(self) -> float | None:
        """When the one came that waits longest; None if nobody waits."""
        order = self._order
        while order and not self._waits(order[0]):
            order.popleft()
        return order[0][0] if order else None

    def _waits(self, entry: tuple[float, Hashable]) -> bool:
        return self._at.get(entry[1]) == entry[0]
