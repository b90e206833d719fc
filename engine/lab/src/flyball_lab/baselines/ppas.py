"""P-PAS: a step's tokens by the pressure of prompts.

Sämann, arXiv:2608.15171, and vLLM RFC 52906: with two or more active prefills (running or waiting) beside at least one
running decode, a step has `CAP` tokens, otherwise `MOST`. It is a rule of the scheduler, so it is asked before each
step. Both constants are the paper's; a step never has more tokens than the engine was started with, so `MOST` is that.
Pure.
"""

from __future__ import annotations

from typing import Final

CAP: Final = 2048
MOST: Final = 16_384
PRESSURE: Final = 2


def tokens(*, prefills: int, decodes: int) -> int:
    """Of the next step. `prefills`: requests whose prompt is not processed to its end, those that wait among them."""
    return CAP if prefills >= PRESSURE and decodes > 0 else MOST
