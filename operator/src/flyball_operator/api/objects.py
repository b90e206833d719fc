"""Kubernetes objects as plain JSON, and what is asked of any of them.

Plain dictionaries, not typed models: what is planned is exactly what is sent. A field that this version of a client
library does not know is neither lost nor invented. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

Object = dict[str, Any]


class Kind(StrEnum):
    """Kinds of owned objects."""

    DEPLOYMENT = "Deployment"
    LEADER_WORKER_SET = "LeaderWorkerSet"
    SERVICE = "Service"
    DISRUPTION_BUDGET = "PodDisruptionBudget"
    NETWORK_POLICY = "NetworkPolicy"
    CONFIG_MAP = "ConfigMap"
    REVISION = "ControllerRevision"
    VOLUME_CLAIM = "PersistentVolumeClaim"
    JOB = "Job"
    INFERENCE_POOL = "InferencePool"
    HTTP_ROUTE = "HTTPRoute"


#: Kinds of the Gateway API, which a cluster may lack. They are not watched.
ROUTE_KINDS: Final = (Kind.INFERENCE_POOL, Kind.HTTP_ROUTE)
#: Kinds that are read where a service asks for one, and not watched: of ConfigMaps a namespace may have many others.
#: A cluster may lack LeaderWorkerSets.
UNWATCHED_KINDS: Final = (*ROUTE_KINDS, Kind.CONFIG_MAP, Kind.LEADER_WORKER_SET)
#: Kinds of which a service owns one, of its own name; no budget where it asks for none, no policy where they are off.
#: Pods are a Deployment's, or a LeaderWorkerSet's where replicas are of several nodes.
NAMED_KINDS: Final = (
    Kind.DEPLOYMENT,
    Kind.LEADER_WORKER_SET,
    Kind.SERVICE,
    Kind.DISRUPTION_BUDGET,
    Kind.NETWORK_POLICY,
)


def digest(value: object) -> str:
    """Ten hex digits that name this JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def timestamp(moment: datetime) -> str:
    """A moment as Kubernetes spells it; these strings order as the moments do."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: object) -> datetime | None:
    """The moment that Kubernetes spells so; None where it is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def uid(found: Object) -> str:
    """UID of an object."""
    return str(found["metadata"]["uid"])


def version_of(found: Object) -> int:
    """Resource version of an object; 0 where it has none that is a number."""
    return number_of(str(found["metadata"].get("resourceVersion") or ""))


def number_of(resource_version: str) -> int:
    """Resource versions are ordered (guaranteed from Kubernetes 1.35; true of etcd's always)."""
    return int(resource_version) if resource_version.isdecimal() else 0


def name(found: Object) -> str:
    """Name of an object."""
    return str(found["metadata"]["name"])


def content(found: Object) -> Object:
    """What an object asks for: its spec, and of a ConfigMap its data."""
    return {field: found[field] for field in ("spec", "data") if field in found}


def annotation(found: Object, key: str) -> str:
    """An annotation, empty where it is absent."""
    return str((found.get("metadata", {}).get("annotations") or {}).get(key, ""))


def controller(found: Object) -> Mapping[str, Any] | None:
    """The owner reference of the object's controller, if it has one."""
    owners: Sequence[Mapping[str, Any]] = found["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def controlled_by(found: Object, owner_uid: str) -> bool:
    """Whether the object's controller has this UID. Names do not count: they come again, UIDs do not."""
    owner = controller(found)
    return owner is not None and owner.get("uid") == owner_uid


def unless_changed(found: Object) -> dict[str, Any]:
    """Of a JSON patch, the operation that makes it a conflict (409) once the object has changed.

    Replaced, not tested: a mismatch in a test is an invalid patch.
    """
    return {"op": "replace", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]}


def being_deleted(found: Object) -> bool:
    """Whether the object is on its way out."""
    return bool(found["metadata"].get("deletionTimestamp"))
