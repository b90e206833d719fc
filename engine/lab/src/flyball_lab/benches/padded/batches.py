"""Which of those that wait make the next padded batch: prompts of like length, within a token budget. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: The share of padding that a batch may have. A queue that is seldom long has few of like length: without this limit
#: batches of all that wait are a third padding, and that takes longer than the batches which it saves.
MOST_PADDING: Final = 0.05


def next_batch(lengths: Sequence[int], *, budget: int) -> list[int]:
    """The places of its members among those that wait, whose `lengths` in tokens come in order of arrival.

    The first is always a member, so that nobody starves. The others are the nearest to it in length, as long as all
    rows, each as long as the longest, have at most `budget` tokens, and few of them are padding.
    """
    first = lengths[0]
    chosen, members = [0], [first]
    for place in sorted(range(1, len(lengths)), key=lambda one: abs(lengths[one] - first)):
        members.append(lengths[place])
        computed = computed_tokens(members)
        if computed > budget or sum(members) < (1 - MOST_PADDING) * computed:
            break
        chosen.append(place)
    return chosen


def computed_tokens(lengths: Sequence[int]) -> int:
    """What a padded batch of such prompts computes."""
    return len(lengths) * max(lengths)
