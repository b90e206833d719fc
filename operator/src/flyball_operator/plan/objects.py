"""Kubernetes objects as plain JSON, and the few questions that planning asks of them.

Plain dictionaries, not typed models: what is planned is exactly what is sent, and a field that this version of a client
library does not know is neither lost nor invented. Pure.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

from flyball_operator.api import names

Object = dict[str, Any]


class Kind(StrEnum):
    """Kinds of owned objects."""

    DEPLOYMENT = "Deployment"
    SERVICE = "Service"
    DISRUPTION_BUDGET = "PodDisruptionBudget"
    REVISION = "ControllerRevision"


API_VERSIONS: Final[Mapping[Kind, str]] = {
    Kind.DEPLOYMENT: "apps/v1",
    Kind.SERVICE: "v1",
    Kind.DISRUPTION_BUDGET: "policy/v1",
    Kind.REVISION: "apps/v1",
}

#: Kinds of which a service owns exactly one, of its own name.
NAMED_KINDS: Final = (Kind.DEPLOYMENT, Kind.SERVICE, Kind.DISRUPTION_BUDGET)

#: Lists that are maps: the API server merges them by these keys, and others may add items beside ours.
_MERGE_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "port"),
    "imagePullSecrets": ("name",),
    "ownerReferences": ("uid",),
}
_QUANTITIES: Final = frozenset({"requests", "limits", "sizeLimit"})
_SUFFIXES: Final[Mapping[str, Decimal]] = {
    "m": Decimal("0.001"),
    "": Decimal(1),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}


def digest(value: object) -> str:
    """Ten hex digits that name this JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def timestamp(moment: datetime) -> str:
    """A moment as Kubernetes spells it; these strings order as the moments do."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def uid(found: Object) -> str:
    """UID of an object."""
    return str(found["metadata"]["uid"])


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


def being_deleted(found: Object) -> bool:
    """Whether the object is on its way out."""
    return bool(found["metadata"].get("deletionTimestamp"))


def created_entry(found: Object) -> int | None:
    """Index of the managed-fields entry that our POST left, if it is still there.

    Fields of a POST belong to an entry of operation Update. A later apply that drops a field would not remove it while
    that entry holds it, so the entry is turned into one of operation Apply (as client-go's `csaupgrade` does).
    """
    for index, entry in enumerate(found["metadata"].get("managedFields") or ()):
        ours = entry.get("manager") == names.MANAGER_HANDS and entry.get("operation") == "Update"
        if ours and not entry.get("subresource"):
            return index
    return None


def covers(live: Any, wanted: Any, key: str = "") -> bool:
    """Whether `live` has everything that `wanted` says; what else it has is somebody else's or a default.

    Quantities are compared by value, because the API server rewrites them (`1000m` to `1`).
    """
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(
            covers(live[field], value, key if key in _QUANTITIES else field) if field in live else _is_empty(value)
            for field, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(live, list) and _covers_list(live, wanted, key)
    if key in _QUANTITIES:
        return live == wanted or quantity(live) == quantity(wanted)
    return bool(live == wanted)


def _covers_list(live: list[Any], wanted: list[Any], key: str) -> bool:
    merge_keys = _MERGE_KEYS.get(key, ())
    if not all(isinstance(item, Mapping) and _merge_key(item, merge_keys) for item in (*live, *wanted)):
        return len(live) == len(wanted) and all(covers(a, b) for a, b in zip(live, wanted, strict=True))
    by_key = {_merge_key(item, merge_keys): item for item in live}
    return all(covers(by_key.get(_merge_key(item, merge_keys)), item) for item in wanted)


def _merge_key(item: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((item[key] for key in keys if key in item), None)


def _is_empty(value: Any) -> bool:
    return value in ("", None, [], {})


def quantity(value: object) -> Decimal | None:
    """The amount in a Kubernetes quantity; None if `value` is none."""
    match = re.fullmatch(r"([0-9.]+)([eE][-+]?[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|)", str(value))
    if match is None:
        return None
    return Decimal(match[1] + (match[2] or "")) * _SUFFIXES[match[3]]
