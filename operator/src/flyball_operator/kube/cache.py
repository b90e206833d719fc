"""What is known of services and their pods, kept from watch events and replaced whole by every list.

The tuner looks here: at every tick, for all services, without a call. The reconciler sees here whether there is
anything to look at, and then reads live. A list replaces everything, so an object that was deleted while no watch ran
does not stay for ever, as it does in kopf's own indices. A list is of one namespace, or of all of them (None), and says
nothing of others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from flyball_operator.api import names
from flyball_operator.api.desire import Desire, read_desire
from flyball_operator.api.engine_container import engine_container, plugin_image
from flyball_operator.api.membership import Link, Owner, link, owner_of, tuned_by
from flyball_operator.api.objects import Object, annotation, version_of
from flyball_operator.api.parse import NoObjectError
from flyball_operator.api.workload import Workload
from flyball_operator.kube.resources import DEPLOYMENTS, INFERENCE_SERVICES, PODS, REPLICA_SETS, Resource
from flyball_operator.kube.store import Store
from flyball_operator.kube.versions import Versions

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod, as last seen. `link` leads to its service, if it is one's; of a pod of others, `labels` do.

    `spec_hash` names its revision. `ready_since`: when it became Ready, empty where it is not. `takes_keys`: whether
    another public key reaches its engine; not where an earlier operator made it, which gave it one for good.
    `worker`: whether it runs a part of the engine core that its leader serves, and has no control port.
    """

    link: Link
    ip: str | None
    ready: bool
    leaving: bool
    container_id: str
    restarts: int
    control_port: int
    labels: Mapping[str, str] = field(default_factory=dict)
    spec_hash: str = ""
    ready_since: str = ""
    takes_keys: bool = True
    worker: bool = False


def read_service(found: Object, known: Desire | None = None) -> Desire | None:
    """The service in an object; None if it is not even one. `known`: as it was in an earlier version."""
    try:
        return read_desire(found, known)
    except NoObjectError:
        return None


def read_pod(found: Object) -> KnownPod | None:
    """The pod in an object; None if nothing controls it: then it is no service's, whatever its labels say."""
    metadata, chain = found["metadata"], link(found)
    if not chain.controller:
        return None
    labels = metadata.get("labels") or {}
    foreign = labels.get(names.LABEL_MANAGED_BY) != names.MANAGED_BY
    status = found.get("status") or {}
    which = engine_container(found)
    containers = status.get("containerStatuses") or ()
    engine: Object = next((one for one in containers if one.get("name") == which.name), {})
    conditions = {item.get("type"): item for item in status.get("conditions") or ()}
    ready: Object = conditions.get("Ready") or {}
    is_ready = ready.get("status") == "True"
    return KnownPod(
        link=chain,
        ip=status.get("podIP"),
        ready=is_ready,
        leaving=bool(metadata.get("deletionTimestamp")) or status.get("phase") in ("Succeeded", "Failed"),
        container_id=engine.get("containerID") or "",
        restarts=int(engine.get("restartCount") or 0),
        control_port=which.control_port,
        labels=labels if foreign else {},
        spec_hash=annotation(found, names.ANNOTATION_SPEC_HASH),
        ready_since=str(ready.get("lastTransitionTime") or "") if is_ready else "",
        takes_keys=foreign or not plugin_image(found) or _mounts_keys(found),
        worker=names.LABEL_WORKER in labels,
    )


#: Of metadata what the cache reads. Most of the rest is who owns which field.
_METADATA: Final = frozenset(
    {"namespace", "name", "uid", "resourceVersion", "labels", "annotations", "ownerReferences", "deletionTimestamp"}
)
#: Of each container, its status and each volume of a pod likewise.
_CONTAINER: Final = frozenset({"name", "image", "ports", "containerID", "restartCount", "configMap"})


def service_part(found: Object) -> Object:
    """A service without who owns which field of it: half of its memory."""
    metadata = {key: value for key, value in found["metadata"].items() if key != "managedFields"}
    return {**found, "metadata": metadata}


def metadata_part(found: Object) -> Object:
    """What the cache reads of an object that is no pod and no service."""
    return {"metadata": _only(found["metadata"], _METADATA)}


