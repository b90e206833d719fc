"""What is known of services and their pods, kept from watch events and replaced whole by every list.

The tuner looks here: at every tick, for all services, without a call. The reconciler does not (it reads live). A list
replaces everything, so an object that was deleted while no watch ran does not stay for ever, as it does in kopf's own
indices. A list is of one namespace, or of all of them (None), and says nothing of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from flyball_operator.api import names
from flyball_operator.api.parse import NoObjectError
from flyball_operator.reconcile.plan.membership import Link, Owner, link, owner_of
from flyball_operator.reconcile.plan.objects import Object
from flyball_operator.reconcile.plan.snapshot import Desire, read_desire

_MAX_ENTRIES: Final = 200_000


T = TypeVar("T")


@dataclass(frozen=True)
class _Entry(Generic[T]):
    namespace: str
    version: int
    value: T

    def within(self, namespace: str | None) -> bool:
        """Whether a list of this namespace tells of it."""
        return namespace is None or namespace == self.namespace


class Store(Generic[T]):
    """Objects of one kind by UID. An older version never replaces a newer one."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry[T]] = {}
        self._listed: dict[str | None, int] = {}

    def put(self, uid: str, namespace: str, version: int, value: T) -> None:
        """Keep this version, unless a newer one is kept, or a later list shows that the object is gone."""
        before = self._entries.get(uid)
        listed = max(self._listed.get(namespace, 0), self._listed.get(None, 0))
        if version < (before.version if before is not None else listed):
            return
        if before is None and len(self._entries) >= _MAX_ENTRIES:
            raise MemoryError(f"more than {_MAX_ENTRIES} objects of one kind")
        self._entries[uid] = _Entry(namespace, version, value)

    def drop(self, uid: str) -> None:
        """Forget the object."""
        self._entries.pop(uid, None)

    def replace(self, namespace: str | None, listed: Iterable[tuple[str, str, int, T]], version: int) -> list[T]:
        """Make this list everything there is in a namespace, but for what came after it.

        Each item is a UID, a namespace, a version and a value. Returns what was not known or has gone.
        """
        fresh = {uid: _Entry(where, own, value) for uid, where, own, value in listed}
        missed = [entry.value for uid, entry in fresh.items() if uid not in self._entries]
        for uid, entry in self._entries.items():
            if uid in fresh:
                fresh[uid] = max(fresh[uid], entry, key=lambda candidate: candidate.version)
            elif entry.version > version or not entry.within(namespace):
                fresh[uid] = entry
            else:
                missed.append(entry.value)
        self._entries = fresh
        self._listed[namespace] = version
        return missed

    def forget(self, namespace: str | None) -> None:
        """Drop everything of a namespace."""
        self._entries = {uid: entry for uid, entry in self._entries.items() if not entry.within(namespace)}

    def __iter__(self) -> Iterator[T]:
        return (entry.value for entry in self._entries.values())

    def get(self, uid: str) -> T | None:
        """The object of this UID."""
        entry = self._entries.get(uid)
        return entry.value if entry is not None else None


@dataclass(frozen=True)
class KnownPod:
    """A pod, as last seen. `link` leads to its service, if it is one's."""

    link: Link
    ip: str | None
    ready: bool
    leaving: bool
    container_id: str
    restarts: int


def version_of(found: Object) -> int:
    """Resource versions are ordered (guaranteed from Kubernetes 1.35; true of etcd's always)."""
    try:
        return int(found["metadata"].get("resourceVersion", 0))
    except ValueError:
        return 0


def read_service(found: Object) -> Desire | None:
    """The service in an object; None if it is not even one."""
    try:
        return read_desire(found)
    except NoObjectError:
        return None


def read_pod(found: Object) -> KnownPod | None:
    """The pod in an object; None if nothing controls it: then it is no service's, whatever its labels say."""
    metadata, chain = found["metadata"], link(found)
    if not chain.controller:
        return None
    status = found.get("status") or {}
    engine: Object = next(
        (item for item in status.get("containerStatuses") or () if item.get("name") == names.CONTAINER_ENGINE), {}
    )
    conditions = {item.get("type"): item.get("status") for item in status.get("conditions") or ()}
    return KnownPod(
        link=chain,
        ip=status.get("podIP"),
        ready=conditions.get("Ready") == "True",
        leaving=bool(metadata.get("deletionTimestamp")) or status.get("phase") in ("Succeeded", "Failed"),
        container_id=engine.get("containerID") or "",
        restarts=int(engine.get("restartCount") or 0),
    )


