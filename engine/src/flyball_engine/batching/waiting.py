"""How long requests wait for their first admission, in constant time per request.

Pure: the clock is a parameter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class Arrivals:
    """The requests that wait for their first admission, by arrival."""

    def __init__(self) -> None:
        # The first entry of a plain dict whose first entries were deleted is not found in constant time.
        self._at: OrderedDict[Hashable, float] = OrderedDict()

    def add(self, request: Hashable, now: float) -> None:
        """A request entered the queue."""
        self._at[request] = now
        self._at.move_to_end(request)

    def take(self, request: Hashable) -> float | None:
        """A request was admitted, or left: when it came; None if it did not wait here."""
        return self._at.pop(request, None)

    def oldest(self) -> float | None:
        """When the one came that waits longest; None if nobody waits."""
        return next(iter(self._at.values()), None)
