"""The tuner's view of the cache: services to work for and their pods (implements `tuning.ports.Services`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Final

from cachetools import LRUCache

from flyball_operator.api.objects import moment
from flyball_operator.api.shards import Shard
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.kube.cache import Cache, KnownPod
from flyball_operator.tuning.ports import EnginePod

#: Services whose pods are kept in the tuner's form.
_REMEMBERED: Final = 10_000


class CachedServices:
    """Services of one shard and their pods as last seen. `held`: whether this release may act in a namespace.

    They are asked for every second: what did not change is the same object as before, and is not looked at again.
    """

    def __init__(self, cache: Cache, held: Callable[[str], bool] = lambda _: True, shard: Shard | None = None) -> None:
        self._cache = cache
        self._held = held
        self._shard = shard or Shard()
        self._all: Sequence[InferenceService] = ()
        #: What `_all` was made of: all services, all pods, and the namespaces that are held.
        self._changes = -1
        self._members: object = None
        self._namespaces: Set[str] = frozenset()
        self._held_namespaces: Set[str] = frozenset()
        self._pods: LRUCache[str, tuple[list[KnownPod], Sequence[EnginePod]]] = LRUCache(_REMEMBERED)

    def all(self) -> Sequence[InferenceService]:
        """Services that are governed, accepted and not being deleted, where this release may act."""
        services, members = self._cache.services, self._cache.members
        same = services.changes == self._changes and members is self._members
        if not same:
            self._changes, self._members = services.changes, members
            self._namespaces = {desire.meta.namespace for desire in services}
        held = {namespace for namespace in self._namespaces if self._held(namespace)}
        if not same or held != self._held_namespaces:
            self._held_namespaces = held
            self._all = [
                service
                for desire in services
                if desire.meta.namespace in held
                and self._shard.has(desire.meta.uid)
                and (service := desire.to_tune) is not None
            ]
        return self._all

    def pods(self, service_uid: str) -> Sequence[EnginePod]:
        """Pods of one service that have a control port and are not being deleted; none of one that is not known."""
        present, known = self._cache.pods_of(service_uid), self._pods.get(service_uid)
        if known is None or known[0] is not present:
            known = self._pods[service_uid] = (
                present,
                [_engine_pod(pod) for pod in present if not (pod.leaving or pod.worker)],
            )
        return known[1]

    def pods_of_one_key(self) -> Sequence[str]:
        """Pods of any service, be it accepted or not, that know one public key for good: `namespace/name`."""
        services = (desire.meta.uid for desire in self._cache.services)
        pods = (pod for uid in services for pod in self._cache.pods_of(uid) if not pod.takes_keys and not pod.leaving)
        return [f"{pod.link.namespace}/{pod.link.name}" for pod in pods]


def _engine_pod(pod: KnownPod) -> EnginePod:
    return EnginePod(
        name=pod.link.name,
        uid=pod.link.uid,
        ip=pod.ip,
        ready=pod.ready,
        container_id=pod.container_id,
        restarts=pod.restarts,
        namespace=pod.link.namespace,
        control_port=pod.control_port,
        spec_hash=pod.spec_hash,
        ready_since=None if (since := moment(pod.ready_since)) is None else since.timestamp(),
    )
