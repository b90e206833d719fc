"""Whose pod a pod is: by its namespace and the chain of its controllers. Anyone may write a label on a pod.

A pod is a service's if its controller is a ReplicaSet whose controller is the Deployment of the service's name, whose
controller is the service. Each is found by UID, all in one namespace. Whoever counts pods of a service, its ready
endpoints or its engines asks here.

Where replicas are groups of pods, a LeaderWorkerSet is in the Deployment's place (`members_of_groups`).

A pod that others make is the service's that its labels name, by UID, too, if the service's selector chooses it. Such
labels are no proof: setpoints are signed for a UID, so an engine that was started for another service refuses them.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from flyball_operator.api import names
from flyball_operator.api.objects import Object, controller, name, uid
from flyball_operator.api.v1alpha1 import InferenceService

#: Between a pod and its LeaderWorkerSet are at most a StatefulSet, a leader and that one's StatefulSet.
_MOST_CONTROLLERS: Final = 4


@dataclass(frozen=True)
class Link:
    """Where an object is, and the UID of its controller, empty if it has none."""

    namespace: str
    name: str
    uid: str
    controller: str


class Owner(NamedTuple):
    """An InferenceService as its pods lead to it."""

    namespace: str
    name: str
    uid: str


Links = Callable[[str], Link | None]


def link(found: Object) -> Link:
    """What membership is decided by, of any object."""
    owner = controller(found)
    return Link(
        namespace=str(found["metadata"]["namespace"]),
        name=name(found),
        uid=uid(found),
        controller=str(owner.get("uid") or "") if owner is not None else "",
    )


def owner_of(pod: Link, replica_sets: Links, deployments: Links) -> Owner | None:
    """Whom the controllers of a pod lead to; None where the chain ends early or leaves the namespace."""
    replica_set = replica_sets(pod.controller)
    deployment = deployments(replica_set.controller) if replica_set is not None else None
    if replica_set is None or deployment is None or not deployment.controller:
        return None
    if {replica_set.namespace, deployment.namespace} != {pod.namespace}:
        return None
    return Owner(deployment.namespace, deployment.name, deployment.controller)


def members(
    owner: Owner, pods: Iterable[Object], replica_sets: Iterable[Object], deployment: Object | None
) -> tuple[Object, ...]:
    """Those of the pods that are this service's."""
    sets = {known.uid: known for known in map(link, replica_sets)}
    own = {known.uid: known for known in map(link, () if deployment is None else (deployment,))}
    return tuple(pod for pod in pods if owner_of(link(pod), sets.get, own.get) == owner)


def members_of_groups(
    owner: Owner, pods: Sequence[Object], stateful_sets: Iterable[Object], groups: Object | None
) -> tuple[Object, ...]:
    """Those of the pods that are this service's, by its LeaderWorkerSet.

    That controls a StatefulSet of the leaders. Each leader controls one of the other pods of its group.
    """
    if groups is None or link(groups).controller != owner.uid:
        return ()
    between = {known.uid: known.controller for known in map(link, (*stateful_sets, *pods))}
    return tuple(pod for pod in pods if uid(groups) in _controllers(uid(pod), between))


def _controllers(of: str, between: Mapping[str, str]) -> Iterator[str]:
    """UIDs of an object's controller, its controller's, and so on."""
    for _ in range(_MOST_CONTROLLERS):
        of = between.get(of, "")
        if not of:
            return
        yield of


def tuned_by(service: InferenceService, pod: Link, labels: Mapping[str, str]) -> Owner | None:
    """The service, if this pod that others make is its; None if it is not."""
    meta, workload = service.metadata, service.spec.workload
    if workload is None or not pod.controller or pod.namespace != meta.namespace or not workload.selects(labels):
        return None
    said = (labels.get(names.LABEL_SERVICE), labels.get(names.LABEL_SERVICE_UID))
    return Owner(meta.namespace, meta.name, meta.uid) if said == (meta.name, meta.uid) else None
