"""How long prompts and answers are: distributions fitted to published figures, drawn by a source that is a parameter.

`conversation`: quantiles of the Azure 2023 conversation trace (Azure/AzurePublicDataset, CC-BY 4.0; 19 366 requests,
prompts of 1155 tokens in the mean, answers of 211), interpolated. The others are lognormal, by published medians, means
and 99th percentiles: code completion (Azure 2023 code), long chats over shared prefixes (Mooncake conversation),
reasoning, and retrieval (25 000 tokens in, 32 out, the load of vLLM RFC 52906).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol


class Lengths(Protocol):
    """A distribution of numbers of tokens."""

    def draw(self, random: Random) -> int:
        """One number, at least 1."""


@dataclass(frozen=True)
class Quantiles:
    """Piecewise uniform between quantiles: pairs of share and tokens, the first of share 0, the last of share 1."""

    points: tuple[tuple[float, float], ...]

    def draw(self, random: Random) -> int:
        """By inversion."""
        share = random.random()
        above = min(bisect_right(self.points, (share, math.inf)), len(self.points) - 1)
        (low, least), (high, most) = self.points[above - 1], self.points[above]
        return max(1, round(least + (most - least) * (share - low) / (high - low)))


@dataclass(frozen=True, kw_only=True)
class Lognormal:
    """`median` tokens, `sigma` of the logarithm, at most `most`."""

    median: float
    sigma: float
    most: int = 30_000

    def draw(self, random: Random) -> int:
        """One number."""
        return min(self.most, max(1, round(random.lognormvariate(math.log(self.median), self.sigma))))


@dataclass(frozen=True)
class Shape:
    """A kind of request. Of its prompt the first `shared` tokens are one of `prefixes` that requests have in common."""

    prompt: Lengths
    output: Lengths
    shared: int = 0
    prefixes: int = 0


def around(prompt: int, output: int, *, spread: float = 0.3) -> Shape:
    """Lognormal lengths of these means."""
    narrower = math.exp(-(spread**2) / 2)
    return Shape(Lognormal(median=prompt * narrower, sigma=spread), Lognormal(median=output * narrower, sigma=spread))


_CONVERSATION: Final = Shape(
    prompt=Quantiles(
        (
            (0.0, 2),
            (0.05, 181),
            (0.1, 207),
            (0.2, 387),
            (0.3, 403),
            (0.4, 703),
            (0.5, 1020),
            (0.6, 1071),
            (0.7, 1130),
            (0.75, 1189),
            (0.8, 1315),
            (0.9, 2735),
            (0.95, 4083),
            (0.99, 4142),
            (0.999, 6212),
            (1.0, 14050),
        )
    ),
    output=Quantiles(
        (
            (0.0, 7),
            (0.05, 41),
            (0.1, 54),
            (0.2, 77),
            (0.3, 91),
            (0.4, 103),
            (0.5, 129),
            (0.6, 177),
            (0.7, 384),
            (0.8, 400),
            (0.9, 424),
            (0.95, 451),
            (0.99, 601),
            (0.999, 954),
            (1.0, 1000),
        )
    ),
)
#: By name.
SHAPES: Final[Mapping[str, Shape]] = {
    "conversation": _CONVERSATION,
    # Prompts 1.5k in the median and 2k in the mean; answers 28 in the mean, 250 at the 99th percentile.
    "code": Shape(prompt=Lognormal(median=1500, sigma=0.76), output=Lognormal(median=12, sigma=1.31, most=1000)),
    # Prompts 6.9k in the median, 40k at the 95th percentile; answers 340 in the mean.
    "long-chat": Shape(
        prompt=Lognormal(median=6900, sigma=1.07), output=Lognormal(median=260, sigma=0.73), shared=2048, prefixes=32
    ),
    "reasoning": Shape(prompt=Lognormal(median=300, sigma=0.7), output=Lognormal(median=4000, sigma=0.42, most=8000)),
    "retrieval": Shape(prompt=Lognormal(median=25_000, sigma=0.1), output=Lognormal(median=32, sigma=0.2)),
    # Documents to be talked about: 6500 tokens in, 300 out.
    "long-prompt": around(6500, 300),
    "short": around(300, 60),
}
