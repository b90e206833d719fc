"""The tuner's view of the cache: services to work for and their pods (implements `tuning.ports.Services`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flyball_operator.api.v1alpha1 import ConditionType, InferenceService
from flyball_operator.kube.cache import Cache, KnownPod
from flyball_operator.reconcile.plan.snapshot import Desire
from flyball_operator.tuning.ports import EnginePod


class CachedServices:
    """Services and pods as last seen. `held`: whether this release may act in a namespace."""

    def __init__(self, cache: Cache, held: Callable[[str], bool] = lambda _: True) -> None:
        self._cache = cache
        self._held = held

    def all(self) -> Sequence[InferenceService]:
        """Services that are governed, accepted and not being deleted, where this release may act."""
        return [
            service
            for desire in self._cache.services
            if self._held(desire.meta.namespace) and (service := _to_work_for(desire)) is not None
        ]

    def pods(self, service_uid: str) -> Sequence[EnginePod]:
        """Pods of one service that are not being deleted; empty for a service that is not known."""
        return [_engine_pod(pod) for pod in self._cache.pods_of(service_uid) if not pod.leaving]


def _to_work_for(desire: Desire) -> InferenceService | None:
    service = desire.service
    if service is None or not service.spec.engine.governed or desire.meta.deletion_timestamp is not None:
        return None
    accepted = any(
        condition.type == ConditionType.ACCEPTED and condition.status == "True"
        for condition in desire.status.conditions
    )
    return service if accepted else None


def _engine_pod(pod: KnownPod) -> EnginePod:
    return EnginePod(
        name=pod.link.name,
        uid=pod.link.uid,
        ip=pod.ip,
        ready=pod.ready,
        container_id=pod.container_id,
        restarts=pod.restarts,
        namespace=pod.link.namespace,
    )
