"""What every filter gets and gives: a tick, and what is proposed in it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, Self

from flyball_operator.tuning.control_input import ControlOutput
from flyball_operator.tuning.observe.signals import Observation
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.spec import TuningSpec


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
