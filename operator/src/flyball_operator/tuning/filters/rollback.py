"""The way back: what worked before, where engines let nobody in under what they were told, and then a hold. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flyball_operator.tuning.filters.filter import HoldReason, PodsObserved, Proposal, Tick
from flyball_operator.tuning.observe.signals import Observation, Signals, Unobserved
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.tunables import TUNABLES


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
        works = moving and observation.load.finished >= 1 and now - self.since >= TUNABLES.trial_seconds
        return replace(self, policy=live) if works else self


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """Goes back where pods are stuck. `held_until`, in Unix seconds: nothing moves before, since a policy failed."""

    held_until: float = float("-inf")
    proven: Proven = Proven()

    def apply(self, tick: Tick, proposal: Proposal) -> tuple[Rollback, Proposal]:
        """The proposal; in its place the way back where pods are stuck, or the current policy during a hold."""
        after = replace(self, proven=self._proven_after(tick, tick.pods)) if tick.pods is not None else self
        if tick.at < self.held_until:
            if proposal.urgent or proposal.hold is HoldReason.NOT_OBSERVED:
                return after, proposal
            message = "holding after a change was undone"
            return after, Proposal(policy=tick.current, hold=HoldReason.ROLLED_BACK, trigger=message)
        if tick.pods is not None and tick.pods.stuck is not None and tick.spec.live:
            until = tick.at + TUNABLES.rollback_hold
            return replace(after, held_until=until), _way_back(tick, tick.pods.stuck, after.proven.policy)
        return after, proposal

    def _proven_after(self, tick: Tick, pods: PodsObserved) -> Proven:
        if pods.live is None:
            return self.proven
        return self.proven.after(pods.live, tick.observation, moving=pods.moving, now=tick.at)


def _way_back(tick: Tick, stuck: str, proven: Policy | None) -> Proposal:
    """To the last policy that is known to work; where that did not help in all its hold, to the start values."""
    spec = tick.spec
    start = Policy(limits=spec.envelope.upper())
    target = proven if proven is not None and tick.current not in (proven, start) else start
    what = "start values" if target == start else "what worked before"
    message = f"requests stand still on {stuck} with places free: {what}, held for {TUNABLES.rollback_hold:.0f} s"
    policy = target.within(sheds=spec.sheds, orders=spec.orders)
    return Proposal(policy=policy, hold=HoldReason.ROLLED_BACK, trigger=message, urgent=True)
