"""Kubernetes objects as plain JSON: what planning asks of them, and names, labels and owners of what a service owns.

Plain dictionaries, not typed models: what is planned is exactly what is sent. A field that this version of a client
library does not know is neither lost nor invented. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from flyball_operator.api import names
from flyball_operator.api.quantities import quantity
from flyball_operator.api.v1alpha1 import ObjectMeta

Object = dict[str, Any]


class Item(NamedTuple):
    """A step into a list that is a map: the item whose field `key` is `value`."""

    key: str
    value: Any


#: The way to a field of an object: names of fields, and items of lists that are maps.
Path = tuple[str | Item, ...]


class Kind(StrEnum):
    """Kinds of owned objects."""

    DEPLOYMENT = "Deployment"
    SERVICE = "Service"
    DISRUPTION_BUDGET = "PodDisruptionBudget"
    NETWORK_POLICY = "NetworkPolicy"
    REVISION = "ControllerRevision"
    JOB = "Job"


API_VERSIONS: Final[Mapping[Kind, str]] = {
    Kind.DEPLOYMENT: "apps/v1",
    Kind.SERVICE: "v1",
    Kind.DISRUPTION_BUDGET: "policy/v1",
    Kind.NETWORK_POLICY: "networking.k8s.io/v1",
    Kind.REVISION: "apps/v1",
    Kind.JOB: "batch/v1",
}

#: Kinds of which a service owns one, of its own name; no budget where it asks for none, no policy where they are off.
NAMED_KINDS: Final = (Kind.DEPLOYMENT, Kind.SERVICE, Kind.DISRUPTION_BUDGET, Kind.NETWORK_POLICY)

#: Lists that are maps: the API server merges them by these keys, and others may add items beside ours.
_MERGE_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "port"),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "claims": ("name",),
    "ownerReferences": ("uid",),
}
_QUANTITIES: Final = frozenset({"requests", "limits", "sizeLimit"})
#: Fields of a NetworkPolicy that are compared whole: a label or peer that others add opens the pods.
_EXACT: Final = frozenset({"podSelector", "ingress"})


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


def created_entry(found: Object) -> int | None:
    """Index of the managed-fields entry that our POST left, if it is still there.

    Fields of a POST belong to an entry of operation Update. A later apply that drops a field would not remove it while
    that entry holds it, so the entry is turned into one of operation Apply (as client-go's `csaupgrade` does).
    """
    for index, entry in enumerate(found["metadata"].get("managedFields") or ()):
        ours = entry.get("manager") == names.MANAGER_RECONCILER and entry.get("operation") == "Update"
        if ours and not entry.get("subresource"):
            return index
    return None


def covers(live: Any, wanted: Any) -> bool:
    """Whether `live` has everything that `wanted` says; what else it has is somebody else's or a default."""
    return next(differences(live, wanted), None) is None


def differences(live: Any, wanted: Any, path: Path = (), key: str = "") -> Iterator[Path]:
    """Where `live` lacks what `wanted` says, or has it otherwise. A list that is no map is one field.

    Quantities are compared by value, because the API server rewrites them (`1000m` to `1`).
    """
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        for field, value in wanted.items():
            below = (*path, field)
            if field in _EXACT and (live.get(field) or type(value)()) != value:
                yield below
            elif field in live:
                yield from differences(live[field], value, below, key if key in _QUANTITIES else field)
            elif value not in ("", None, [], {}):
                yield below
    elif isinstance(wanted, list) and isinstance(live, list):
        yield from _list_differences(live, wanted, path, key)
    elif live != wanted and not (key in _QUANTITIES and quantity(live) == quantity(wanted)):
        yield path


def _list_differences(live: list[Any], wanted: list[Any], path: Path, key: str) -> Iterator[Path]:
    merge_keys = _MERGE_KEYS.get(key, ())
    if not all(isinstance(item, Mapping) and _merge_key(item, merge_keys).key for item in (*live, *wanted)):
        if len(live) != len(wanted) or not all(covers(a, b) for a, b in zip(live, wanted, strict=True)):
            yield path
        return
    by_key = {_merge_key(item, merge_keys): item for item in live}
    for item in wanted:
        step = _merge_key(item, merge_keys)
        yield from differences(by_key.get(step), item, (*path, step))


def _merge_key(item: Mapping[str, Any], keys: Sequence[str]) -> Item:
    # Ports have their protocol as a second key, which nearly all leave to its default.
    protocol = item.get("protocol", "TCP") if keys == _MERGE_KEYS["ports"] else "TCP"
    found = next((Item(key, item[key]) for key in keys if key in item), Item("", None))
    return found if protocol == "TCP" else Item(found.key, f"{found.value}/{protocol}")


def spelt(path: Path) -> str:
    """A path as users read it, such as `spec.template.spec.containers[engine].image`."""
    text = ""
    for step in path:
        text += f"[{step.value}]" if isinstance(step, Item) else f".{step}" if step.isidentifier() else f"[{step}]"
    return text.removeprefix(".")


def managers(found: Object, path: Path) -> set[str]:
    """Field managers other than the operator that own the field. An admission policy is none."""
    return {
        str(entry.get("manager"))
        for entry in found["metadata"].get("managedFields") or ()
        if entry.get("manager") != names.MANAGER_RECONCILER and _owns(entry.get("fieldsV1") or {}, path)
    }


def _owns(fields: Mapping[str, Any], path: Path) -> bool:
    """Whether a managed-fields set has this path, or a field that is one whole above it."""
    node = fields
    for depth, step in enumerate(path):
        if depth and not node:
            return True
        below = [value for key, value in node.items() if _is_step(key, step)]
        if not below:
            return False
        node = below[0]
    return True


def _is_step(key: str, step: str | Item) -> bool:
    if isinstance(step, str):
        return key == f"f:{step}"
    return key.startswith("k:") and json.loads(key.removeprefix("k:")).get(step.key) == step.value


#: Value of `app.kubernetes.io/name` on all owned objects.
APPLICATION = "flyball-engine"


def selector(meta: ObjectMeta) -> dict[str, str]:
    """Labels that select the pods of this service, and none of an earlier service of its name."""
    return {names.LABEL_SERVICE: meta.name, names.LABEL_SERVICE_UID: meta.uid}


def selector_text(meta: ObjectMeta) -> str:
    """The selector as `status.selector` spells it."""
    return ",".join(f"{key}={value}" for key, value in selector(meta).items())


def labels(meta: ObjectMeta) -> dict[str, str]:
    """Labels of every owned object."""
    return {
        names.LABEL_NAME: APPLICATION,
        names.LABEL_INSTANCE: meta.name,
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        **selector(meta),
    }


def owner(meta: ObjectMeta) -> dict[str, Any]:
    """Owner reference to the service: garbage collection follows it, and ownership is decided by its UID."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        # Without the finalizers subresource's right, this must be false (OwnerReferencesPermissionEnforcement).
        "blockOwnerDeletion": False,
    }


def owned(kind: Kind, meta: ObjectMeta, *, name: str | None = None, **fields: Any) -> Object:
    """An owned object of this kind with our labels and owner reference; its name is the service's unless given."""
    return {
        "apiVersion": API_VERSIONS[kind],
        "kind": kind.value,
        "metadata": {
            "name": name or meta.name,
            "namespace": meta.namespace,
            "labels": labels(meta),
            "annotations": {},
            "ownerReferences": [owner(meta)],
        },
        **fields,
    }
