"""Requests that wait beside free slots and are not admitted, as the read-backs show it.

`filters.Rollback` acts on it.

The engine's watchdog sees a queue that stands still only where nothing runs, and only while the core steps. Here the
rest is seen, later than it acts: a core that does not step at all, and a queue that nobody serves beside running
requests. Such a queue forms under a budget which the running ones use up. Where users ask that requests be kept back,
`actuate/engine_handle.py` does not look. Pure; seconds of one clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from flyball_engine.contract import LONGEST_PATIENCE_SECONDS, CoreState, StrategyType
from flyball_operator.tuning.tunables import TUNABLES

#: Seconds between read-backs of a pod that has confirmed.
VERIFY_SECONDS: Final = 15.0
#: A read-back more than the watchdog's patience: where the watchdog can act, it has.
STUCK_SECONDS: Final = LONGEST_PATIENCE_SECONDS + VERIFY_SECONDS


@dataclass(frozen=True, kw_only=True)
class AdmissionStall:
    """A core that had requests waiting and slots free at each read-back from `since` to `seen`, and let none in.

    `prefilled` prompt tokens and `steps` since the engine's start, as they were then; `stepping`: steps were made.
    """

    since: float
    seen: float
    prefilled: int
    steps: int
    stepping: bool = False

    @property
    def stuck(self) -> bool:
        """Whether it lasted long enough to be no chance: the watchdog could act before."""
        return self.seen - self.since >= STUCK_SECONDS


def observed(before: AdmissionStall | None, core: CoreState, now: float) -> AdmissionStall | None:
    """The stall with one more read-back; None where requests need not wait, or are let in."""
    slots = core.effective.max_num_active_seqs
    if core.waiting == 0 or core.strategy is not StrategyType.CONTINUOUS:
        return None
    if core.running > 0 and (core.kv_cache_usage > TUNABLES.kv_free or (slots is not None and core.running >= slots)):
        return None
    prefilled = sum(sums.prefill_tokens for sums in core.steps)
    steps = sum(sums.steps for sums in core.steps)
    if before is None or prefilled != before.prefilled:
        return AdmissionStall(since=now, seen=now, prefilled=prefilled, steps=steps)
    return replace(before, seen=now, stepping=steps != before.steps)
