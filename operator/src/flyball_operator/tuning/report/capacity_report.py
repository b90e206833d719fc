"""What status says of capacity and of the replicas that the load needs, and for how long that is worth anything."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from flyball_engine.figures import figure
from flyball_operator.api.v1alpha1 import ConditionType, InferenceService
from flyball_operator.tuning.capacity import Balance
from flyball_operator.tuning.reasons import ConditionState, Reason
from flyball_operator.tuning.replicas import Replicas
from flyball_operator.tuning.state import TuningState

#: What was not weighed anew for so long is told no more: an autoscaler would follow a load of then.
STALE_SECONDS: Final = 900.0
#: What is said of capacity where nothing is known of what the load needs.
_UNKNOWN: Final = (Reason.LEARNING, Reason.NO_REQUESTS, Reason.NO_OBJECTIVES)


class CapacityReport:
    """`clock` is monotonic, in seconds. What a status says that is found counts from now on."""

    def __init__(self, service: InferenceService, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._arrivals, self._capacity, self._known = _reported(service)
        self._weighed_at, self._weighed = clock(), 0.0
        self._noted: Balance | None = None
        self._idle: Replicas | None = None
        self._idle_at = float("-inf")

    def edited(self) -> None:
        """Something else is asked of the engines: what they carried says nothing of that."""
        self._arrivals, self._capacity, self._known, self._noted = "", "", None, None

    def ended(self) -> None:
        """Nobody weighs the load any more."""
        self._weighed_at = self._idle_at = float("-inf")

    def note(self, state: TuningState) -> None:
        """Take a tick in. A settled balance replaces what the last leader said."""
        if state.idle and state.desired is not self._idle:
            # Apart: that nothing arrives says nothing of what was carried, and keeps nothing of it.
            self._idle_at, self._idle = self._clock(), state.desired
        balance = state.balance
        if balance is None or balance is self._noted:
            return
        self._noted = balance
        if balance.at != self._weighed:
            self._weighed_at, self._weighed = self._clock(), balance.at
        if balance.settled:
            self._arrivals, self._capacity = figure(balance.reported_arrivals, 2), figure(balance.capacity, 2)
            self._known = None

    @property
    def _stale(self) -> bool:
        return self._clock() - self._weighed_at > STALE_SECONDS

    @property
    def _idle_stale(self) -> bool:
        return self._clock() - self._idle_at > STALE_SECONDS

    def arrivals(self, verdict: ConditionState) -> str:
        """Requests per second that arrive, empty where that is not known.

        `verdict`: what is reported of capacity beside it. What cannot be observed now is no load, other than capacity.
        """
        return "" if self._stale or verdict.status == "Unknown" else self._arrivals

    @property
    def capacity(self) -> str:
        """Requests per second that all pods carry, empty where that is not known."""
        return "" if self._stale else self._capacity

    @property
    def known(self) -> ConditionState | None:
        """What an earlier leader said of it, until there is better knowledge."""
        return None if self._stale else self._known

    def balance(self, state: TuningState) -> Balance | None:
        """The load against what the engines carry, None where that is of another time."""
        return None if self._stale else state.balance

    def idle(self, state: TuningState) -> Replicas | None:
        """The replicas where nothing arrives and nothing is known of capacity, None where something is."""
        return state.desired if state.idle and not self._idle_stale else None

    def replicas(self, state: TuningState, verdict: ConditionState, *, nodes: int) -> int | None:
        """The replicas that are advised; None where that is of another time, or where nothing is known.

        `nodes`: pods of a replica. `verdict`: what is reported of capacity beside it. While it cannot be observed the
        advice stands.
        """
        unknown = self._idle_stale if state.idle else self._stale or verdict.reason in _UNKNOWN
        return None if unknown or state.desired is None else math.ceil(state.desired.replicas / nodes)


def _reported(service: InferenceService) -> tuple[str, str, ConditionState | None]:
    """Arrivals and capacity in status, and what it says of them; nothing where that was said of another spec."""
    tuning = service.status.tuning
    for found in service.status.conditions:
        if found.type is ConditionType.CAPACITY_SUFFICIENT and found.observed_generation == service.metadata.generation:
            return tuning.arrivals, tuning.capacity, ConditionState(found.status, found.reason, found.message)
    return "", "", None
