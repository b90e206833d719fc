"""How many tokens a request will hold when it ends, told before it has ended.

A request that names the most it wants is taken at its word. One that names nothing is expected to end like recent ones
that named nothing: at a quantile of their output lengths.

Pure: imports only the standard library.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Final

#: Finished requests that are remembered: enough for a 99 % quantile, few enough to follow the traffic.
REMEMBERED: Final = 256


class OutputLengths:
    """The output lengths of the last requests that named no `max_tokens` and ended by themselves."""

    def __init__(self, *, remembered: int = REMEMBERED) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        self._remembered = remembered

    def ended(self, tokens: int) -> None:
        """A request ended after so many output tokens."""
        self._recent.append(tokens)
        insort(self._sorted, tokens)
        if len(self._recent) > self._remembered:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def quantile(self, share: float) -> int | None:
        """The output length that `share` (0…1) of them did not exceed; None before any has ended."""
        if not self._sorted:
            return None
        return self._sorted[max(0, math.ceil(share * len(self._sorted)) - 1)]


def tokens_to_end(*, prompt: int, produced: int, most: int | None, expected: int | None, model_length: int) -> int:
    """Tokens a request holds when it ends: `prompt`, and `most` output tokens where it names them.

    Otherwise the `expected` ones, or the rest of the model's length if nothing is known. One that has `produced` more
    than expected already is expected to end with its next token, again and again.
    """
    if most is None:
        most = model_length if expected is None else max(expected, produced + 1)
    return min(prompt + most, model_length)
