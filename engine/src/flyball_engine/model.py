"""The step-time model and its inverse: how long a step takes, and how large a step a time allows.

    T = t0 + h·[p>0] + c1·min(tok, κ) + c2·max(0, tok − κ) + β·n + d·K + g·A

with tok the tokens a step processes, p the prefill tokens among them, n the running decodes (each one token of tok),
K the tokens of KV cache that these decodes read (the sum of their contexts), and A = sum of p·(L + p/2) over the step's
prefills, L being the context before the chunk. The hinge at κ is where a step stops being bound by reading the weights.
Seconds throughout.

Pure: imports only the standard library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """Coefficients of the step-time model, all non-negative.

    `t0` seconds per step; `h` seconds per step that prefills; `c1`, `c2` seconds per token below and above `kappa`
    tokens; `beta` seconds per running decode; `g` seconds per unit of prefill attention (token²); `d` seconds per token
    of KV cache that decodes read, 0 where nothing is known of it.
    """

    t0: float
    h: float
    c1: float
    c2: float
    beta: float
    g: float
    kappa: int
    d: float = 0.0

    @property
    def charges(self) -> bool:
        """Whether a step costs anything but for its decodes and their prompts' contexts: else any fits into no time."""
        return self.t0 + self.c1 + self.c2 > 0

    def seconds(
        self, *, decodes: float, prefill_tokens: float = 0.0, context: float = 0.0, kv_tokens: float = 0.0
    ) -> float:
        """Predicted time of one step, in seconds.

        `decodes` requests get one token each and read `kv_tokens` together, one prefill of `prefill_tokens` continues
        after `context` tokens.
        """
        attention = prefill_tokens * (context + prefill_tokens / 2)
        return self.step_seconds(
            tokens=decodes + prefill_tokens,
            decodes=decodes,
            prefills=prefill_tokens > 0,
            attention=attention,
            kv_tokens=kv_tokens,
        )

    def step_seconds(
        self, *, tokens: float, decodes: float, prefills: bool, attention: float, kv_tokens: float = 0.0
    ) -> float:
        """Predicted time of one step of any composition, in seconds.

        `tokens` it processes in all (tok), `decodes` (n), whether it prefills, its prefill `attention` (A, token²),
        `kv_tokens` that its decodes read (K).
        """
        below, above = (tokens, 0.0) if tokens < self.kappa else (self.kappa, tokens - self.kappa)
        return (
            self.t0
            + (self.h if prefills else 0.0)
            + self.c1 * below
            + self.c2 * above
            + self.beta * decodes
            + self.d * kv_tokens
            + self.g * attention
        )

    def largest_chunk(
        self,
        *,
        seconds: float,
        tokens: float,
        decodes: float,
        attention: float = 0.0,
        kv_tokens: float = 0.0,
        prompts: int = 1,
        context: float = 0.0,
    ) -> float:
        """Most prefill tokens that each of `prompts` may add to a step without it passing `seconds`; may be infinite.

        The step has `tokens`, `decodes`, `attention` and `kv_tokens` already; `context` is the sum of the prompts'
        contexts. 0 if the step is full. Piecewise quadratic and increasing, so each side of the hinge is solved in
        turn.
        """
        slack = seconds - self.step_seconds(
            tokens=tokens, decodes=decodes, prefills=True, attention=attention, kv_tokens=kv_tokens
        )
        if slack <= 0:
            return 0.0
        bend, rise = self.g * prompts / 2, self.g * context
        below = max(0.0, self.kappa - tokens) / prompts
        chunk = _root(bend, self.c1 * prompts + rise, slack)
        if chunk <= below:
            return chunk
        # Up to the hinge tokens cost c1, so the line of c2 begins that much lower or higher.
        slack -= (self.c1 - self.c2) * prompts * below
        return _root(bend, self.c2 * prompts + rise, slack)


def _root(a: float, b: float, c: float) -> float:
    """The positive root of a·x² + b·x = c for a, b >= 0 and c >= 0; infinite if a = b = 0."""
    # Not the textbook's form: that loses all digits where a is small.
    divisor = b + math.sqrt(b * b + 4 * a * c)
    return 2 * c / divisor if divisor > 0 else math.inf
