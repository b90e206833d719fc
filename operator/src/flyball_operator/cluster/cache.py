"""What is known of services and their pods, kept from watch events and replaced whole by every list.

The brain looks here: at every tick, for all services, without a call. The hands do not (they read live). A list
replaces everything, so an object that was deleted while no watch ran does not stay for ever, as it does in kopf's own
indices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from flyball_operator.api import names
from flyball_operator.api.parse import NoObjectError
from flyball_operator.plan.objects import Object
from flyball_operator.plan.snapshot import Desire, read_desire

_MAX_ENTRIES: Final = 200_000


T = TypeVar("T")


@dataclass(frozen=True)
class _Entry(Generic[T]):
    version: int
    value: T


class Store(Generic[T]):
    """Objects of one kind by UID. An older version never replaces a newer one."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry[T]] = {}
        self._listed = 0

    def put(self, uid: str, version: int, value: T) -> None:
        """Keep this version, unless a newer one is kept, or a later list shows that the object is gone."""
        before = self._entries.get(uid)
        if version < (before.version if before is not None else self._listed):
            return
        if before is None and len(self._entries) >= _MAX_ENTRIES:
            raise MemoryError(f"more than {_MAX_ENTRIES} objects of one kind")
        self._entries[uid] = _Entry(version, value)

    def drop(self, uid: str) -> None:
        """Forget the object."""
        self._entries.pop(uid, None)

    def replace(self, listed: Iterable[tuple[str, int, T]], version: int) -> list[T]:
        """Make this list everything there is, but for what came after it. Returns what was not known or has gone."""
        fresh = {uid: _Entry(own, value) for uid, own, value in listed}
        missed = [entry.value for uid, entry in fresh.items() if uid not in self._entries]
        for uid, entry in self._entries.items():
            if uid in fresh:
                fresh[uid] = max(fresh[uid], entry, key=lambda candidate: candidate.version)
            elif entry.version > version:
                fresh[uid] = entry
            else:
                missed.append(entry.value)
        self._entries = fresh
        self._listed = version
        return missed

    def __iter__(self) -> Iterator[T]:
        return (entry.value for entry in self._entries.values())

    def get(self, uid: str) -> T | None:
        """The object of this UID."""
        entry = self._entries.get(uid)
        return entry.value if entry is not None else None


@dataclass(frozen=True)
class KnownPod:
    """A pod of a service, as last seen."""

    service_uid: str
    namespace: str
    service: str
    name: str
    uid: str
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
    """The pod in an object; None if it carries no service's labels. Labels are set by our template, not by the pod."""
    metadata = found["metadata"]
    labels = metadata.get("labels") or {}
    service_uid, service = labels.get(names.LABEL_SERVICE_UID), labels.get(names.LABEL_SERVICE)
    if not service_uid or not service:
        return None
    status = found.get("status") or {}
    engine: Object = next(
        (item for item in status.get("containerStatuses") or () if item.get("name") == names.CONTAINER_ENGINE), {}
    )
    conditions = {item.get("type"): item.get("status") for item in status.get("conditions") or ()}
    return KnownPod(
        service_uid=service_uid,
        namespace=metadata["namespace"],
        service=service,
        name=metadata["name"],
        uid=metadata["uid"],
        ip=status.get("podIP"),
        ready=conditions.get("Ready") == "True",
        leaving=bool(metadata.get("deletionTimestamp")) or status.get("phase") in ("Succeeded", "Failed"),
        container_id=engine.get("containerID") or "",
        restarts=int(engine.get("restartCount") or 0),
    )


class Cache:
    """The services and pods of all watched namespaces."""

    def __init__(self) -> None:
        self.services: Store[Desire] = Store()
        self.pods: Store[KnownPod] = Store()
        self._by_service: dict[str, list[KnownPod]] | None = None

    def pods_of(self, service_uid: str) -> list[KnownPod]:
        """Pods that carry this service's UID."""
        if self._by_service is None:
            grouped: dict[str, list[KnownPod]] = {}
            for pod in self.pods:
                grouped.setdefault(pod.service_uid, []).append(pod)
            self._by_service = grouped
        return self._by_service.get(service_uid, [])

    def observe_service(self, found: Object, *, deleted: bool) -> None:
        """Take a watch event."""
        desire = read_service(found)
        if deleted or desire is None:
            self.services.drop(found["metadata"]["uid"])
        else:
            self.services.put(desire.meta.uid, version_of(found), desire)

    def observe_pod(self, found: Object, *, deleted: bool) -> None:
        """Take a watch event."""
        self._by_service = None
        pod = read_pod(found)
        if deleted or pod is None:
            self.pods.drop(found["metadata"]["uid"])
        else:
            self.pods.put(pod.uid, version_of(found), pod)

    def replace_services(self, listed: Iterable[Object], version: int) -> int:
        """Take a list of all services of all watched namespaces. Returns how many were missed before."""
        known = [(item.meta.uid, version_of(found), item) for found in listed if (item := read_service(found))]
        return len(self.services.replace(known, version))

    def replace_pods(self, listed: Iterable[Object], version: int) -> int:
        """Take a list of all pods of services of all watched namespaces. Returns how many were missed before."""
        self._by_service = None
        known = [(item.uid, version_of(found), item) for found in listed if (item := read_pod(found))]
        return len(self.pods.replace(known, version))
