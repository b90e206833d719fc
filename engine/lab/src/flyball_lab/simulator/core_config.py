"""What a simulated engine core is started with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Final

from flyball_engine.batching.setpoint_enforcer import RequestedLimits, Sizes
from flyball_engine.contract import Knob, SchedulingPolicy

#: Knobs that a simulated core without speculation cannot move.
FIXED: Final = (Knob.NUM_SPECULATIVE_TOKENS,)


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """`drafts` tokens per decode and step at most; each is accepted with chance `acceptance` if those before were."""

    drafts: int
    acceptance: float

    def steps(self, tokens: int, depth: int, random: Random) -> int:
        """Steps in which a decode makes so many tokens: each makes one, and its drafts up to the first refused."""
        if self.acceptance <= 0.0 or not depth:
            return tokens
        steps = made = 0
        scale = math.log(self.acceptance) if self.acceptance < 1.0 else -1e-300
        while made < tokens:
            accepted = math.log(1.0 - random.random()) / scale
            made += 1 + int(min(depth, accepted))
            steps += 1
        return steps


@dataclass(frozen=True, kw_only=True)
class CoreConfig:
    """What a core is started with. `start` are its first limits, absent its sizes."""

    sizes: Sizes
    kv_tokens: int
    start: RequestedLimits | None = None
    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    speculation: Speculation | None = None
