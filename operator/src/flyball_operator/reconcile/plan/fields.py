"""Fields of objects: where an object differs from what is wanted, how a field is spelt, and who owns it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from flyball_operator.api import names
from flyball_operator.api.objects import Object
from flyball_operator.api.quantities import quantity


class Item(NamedTuple):
    """A step into a list that is a map: the item whose field `key` is `value`."""

    key: str
    value: Any


#: The way to a field of an object: names of fields, and items of lists that are maps.
Path = tuple[str | Item, ...]

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
