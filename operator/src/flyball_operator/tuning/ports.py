"""What the tuner needs of the rest of the operator.

The tuner is written against these protocols, `app/main.py` gives it the real parts, its tests give it others. Nothing
here imports kopf or kubernetes, so that the tuner can be run without a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from flyball_operator.api.v1alpha1 import (
    AnalysisStatus,
    Condition,
    InferenceService,
    ObjectiveStatus,
    ScalingStatus,
    TuningStatus,
)

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class EnginePod:
    """A pod of a service, as last seen.

    `container_id` names this start of the engine container (empty before the first), `restarts` counts the earlier
    ones: both change when the engine comes back with its start values. `spec_hash` names its revision. `ready_since`:
    when it became Ready, in Unix seconds; None where it is not.
    """

    name: str
    uid: str
    ip: str | None
    ready: bool
    container_id: str
    restarts: int
    namespace: str
    control_port: int
    spec_hash: str = ""
    ready_since: float | None = None


class Services(Protocol):
    """The services the tuner works for, from memory: no call leaves the process."""

    def all(self) -> Sequence[InferenceService]:
        """Services that are governed, accepted and not being deleted.

        The same object as before: nothing of them, and nothing of their pods, has changed.
        """
        ...

    def pods(self, service_uid: str) -> Sequence[EnginePod]:
        """Pods of one service that are not being deleted; empty for a service that is not known."""
        ...


class TunerStatusWriter(Protocol):
    """Applies the tuner's part of the status under its own field manager."""

    async def write(
        self,
        service: InferenceService,
        *,
        tuning: TuningStatus,
        objectives: Sequence[ObjectiveStatus],
        objectives_met: str,
        desired_replicas: int | None,
        scaling: ScalingStatus | None,
        analysis: AnalysisStatus | None,
        conditions: Sequence[Condition],
    ) -> None:
        """Write the tuner's whole part; what is left out is erased."""
        ...


class Events(Protocol):
    """Posts Kubernetes events about a service; repeats within ten minutes are dropped."""

    async def post(self, service: InferenceService, *, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the API's own field name
        """Post one event on a transition. Never raises: an event lost is not worth a decision lost."""
        ...
