"""Requests that wait while places are free, and nobody lets in: seen from the read-backs, and what is done then.

The engine's watchdog sees a queue that stands still only where nothing runs, and only while the core steps. Here the
rest is seen, later than it acts: a core that does not step at all, and a queue that nobody serves beside requests that
run, as under a budget which the running ones use up. Pure; seconds of one clock, Unix seconds where a decision is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flyball_engine.contract import CoreState, StrategyType
from flyball_operator.tuning.filters.hysteresis import HoldReason
from flyball_operator.tuning.observe.signals import Observation, Signals, Unobserved
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.state import Decision, TuningState
from flyball_operator.tuning.tunables import TUNABLES


@dataclass(frozen=True, kw_only=True)
class Stall:
    """A core that had requests waiting and places free at each read-back from `since` to `seen`, and let none in.

    `prefilled` prompt tokens and `steps` since the engine's start, as they were then; `stepping`: steps were made.
    """

    since: float
    seen: float
    prefilled: int
    steps: int
    stepping: bool = False

    @property
    def stuck(self) -> bool:
        """Whether it lasted long enough to be no chance."""
        return self.seen - self.since >= TUNABLES.stuck_seconds


def observed(before: Stall | None, core: CoreState, now: float) -> Stall | None:
    """The stall with one more read-back; None where requests need not wait, or are let in."""
    places = core.effective.max_num_active_seqs
    if core.waiting == 0 or core.strategy is not StrategyType.CONTINUOUS:
        return None
    if core.running > 0 and (core.kv_cache_usage > TUNABLES.kv_free or (places is not None and core.running >= places)):
        return None
    prefilled = sum(sums.prefill_tokens for sums in core.steps)
    steps = sum(sums.steps for sums in core.steps)
    if before is None or prefilled != before.prefilled:
        return Stall(since=now, seen=now, prefilled=prefilled, steps=steps)
    return replace(before, seen=now, stepping=steps != before.steps)


@dataclass(frozen=True, kw_only=True)
class Proven:
    """`policy`: the newest under which engines are known to work; `live`: the present one, since `since`."""

    policy: Policy | None = None
    live: Policy | None = None
    since: float = float("inf")

    def after(self, live: Policy, observation: Observation, *, moving: bool, now: float) -> Proven:
        """With one tick under the policy that is live; `moving`: no core stands still."""
        if live != self.live:
            return replace(self, live=live, since=now)
        if not isinstance(observation, Signals) or isinstance(observation.load, Unobserved):
            return self
        works = moving and observation.load.finished >= 1 and now - self.since >= TUNABLES.proven_seconds
        return replace(self, policy=live) if works else self


def fall_back(
    state: TuningState, decision: Decision, spec: TuningSpec, proven: Proven, where: str
) -> tuple[TuningState, Decision]:
    """In place of what was decided: the last policy that is known to work, or the start values, held for a while.

    `where`: the pods that stand still. Where the first does not help in all its hold, start values follow, and stay.
    """
    if decision.at < state.held_until:
        return state, decision
    start = Policy(limits=spec.envelope.upper())
    target = start
    if proven.policy is not None and decision.before not in (proven.policy, start):
        target = proven.policy
    moved = replace(
        state,
        policy=target.within(sheds=spec.sheds, orders=spec.orders),
        held_until=decision.at + TUNABLES.fall_back_hold,
    )
    what = "start values" if target == start else "what worked before"
    said = f"requests stand still on {where} with places free: {what}, held for {TUNABLES.fall_back_hold:.0f} s"
    hold = HoldReason.ROLLED_BACK if moved.policy == decision.before else None
    return moved, replace(decision, policy=moved.policy, hold=hold, trigger=said, output=None)
