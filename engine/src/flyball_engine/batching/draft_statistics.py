"""What becomes of drafts, position by position: what a depth of speculation is chosen by.

A position is the first, second, … token that was drafted for a decode in one step. A draft is accepted up to the first
token that the model refuses. So the accepted tokens of the first k positions are what a depth of k makes, whatever
depth they were drafted at.

Pure. The sums live in a flat array, so that they can be a part of a shared-memory file.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, MutableSequence, Sequence
from typing import Final, NamedTuple

from flyball_engine.contract import MOST_DRAFTS

_WIDTH: Final = 3
#: Numbers in the flat array.
DRAFT_SUMS_LENGTH: Final = MOST_DRAFTS * _WIDTH
#: Seconds between two steps that draft at the depth the engine was started with, while it drafts less. So it stays
#: known what the deeper positions bring. At 20 ms a step, one in 250 then takes longer.
PROBE_SECONDS: Final = 5.0


class DraftPosition(NamedTuple):
    """One position, cumulative: decodes that were `offered` it, those for which it was `drafted`, and `accepted`.

    Drafters that look for what was there before, such as n-grams, often find nothing.
    """

    offered: float
    drafted: float
    accepted: float


class DraftStatistics:
    """Counts for one engine core, in `sums`."""

    def __init__(self, sums: MutableSequence[float] | None = None) -> None:
        self.sums: MutableSequence[float] = array("d", bytes(8 * DRAFT_SUMS_LENGTH)) if sums is None else sums

    def stepped(self, depth: int, decodes: Iterable[tuple[int, int]]) -> None:
        """A step ended for whose decodes up to `depth` tokens might be drafted: of each those drafted and accepted."""
        positions = min(depth, MOST_DRAFTS)
        drafted, accepted = [0] * (positions + 1), [0] * (positions + 1)
        for drafts, made in decodes:
            drafted[min(drafts, positions)] += 1
            accepted[min(made, positions)] += 1
        offered = sum(drafted)
        for position in range(positions):
            self.add(position, DraftPosition(offered, sum(drafted[position + 1 :]), sum(accepted[position + 1 :])))

    def add(self, position: int, counts: DraftPosition) -> None:
        """So many more at a position, counted from 0."""
        for at, count in enumerate(counts):
            self.sums[position * _WIDTH + at] += count


def draft_positions(sums: Sequence[float]) -> tuple[DraftPosition, ...]:
    """The positions that some decode was offered, in order."""
    rows = (DraftPosition(*sums[start : start + _WIDTH]) for start in range(0, DRAFT_SUMS_LENGTH, _WIDTH))
    return tuple(row for row in rows if row.offered)
