"""What a user states about rollouts and drains: how many pods may be missing, how long a step may take, who judges it.

Every check stands in the CRD and here, in the same words. Pure.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from pydantic import Field

from flyball_operator.api.base import Check, Model
from flyball_operator.api.quantities import DurationBetween, IntOrString, parse_duration
from flyball_operator.api.rules import Rule


class Canary(Model):
    """How a new revision is judged before all pods are replaced: by `spec.objectives`, beside the earlier revision."""

    weight: Annotated[int, Field(ge=1, le=50)] = 10
    """Percentage of the pods that run the new revision while it is judged, 1 to 50. Rounded down, but at least one pod:
    of one replica it is a second pod, which has half of the requests. No more pods than `maxSurge` if that is set and
    pods are added, or else than `maxUnavailable` if that is set: 50 of 20 replicas is one pod with `maxSurge: 1`.
    Default: 10."""
    duration: Annotated[str, Field(max_length=20), DurationBetween("1m", "24h")] = "10m"
    """Time for which it is judged once these pods are Ready, 1m to 24h. It is ended early where the new revision misses
    an objective. Default: 10m."""

    @property
    def duration_seconds(self) -> int:
        """The duration in whole seconds."""
        return math.ceil(parse_duration(self.duration))


class Rollout(Model):
    """How pods are replaced."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "!has(self.maxSurge) || !has(self.maxUnavailable) || self.maxSurge > 0 || self.maxUnavailable > 0",
                "must not be 0 where maxUnavailable is 0: no pod could ever be replaced",
                ".maxSurge",
            ),
            lambda rollout: rollout.max_surge != 0 or rollout.max_unavailable != 0,
        ),
    )

    startup_timeout: Annotated[str, Field(max_length=20), DurationBetween("10s", "24h")] = "30m"
    """Time an engine may take to serve after its start, 10s to 24h. Default: 30m, enough to download a large model."""
    drain_timeout: Annotated[str, Field(max_length=20), DurationBetween("1s", "1h")] = "60s"
    """Time that running requests get to finish when a pod is stopped, 1s to 1h. Default: 60s."""
    max_surge: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Pods that may be added during a rollout. Default: 1, or 0 for accelerators with two or more replicas, or
    where no device is free for one pod more."""
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Pods that may be missing during a rollout. Default: 0, or 1 for accelerators with two or more replicas, or
    where no device is free for one pod more."""
    canary: Canary | None = None
    """Judges a new revision on a share of the pods, and rolls it back where it misses an objective that the earlier one
    keeps. Needs objectives. Default: none, all pods are replaced at once."""


class DisruptionBudget(Model):
    """How many pods a drain of nodes may take at once. Changing it rolls no pod."""

    enabled: bool = True
    """Whether there is a PodDisruptionBudget. false: drains are not held back, or you make a budget of your own; a pod
    of two budgets cannot be evicted. Default: true."""
    max_unavailable: Annotated[
        int | str,
        IntOrString(
            least=0,
            most=10_000,
            pattern=r"(100|[1-9]?[0-9])%",
            longest=4,
            hint="must be a number of pods such as 1, or a percentage such as 25%",
        ),
    ] = 1
    """Pods that may be missing, as a number or a percentage such as 25%. 0 blocks drains. Default: 1."""
