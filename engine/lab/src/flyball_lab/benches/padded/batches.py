"""Which of those that wait make the next padded batch: prompts of like length, within a token budget. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def next_batch(lengths: Sequence[int], *, budget: int) -> list[int]:
    """The places of its members among those that wait, whose `lengths` in tokens come in order of arrival.

    The first is always a member, so that nobody starves. The others are the nearest to it in length, as long as all
    rows, each as long as the longest, have at most `budget` tokens.
    """
    first = lengths[0]
    chosen, longest = [0], first
    for place in sorted(range(1, len(lengths)), key=lambda one: abs(lengths[one] - first)):
        longest = max(longest, lengths[place])
        if longest * (len(chosen) + 1) > budget:
            break
        chosen.append(place)
    return chosen


def computed_tokens(lengths: Sequence[int]) -> int:
    """What a padded batch of such prompts computes."""
    return len(lengths) * max(lengths)
