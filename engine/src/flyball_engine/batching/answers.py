"""How long an answer will be, and what an end-to-end objective leaves its first token.

Who names the most tokens it wants knows something of its answer, if not its length. So an answer is expected to be as
long as recent ones of requests that named about as many tokens, within a factor of two. What a token takes is measured,
too. Where a whole answer is asked for in time, one that is expected to be well above the mean must begin the earlier.
One that will be too long however early it begins is hopeless.

The others keep the deadline that a mean answer has. The mean is that of requests that come, refused ones among them. So
whatever lengths scatter by, and whatever the mix becomes, not all are hopeless for long.

Pure: seconds and tokens throughout.
"""

from __future__ import annotations

import math
from typing import Final

#: Weight of one answer in the mean time of a token.
_TOKEN_WEIGHT: Final = 0.02
#: What is known of lengths is kept by this share with each answer that ends: some 500 are remembered. Of sizes that are
#: refused no answer ends, so that these are tried again.
_KEPT: Final = 0.998
#: The same of requests that come: some 100 are remembered, so that a mix that changed is known after as many.
_KEPT_OF_ARRIVALS: Final = 0.99
#: The largest size: no engine answers with more tokens.
_LARGEST: Final = 40
#: Answers that say as much as what is expected before there are any: a mean one, or all that was named.
_PRIOR: Final = 8.0
#: Times the mean, from which an answer counts as long. Where all name the same, chance must not make some of them long.
_LONG: Final = 1.25


class Answers:
    """Answers that came to their end, by the tokens that their requests named. From one thread."""

    def __init__(self) -> None:
        self._all = _Lengths()
        self._arrivals = _Lengths()
        self._by_size: dict[int, _Lengths] = {}
        self._ended = 0
        self._per_token = 0.0

    def ended(self, *, tokens: int, named: int | None, per_token: float | None) -> None:
        """An answer of so many tokens ended, each of which took `per_token` seconds after the first.

        `named`: the most tokens that its request wanted; None if it did not say.
        """
        for lengths in (self._all, *self._by_size.values()):
            lengths.fade(_KEPT)
        self._all.add(tokens)
        if named is not None:
            self._by_size.setdefault(_size(named), _Lengths()).add(tokens)
        if per_token is not None:
            self._ended += 1
            self._per_token += max(_TOKEN_WEIGHT, 1 / self._ended) * (per_token - self._per_token)

    def left(self, seconds: float, named: int | None) -> float:
        """Seconds that are left to the first token of a request that comes, where all of its answer may take so many.

        Infinite where nothing says that the answer will be longer than others; below 0 where it will be too long.
        """
        if not self._ended:
            return math.inf
        mean = self._all.mean()
        expected = mean if named is None else self._by_size.get(_size(named), _NONE).mean(min(mean, named))
        self._arrivals.fade(_KEPT_OF_ARRIVALS)
        self._arrivals.add(expected)
        is_long = named is not None and expected > _LONG * self._arrivals.mean(mean)
        return seconds - (expected - 1) * self._per_token if is_long else math.inf


class _Lengths:
    """A mean of lengths, of which older ones count less."""

    __slots__ = ("_count", "_tokens")

    def __init__(self) -> None:
        self._count = 0.0
        self._tokens = 0.0

    def fade(self, kept: float) -> None:
        self._count *= kept
        self._tokens *= kept

    def add(self, tokens: float) -> None:
        self._count += 1
        self._tokens += tokens

    def mean(self, prior: float | None = None) -> float:
        """The mean, drawn to a prior if there is one; without it there must be a length."""
        if prior is None:
            return self._tokens / self._count
        return (self._tokens + _PRIOR * prior) / (self._count + _PRIOR)


_NONE: Final = _Lengths()


def _size(named: int) -> int:
    """The power of two that is next above."""
    return min(_LARGEST, (max(1, named) - 1).bit_length())
