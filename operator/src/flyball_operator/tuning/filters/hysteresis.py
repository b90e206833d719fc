"""What noise asks for is not sent: each change is a setpoint that every pod must confirm. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from flyball_engine.contract import Limits
from flyball_operator.tuning.filters.filter import Proposal, Tick
from flyball_operator.tuning.policy import limits_given, replace_limits, says_the_same
from flyball_operator.tuning.spec import Envelope
from flyball_operator.tuning.tunables import TUNABLES


@dataclass(frozen=True)
class Hysteresis:
    """Keeps a limit, the budget and the model where they would change by less than a share of what they are."""

    def apply(self, tick: Tick, proposal: Proposal) -> tuple[Self, Proposal]:
        """The proposal with the current limits where the change is small; the current policy where nothing is left."""
        if proposal.urgent or proposal.policy == tick.current:
            return self, proposal
        limits = restrained(tick.current.limits, proposal.policy.limits, tick.spec.envelope)
        policy = replace(proposal.policy, limits=limits)
        kept = limits == tick.current.limits and says_the_same(tick.current, policy)
        return self, replace(proposal, policy=tick.current if kept else policy)


def restrained(current: Limits, wanted: Limits, envelope: Envelope) -> Limits:
    """The wanted limits, each as it is now where the change is within its hysteresis."""
    seqs, tokens = limits_given(current, envelope)
    new_seqs, new_tokens = limits_given(wanted, envelope)
    seqs = seqs if _near(new_seqs, seqs) else new_seqs
    tokens = tokens if _near(new_tokens, tokens) else new_tokens
    restrained = replace_limits(current, seqs=seqs, tokens=tokens)
    return current if limits_given(current, envelope) == (seqs, tokens) else restrained


def _near(new: float, old: float) -> bool:
    return abs(new - old) <= TUNABLES.hysteresis * old
