"""What an engine core has received and still has to prefill, counted seldom enough to cost next to nothing.

A sum over a long queue takes longer than a step's bookkeeping may. So it is taken anew only after a hundred times what
it took the last time, and what was received by then is noted with it: whoever sends requests adds those it sent since.

Pure: the clock is a parameter.
"""

from __future__ import annotations

from typing import Final

#: Share of the time that counting may take: one part in so many.
_COST_SHARE: Final = 100


class Backlog:
    """How many requests were received, cumulative; and when the backlog may be counted again."""

    def __init__(self) -> None:
        self.requests = 0
        self._due = float("-inf")

    def received(self) -> None:
        """A request came in."""
        self.requests += 1

    def due(self, now: float) -> bool:
        """Whether counting again keeps within its share of the time."""
        return now >= self._due

    def counted(self, *, began: float, ended: float) -> None:
        """The backlog was counted in between."""
        self._due = ended + _COST_SHARE * (ended - began)
