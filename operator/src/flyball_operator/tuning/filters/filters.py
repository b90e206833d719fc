"""What a proposed policy passes before engines are told: a way back where pods are stuck, hysteresis, and pace. Pure.

Each change is a setpoint that every pod must confirm. So what noise asks for is not sent, and changes are kept apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol, Self

from flyball_engine.contract import Limits
from flyball_operator.tuning.control_input import ControlOutput
from flyball_operator.tuning.observe.signals import CLOCK_SET_BACK, Observation, Signals, Unobserved
from flyball_operator.tuning.policy import (
    Policy,
    allowed,
    depth_given,
    limits_given,
    near,
    nearly_equal,
    replace_depth,
    replace_limits,
)
from flyball_operator.tuning.spec import Envelope, TuningSpec
from flyball_operator.tuning.tunables import TUNABLES


class HoldReason(StrEnum):
    """Why the limits stay as they are."""

    NOT_OBSERVED = "NotObserved"
    """Signals are missing, stale or partial."""
    IDLE = "Idle"
    """No requests: there is nothing to decide on."""
    LEARNING = "Learning"
    """The step-time model is not trusted yet."""
    GOOD_ENOUGH = "GoodEnough"
    """The change would be within the hysteresis."""
    CHANGED_OFTEN = "ChangedOften"
    """It changed a moment ago, and this change may wait."""
    ROLLED_BACK = "RolledBack"
    """A change was undone; nothing moves until the hold ends."""


@dataclass(frozen=True, kw_only=True)
class PodsObserved:
    """What the engines' read-backs say. `stuck`: names of pods that let no request in, None if there are none.

    `moving`: no core stands still. `live`: the policy that all pods were given last, None if they differ.
    """

    stuck: str | None
    moving: bool
    live: Policy | None


@dataclass(frozen=True, kw_only=True)
class Tick:
    """What filters see. `at`: Unix seconds. `current`: the policy before this tick.

    `pods` is None between ticks, where only an edited spec is followed.
    """

    at: float
    current: Policy
    spec: TuningSpec
    observation: Observation
    pods: PodsObserved | None = None


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A policy that is to follow the current one. `hold`: the reason that is given if it is the current one.

    `trigger` is one sentence for people. `output` is what the law wanted, None where it was not asked. Filters let pass
    what is `urgent`: an edited spec, and a way back.
    """

    policy: Policy
    hold: HoldReason
    trigger: str
    output: ControlOutput | None = None
    urgent: bool = False


class Filter(Protocol):
    """A value: its fields are its memory of one service. Its constants are in `tunables`."""

    def apply(self, tick: Tick, proposal: Proposal) -> tuple[Self, Proposal]:
        """The filter with one tick more, and what it lets pass."""
        ...


@dataclass(frozen=True, kw_only=True)
class Proven:
    """`policy`: the newest under which engines are known to work; `live`: the present one, since `since`."""

    policy: Policy | None = None
    live: Policy | None = None
    since: float = float("inf")

    def after(self, live: Policy, observation: Observation, *, moving: bool, now: float) -> Proven:
        """With one tick under the policy that is live; `moving`: no core stands still."""
        if live != self.live or now < self.since:
            return replace(self, live=live, since=now)
        if not isinstance(observation, Signals) or isinstance(observation.load, Unobserved):
            return self
        works = moving and observation.load.finished >= 1 and now - self.since >= TUNABLES.trial_seconds
        return replace(self, policy=live) if works and self.policy is not live else self


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """Goes back where pods are stuck. `held_until`, in Unix seconds: nothing moves before, since a policy failed."""

    held_until: float = float("-inf")
    proven: Proven = Proven()

    def apply(self, tick: Tick, proposal: Proposal) -> tuple[Rollback, Proposal]:
        """The proposal; in its place the way back where pods are stuck, or the current policy during a hold."""
        proven = self._proven_after(tick, tick.pods) if tick.pods is not None else self.proven
        after = self if proven is self.proven else replace(self, proven=proven)
        # A hold that ends far later was begun by another clock.
        if tick.at < self.held_until < tick.at + TUNABLES.rollback_hold + CLOCK_SET_BACK:
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
    # As edits since leave it: or it would be told as another than the policy that is stuck, which it is.
    proven = allowed(proven, spec) if proven is not None else None
    target = proven if proven is not None and tick.current not in (proven, start) else start
    what = "start values" if target == start else "what worked before"
    message = f"requests stand still on {stuck} with places free: {what}, held for {TUNABLES.rollback_hold:.0f} s"
    return Proposal(policy=target, hold=HoldReason.ROLLED_BACK, trigger=message, urgent=True)


@dataclass(frozen=True)
class Hysteresis:
    """Keeps a limit, the budget and the model where they would change by less than a share of what they are."""

    def apply(self, tick: Tick, proposal: Proposal) -> tuple[Self, Proposal]:
        """The proposal with the current limits where the change is small; the current policy where nothing is left."""
        if proposal.urgent or proposal.policy == tick.current:
            return self, proposal
        limits = restrained(tick.current.limits, proposal.policy.limits, tick.spec.envelope)
        policy = proposal.policy if limits is proposal.policy.limits else replace(proposal.policy, limits=limits)
        kept = limits == tick.current.limits and nearly_equal(tick.current, policy)
        return self, replace(proposal, policy=tick.current if kept else policy)


def restrained(current: Limits, wanted: Limits, envelope: Envelope) -> Limits:
    """The wanted limits, each as it is now where the change is within its hysteresis."""
    seqs, tokens = limits_given(current, envelope)
    new_seqs, new_tokens = limits_given(wanted, envelope)
    seqs = seqs if near(seqs, new_seqs) else new_seqs
    tokens = tokens if near(tokens, new_tokens) else new_tokens
    depth = depth_given(wanted, envelope)
    if (*limits_given(current, envelope), depth_given(current, envelope)) == (seqs, tokens, depth):
        return current
    return replace_depth(replace_limits(current, seqs=seqs, tokens=tokens), depth, envelope)


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


#: What a proposed policy passes, in this order, as they are before a first tick.
FILTERS: Final[tuple[Filter, ...]] = (Rollback(), Hysteresis(), Pace())
