"""What every service's tuner works with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.engines.client import EngineClient
from flyball_operator.kube.leadership import RaisableLeadership
from flyball_operator.tuning.metrics import TunerMetrics
from flyball_operator.tuning.ports import Events, TunerStatusWriter
from flyball_operator.tuning.tracing import DecisionTracing
from flyball_operator.tuning.tunables import TUNABLES

#: Several ticks of the usual 5 s, each of which may wait for engines and for the API server.
LATE_SECONDS: Final = 45.0


async def _never(_: InferenceService) -> bool:
    return False


@dataclass(frozen=True)
class Dependencies:
    """What every service's tuner uses. `wall` gives Unix seconds, `clock` measures durations.

    `grace_seconds`: how long signals may be missing before a condition says so; one late answer is no outage.
    `late_seconds`: how long no tick of a service may be completed before a condition says so.
    `is_leaving`: whether the pod of a UID is being deleted. `is_deleted`: whether a service is, by the API server.
    `given`: the highest generation that this process gave to the engines of each service, by UID. The tuner bounds it.
    """

    client: EngineClient
    leadership: RaisableLeadership
    writer: TunerStatusWriter
    events: Events
    metrics: TunerMetrics
    wall: Callable[[], float]
    clock: Callable[[], float]
    grace_seconds: float = field(default_factory=lambda: TUNABLES.stale_seconds)
    late_seconds: float = LATE_SECONDS
    given: dict[str, int] = field(default_factory=dict)
    tracing: DecisionTracing = field(default_factory=DecisionTracing)
    is_leaving: Callable[[str], bool] = lambda _: False
    is_deleted: Callable[[InferenceService], Awaitable[bool]] = _never