class Cache:
    """The services of all watched namespaces, their pods, and what leads from one to the other."""

    def __init__(self) -> None:
        self.services: Store[Desire] = Store()
        self.deployments: Store[Link] = Store()
        self.replica_sets: Store[Link] = Store()
        self.pods: Store[KnownPod] = Store()
        self._by_owner: dict[Owner, list[KnownPod]] | None = None

    def pods_of(self, service_uid: str) -> list[KnownPod]:
        """The pods of a service, by their controllers (`membership`); none of a service that is not known."""
        service = self.services.get(service_uid)
        if service is None:
            return []
        if self._by_owner is None:
            self._by_owner = self._grouped()
        return self._by_owner.get(Owner(service.meta.namespace, service.meta.name, service_uid), [])

    def _grouped(self) -> dict[Owner, list[KnownPod]]:
        grouped: dict[Owner, list[KnownPod]] = {}
        for pod in self.pods:
            owner = owner_of(pod.link, self.replica_sets.get, self.deployments.get)
            if owner is not None:
                grouped.setdefault(owner, []).append(pod)
        return grouped

    def observe_service(self, found: Object, *, deleted: bool) -> None:
        """Take a watch event."""
        desire = read_service(found)
        if deleted or desire is None:
            self.services.drop(found["metadata"]["uid"])
        else:
            self.services.put(desire.meta.uid, desire.meta.namespace, version_of(found), desire)

    def observe_deployment(self, found: Object, *, deleted: bool) -> None:
        """Take a watch event."""
        self._observe_link(self.deployments, found, deleted=deleted)

    def observe_replica_set(self, found: Object, *, deleted: bool) -> None:
        """Take a watch event."""
        self._observe_link(self.replica_sets, found, deleted=deleted)

    def _observe_link(self, known: Store[Link], found: Object, *, deleted: bool) -> None:
        seen = link(found)
        before = known.get(seen.uid)
        if deleted:
            known.drop(seen.uid)
        else:
            known.put(seen.uid, seen.namespace, version_of(found), seen)
        # Most events tell of counts alone, and of a thousand services there are many.
        if known.get(seen.uid) != before:
            self._by_owner = None

    def observe_pod(self, found: Object, *, deleted: bool) -> None:
        """Take a watch event."""
        self._by_owner = None
        pod = read_pod(found)
        if deleted or pod is None:
            self.pods.drop(found["metadata"]["uid"])
        else:
            self.pods.put(pod.link.uid, pod.link.namespace, version_of(found), pod)

    def replace_services(self, listed: Iterable[Object], version: int, *, namespace: str | None = None) -> int:
        """Take a list of all services of a namespace, None for all of them. Returns how many were missed before."""
        known = [
            (item.meta.uid, item.meta.namespace, version_of(found), item)
            for found in listed
            if (item := read_service(found))
        ]
        return len(self.services.replace(namespace, known, version))

    def replace_deployments(self, listed: Iterable[Object], version: int, *, namespace: str | None = None) -> None:
        """Take a list of all Deployments of services of a namespace, None for all."""
        self._replace_links(self.deployments, listed, version, namespace)

    def replace_replica_sets(self, listed: Iterable[Object], version: int, *, namespace: str | None = None) -> None:
        """Take a list of all ReplicaSets of services of a namespace, None for all."""
        self._replace_links(self.replica_sets, listed, version, namespace)

    def _replace_links(self, known: Store[Link], listed: Iterable[Object], version: int, namespace: str | None) -> None:
        self._by_owner = None
        links = [(seen.uid, seen.namespace, version_of(found), seen) for found in listed for seen in (link(found),)]
        known.replace(namespace, links, version)

    def replace_pods(self, listed: Iterable[Object], version: int, *, namespace: str | None = None) -> int:
        """Take a list of all pods of services of a namespace, None for all. Returns how many were missed before."""
        self._by_owner = None
        known = [
            (item.link.uid, item.link.namespace, version_of(found), item)
            for found in listed
            if (item := read_pod(found))
        ]
        return len(self.pods.replace(namespace, known, version))

    def forget(self, namespace: str | None) -> None:
        """Drop everything of a namespace, None for all: nobody may see what becomes of it."""
        self._by_owner = None
        self.services.forget(namespace)
        self.deployments.forget(namespace)
        self.replica_sets.forget(namespace)
        self.pods.forget(namespace)