def pod_part(found: Object) -> Object:
    """What the cache reads of a pod."""
    spec, status = found.get("spec") or {}, found.get("status") or {}
    parts = {key: _each(spec.get(key)) for key in ("containers", "initContainers", "volumes")}
    conditions = [item for item in status.get("conditions") or () if item.get("type") == "Ready"]
    seen = {"conditions": conditions, "containerStatuses": _each(status.get("containerStatuses"))}
    return metadata_part(found) | {"spec": parts, "status": _only(status, {"podIP", "phase"}) | seen}


def _only(found: Object, keys: Collection[str]) -> Object:
    return {key: value for key, value in found.items() if key in keys}


def _each(found: Iterable[Object] | None) -> list[Object]:
    return [_only(one, _CONTAINER) for one in found or ()]


def _mounts_keys(pod: Object) -> bool:
    volumes = pod["spec"].get("volumes") or ()
    return any((volume.get("configMap") or {}).get("name") == names.PUBLIC_KEYS for volume in volumes)


class Cache:
    """The services of all watched namespaces, their pods, and what leads from one to the other."""

    def __init__(self) -> None:
        self.services: Store[Desire] = Store()
        self.deployments: Store[Link] = Store()
        self.replica_sets: Store[Link] = Store()
        self.pods: Store[KnownPod] = Store()
        self.versions = Versions()
        self._by_owner: dict[Owner, list[KnownPod]] | None = None
        #: UIDs of pods whose way to their service is not watched: those of LeaderWorkerSets, as last read.
        self._groups: dict[Owner, frozenset[str]] = {}

    @property
    def members(self) -> Mapping[Owner, list[KnownPod]]:
        """The pods of each service (`membership`): the same object until something of a pod may have changed."""
        if self._by_owner is None:
            self._by_owner = self._grouped()
        return self._by_owner

    def pods_of(self, service_uid: str) -> list[KnownPod]:
        """The pods of a service; none of a service that is not known."""
        service = self.services.get(service_uid)
        if service is None:
            return []
        return self.members.get(Owner(service.meta.namespace, service.meta.name, service_uid), [])

    def note_members(self, owner: Owner, pods: frozenset[str]) -> None:
        """Take the UIDs of all pods of a service that has a LeaderWorkerSet, as just read."""
        if self._groups.get(owner) != pods:
            self._groups[owner] = pods
            self._by_owner = None

    def _grouped(self) -> dict[Owner, list[KnownPod]]:
        grouped: dict[Owner, list[KnownPod]] = {}
        noted = {pod: owner for owner, pods in self._groups.items() for pod in pods}
        for pod in self.pods:
            owner = (
                owner_of(pod.link, self.replica_sets.get, self.deployments.get)
                or noted.get(pod.link.uid)
                or self._tuned_by(pod)
            )
            if owner is not None:
                grouped.setdefault(owner, []).append(pod)
        return grouped

    def _tuned_by(self, pod: KnownPod) -> Owner | None:
        desire = self.services.get(pod.labels.get(names.LABEL_SERVICE_UID, "")) if pod.labels else None
        return tuned_by(desire.service, pod.link, pod.labels) if desire is not None and desire.service else None

    def observe_service(self, found: Object, *, deleted: bool) -> Desire | None:
        """Take a watch event. Returns the service, None if it is gone or none."""
        self.versions.observe(INFERENCE_SERVICES, found, deleted=deleted)
        uid = found["metadata"]["uid"]
        before = self.services.get(uid)
        desire = None if deleted else read_service(found, before)
        if desire is None:
            self.services.drop(uid)
            self._groups = {owner: pods for owner, pods in self._groups.items() if owner.uid != uid}
        else:
            self.services.put(desire.meta.uid, desire.meta.namespace, version_of(found), desire)
        if _workload(before) != _workload(desire):
            self._by_owner = None
        return desire

    def observe_deployment(self, found: Object, *, deleted: bool) -> None:
        """Take a watch event."""
        self._observe_link(DEPLOYMENTS, self.deployments, found, deleted=deleted)

    def observe_replica_set(self, found: Object, *, deleted: bool) -> None:
        """Take a watch event."""
        self._observe_link(REPLICA_SETS, self.replica_sets, found, deleted=deleted)

    def _observe_link(self, resource: Resource, known: Store[Link], found: Object, *, deleted: bool) -> None:
        self.versions.observe(resource, found, deleted=deleted)
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
        self.versions.observe(PODS, found, deleted=deleted)
        pod = read_pod(found)
        if deleted or pod is None:
            self.pods.drop(found["metadata"]["uid"])
        else:
            self.pods.put(pod.link.uid, pod.link.namespace, version_of(found), pod)

    def replace_services(self, listed: Iterable[Object], version: int, *, namespace: str | None = None) -> int:
        """Take a list of all services of a namespace, None for all of them. Returns how many were missed before."""
        found, self._by_owner = list(listed), None
        self.versions.replace(INFERENCE_SERVICES, found, version, namespace)
        known = [
            (item.meta.uid, item.meta.namespace, own, item) for own, item in _read(self.services, found, read_service)
        ]
        missed = len(self.services.replace(namespace, known, version))
        # A namespace that is not watched for a while may come back as it was.
        gone = {owner for owner in self._groups if namespace in (None, owner.namespace) and not self._knows(owner)}
        self._groups = {owner: pods for owner, pods in self._groups.items() if owner not in gone}
        return missed

    def _knows(self, owner: Owner) -> bool:
        return self.services.get(owner.uid) is not None

    def replace_deployments(self, listed: Iterable[Object], version: int, *, namespace: str | None = None) -> None:
        """Take a list of all Deployments of services of a namespace, None for all."""
        self._replace_links(DEPLOYMENTS, self.deployments, listed, version, namespace)

    def replace_replica_sets(self, listed: Iterable[Object], version: int, *, namespace: str | None = None) -> None:
        """Take a list of all ReplicaSets of services of a namespace, None for all."""
        self._replace_links(REPLICA_SETS, self.replica_sets, listed, version, namespace)

    def _replace_links(
        self, resource: Resource, known: Store[Link], listed: Iterable[Object], version: int, namespace: str | None
    ) -> None:
        self._by_owner = None
        found = list(listed)
        self.versions.replace(resource, found, version, namespace)
        links = [(seen.uid, seen.namespace, version_of(one), seen) for one in found for seen in (link(one),)]
        known.replace(namespace, links, version)

    def replace_pods(self, listed: Iterable[Object], version: int, *, namespace: str | None = None) -> int:
        """Take a list of all pods of services of a namespace, None for all. Returns how many were missed before."""
        self._by_owner = None
        found = list(listed)
        self.versions.replace(PODS, found, version, namespace)
        pods = _read(self.pods, found, lambda pod, _: read_pod(pod))
        known = [(item.link.uid, item.link.namespace, own, item) for own, item in pods]
        return len(self.pods.replace(namespace, known, version))

    def forget_services(self, namespace: str | None, concerns: Callable[[str], bool]) -> None:
        """Drop services of a namespace, None for all: those whose UIDs `concerns` has."""
        dropped = [
            desire.meta.uid
            for desire in self.services
            if namespace in (None, desire.meta.namespace) and concerns(desire.meta.uid)
        ]
        for uid in dropped:
            self.services.drop(uid)

    def forget(self, namespace: str | None) -> None:
        """Drop everything of a namespace, None for all: nobody may see what becomes of it."""
        self._by_owner = None
        self.versions.forget(namespace)
        self.services.forget(namespace)
        self.deployments.forget(namespace)
        self.replica_sets.forget(namespace)
        self.pods.forget(namespace)


def _workload(desire: Desire | None) -> Workload | None:
    return desire.service.spec.workload if desire is not None and desire.service is not None else None


def _read(
    store: Store[T], listed: Iterable[Object], read: Callable[[Object, T | None], T | None]
) -> Iterator[tuple[int, T]]:
    """What is listed, with its version. What is known in that version is not read again."""
    for found in listed:
        version, known = version_of(found), store.entry(found["metadata"]["uid"])
        if known is not None and known.version == version > 0:
            yield version, known.value
        elif (item := read(found, None if known is None else known.value)) is not None:
            yield version, item
