"""The schedule of drafts that engines are started with, so that the depth of speculation can be moved live. Pure.

vLLM takes a number of draft tokens for each size of the batch, and prepares for the numbers in this schedule alone. So
Flyball's has all of them, and the plugin then writes the one of now for every size. A schedule of another shape is the
user's own.
"""

from __future__ import annotations

from collections.abc import Sequence


def draft_schedule(most: int, slots: int) -> list[list[int]]:
    """The first and last size of batches and what they draft, of all depths up to `most`; more `slots` than these.

    Each lesser depth has one of the last sizes.
    """
    last = [[slots - depth, slots - depth, depth] for depth in reversed(range(most))]
    return [[1, slots - most, most], *last]


def has_all_depths(by_batch: Sequence[int]) -> bool:
    """Whether these draft tokens by the size of the batch, entry 0 being unused, are those of Flyball's schedule."""
    slots, most = len(by_batch) - 1, max(by_batch, default=0)
    return slots > most > 0 and list(by_batch[1:]) == [min(most, slots - size) for size in range(1, slots + 1)]
