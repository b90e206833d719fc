"""Changes come at a pace that pods can follow: each is a setpoint that every one of them must confirm. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flyball_operator.tuning.filters.filter import HoldReason, Proposal, Tick
from flyball_operator.tuning.tunables import TUNABLES


@dataclass(frozen=True)
class Pace:
    """Keeps changes apart. `changed_at`: when the law changed the policy by itself last, in Unix seconds."""

    changed_at: float = float("-inf")

    def apply(self, tick: Tick, proposal: Proposal) -> tuple[Pace, Proposal]:
        """The proposal, or the current policy where that changed a moment ago: the next tick weighs it anew."""
        # A shadow's moves are no setpoints, which is what there may not be too many of.
        if proposal.urgent or proposal.policy == tick.current or not tick.spec.live:
            return self, proposal
        # A first gate cannot wait: what is let in meanwhile is late.
        gates = tick.current.shed is None and proposal.policy.shed is not None
        if gates or not 0.0 <= tick.at - self.changed_at < TUNABLES.changes_apart:
            return Pace(tick.at), proposal
        waits = f"{proposal.trigger}; changed less than {TUNABLES.changes_apart:.0f} s ago: this change waits"
        return self, replace(proposal, policy=tick.current, hold=HoldReason.CHANGED_OFTEN, trigger=waits)
