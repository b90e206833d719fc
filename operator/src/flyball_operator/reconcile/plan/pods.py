"""What a pod says of itself: its template, node, requests and conditions, and whether the scheduler has placed it.

Conditions are read of a Deployment and a Job, too. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.objects import Object, annotation, moment

#: A resource of which the scheduler found too little on some node.
_INSUFFICIENT: Final = re.compile(r"Insufficient ([\w./-]*\w)")


def template_of(pod: Object) -> str:
    """Spec hash of the template that the pod was made from."""
    return annotation(pod, names.ANNOTATION_SPEC_HASH)


def serves(pod: Object) -> bool:
    """Whether the pod serves requests, once it is Ready. A worker does not."""
    return names.LABEL_WORKER not in (pod["metadata"].get("labels") or {})


def node(pod: Object) -> str:
    """Name of the pod's node, empty without one."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def others_placed(pod: Object, pods: Sequence[Object]) -> list[Object]:
    """Those of another template than this pod's that have a node."""
    return [other for other in pods if template_of(other) != template_of(pod) and node(other)]


def condition(found: Object, kind: str) -> Object:
    """The condition of this type of a pod, Deployment or Job; empty where there is none."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((dict(item) for item in conditions if item.get("type") == kind), {})


def has(found: Object, kind: str) -> bool:
    """Whether the condition of this type is True."""
    return bool(condition(found, kind).get("status") == "True")


def since(found: Object, kind: str) -> datetime | None:
    """Since when the condition is what it is."""
    return moment(condition(found, kind).get("lastTransitionTime"))


def is_taken_up(pod: Object) -> bool:
    """Whether the kubelet of the pod's node has said anything of it."""
    status = pod.get("status") or {}
    return any(status.get(field) for field in ("startTime", "containerStatuses", "initContainerStatuses"))


def has_ended(pod: Object) -> bool:
    """Whether all of it ended for good: it then holds nothing."""
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def is_unschedulable(pod: Object) -> bool:
    """Whether the scheduler has found no node for the pod, and says so."""
    placed = condition(pod, "PodScheduled")
    return (placed.get("status"), placed.get("reason")) == ("False", "Unschedulable")


def insufficient(message: str) -> frozenset[str]:
    """Resources of which the scheduler found too little, by what it says of a pod."""
    return frozenset(_INSUFFICIENT.findall(message))


def requested(pod: Object) -> frozenset[str]:
    """Resources that the pod's containers ask for."""
    return frozenset(
        resource
        for container in (pod.get("spec") or {}).get("containers") or ()
        for resource in (container.get("resources") or {}).get("requests") or ()
    )
