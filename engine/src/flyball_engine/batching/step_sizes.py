"""Sizes of steps that GPUs run well: those of CUDA graphs, and beyond them few and even ones.

A step that fits no graph is launched kernel by kernel, and kernels that compile or tune by shape meet a new one with
every new size. So a step that is cut to a time is cut to a captured size, or to a multiple of `EVEN` above the largest.

Pure: imports only the standard library.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

#: Tokens: the tile of matrix kernels on current GPUs, so that no tile is partly empty. Rounding down to it costs a step
#: beyond the largest graph (512 by default) a fifth of its tokens at most.
EVEN: Final = 128


def rounded_down(tokens: int, *, graphs: Sequence[int], least: int) -> int:
    """The largest good size of a step of at most so many tokens, but never below `least`.

    `graphs`: captured sizes, rising; without any every size is as good.
    """
    if not graphs:
        return tokens
    if tokens > graphs[-1]:
        return max(least, graphs[-1], tokens - tokens % EVEN)
    smaller = bisect_right(graphs, tokens)
    return max(least, graphs[smaller - 1] if smaller else 0)
