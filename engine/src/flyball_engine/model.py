"""The step-time model and its inverse: how long a step takes, and how large a step a time allows.

    T = t0 + h·[p>0] + c1·min(tok, κ) + c2·max(0, tok − κ) + β·n + g·A

with tok the tokens a step processes, p the prefill tokens among them, n the running decodes (each one token of tok),
and A = sum of p·(L + p/2) over the step's prefills, L being the context before the chunk. The hinge at κ is where a
step stops being bound by reading the weights. β carries the KV a decode reads at the mean context: KV and n are
collinear in practice, so one coefficient holds both. Seconds throughout.

Pure: imports only the standard library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """Coefficients of the step-time model, all non-negative.

    `t0` seconds per step; `h` seconds per step that prefills; `c1`, `c2` seconds per token below and above `kappa`
    tokens; `beta` seconds per running decode; `g` seconds per unit of prefill attention (token²).
    """

    t0: float
    h: float
    c1: float
    c2: float
    beta: float
    g: float
    kappa: int

    def seconds(self, *, decodes: float, prefill_tokens: float = 0.0, context: float = 0.0) -> float:
        """Predicted time of one step, in seconds.

        `decodes` requests get one token each, one prefill of `prefill_tokens` continues after `context` tokens.
        """
        tokens = decodes + prefill_tokens
        return (
            self.t0
            + (self.h if prefill_tokens > 0 else 0.0)
            + self.c1 * min(tokens, self.kappa)
            + self.c2 * max(0.0, tokens - self.kappa)
            + self.beta * decodes
            + self.g * prefill_tokens * (context + prefill_tokens / 2)
        )

    def largest_prefill(self, *, seconds: float, decodes: float, context: float = 0.0) -> float:
        """Most prefill tokens that fit beside `decodes` into a step of `seconds`; 0 if none does, may be infinite.

        Piecewise quadratic in p, increasing, so each side of the hinge is solved and the first that fits is taken.
        """
        if self.seconds(decodes=decodes, prefill_tokens=1.0, context=context) > seconds:
            return 0.0
        below = max(0.0, self.kappa - decodes)
        if self.seconds(decodes=decodes, prefill_tokens=max(1.0, below), context=context) > seconds:
            slack = seconds - (self.t0 + self.h + (self.c1 + self.beta) * decodes)
            return _root(self.g / 2, self.c1 + self.g * context, slack)
        base = self.t0 + self.h + self.c1 * min(decodes, self.kappa) + self.c2 * max(0.0, decodes - self.kappa)
        slack = seconds - base - self.beta * decodes - (self.c1 - self.c2) * below
        return _root(self.g / 2, self.c2 + self.g * context, slack)


def _root(a: float, b: float, c: float) -> float:
    """The positive root of a·x² + b·x = c for a, b >= 0 and c >= 0; infinite if a = b = 0."""
    if a > 0:
        return (math.sqrt(b * b + 4 * a * c) - b) / (2 * a)
    return c / b if b > 0 else math.inf
