"""What a user states about the number of pods, where the operator sets it. Pure."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from flyball_operator.api.base import Check, Model
from flyball_operator.api.rules import Rule

#: Pods that a service may have at most.
MOST_REPLICAS: Final = 10_000
#: Bounds and defaults of stabilisation windows, those of the HorizontalPodAutoscaler (autoscaling/v2).
MOST_STABILIZATION_SECONDS: Final = 3600
_Window = Annotated[int, Field(ge=0, le=MOST_STABILIZATION_SECONDS)]


class ScaleUp(Model):
    """How replicas are added."""

    stabilization_window_seconds: _Window = 0
    """Seconds for which the load must need more pods, before they are added: the least of the window counts. 0 to
    3600. Default: 0."""


class ScaleDown(Model):
    """How replicas are removed."""

    stabilization_window_seconds: _Window = 300
    """Seconds for which the load must need fewer pods, before they are removed: the most of the window counts. 0 to
    3600. Default: 300."""


class Scaling(Model):
    """Between which bounds the operator sets the number of replicas. Names and defaults are those of autoscaling/v2."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "self.minReplicas >= 1",
                "must be at least 1: without a pod nobody holds a request until one serves",
                ".minReplicas",
            ),
            lambda scaling: scaling.min_replicas >= 1,
        ),
        Check(
            Rule(
                "self.minReplicas <= self.maxReplicas",
                "must be at most maxReplicas",
                ".minReplicas",
                "'must be at most maxReplicas (%d)'.format([self.maxReplicas])",
            ),
            lambda scaling: scaling.min_replicas <= scaling.max_replicas,
        ),
    )

    min_replicas: Annotated[int, Field(le=MOST_REPLICAS)] = 1
    """Fewest pods, at least 1. Default: 1."""
    max_replicas: Annotated[int, Field(ge=1, le=MOST_REPLICAS)]
    """Most pods, 1 to 10000."""
    scale_up: ScaleUp = ScaleUp()
    """How replicas are added. Default: at once."""
    scale_down: ScaleDown = ScaleDown()
    """How replicas are removed. Default: to the most that the load needed in 300 s."""
