"""The limits of a simulated engine's queue: whoever comes beyond them is refused, as vLLM does."""

from __future__ import annotations

import itertools
import math

from flyball_engine.contract import QueueLimits
from flyball_lab.simulator.scheduler import Scheduler


class QueueLimiter:
    """The limits in force, as long as they are."""

    def __init__(self) -> None:
        self._limits, self._until = QueueLimits(), math.inf

    def follow(self, limits: QueueLimits, *, until: float) -> None:
        """Have these limits in force."""
        self._limits, self._until = limits, until

    def full(self, scheduler: Scheduler, now: float) -> bool:
        """Whether the limits refuse whoever comes; as in vLLM the last one let in may pass them."""
        reqs, tokens = self._limits.max_num_queued_reqs, self._limits.max_num_queued_tokens
        if now >= self._until or (reqs is None and tokens is None):
            return False
        if reqs is not None and len(scheduler.running) + len(scheduler.waiting) >= reqs:
            return True
        unserved = itertools.chain(scheduler.prefilling, scheduler.waiting)
        return tokens is not None and sum(request.prompt for request in unserved) >= tokens
