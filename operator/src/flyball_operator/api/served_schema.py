"""Whether the CRD that a cluster serves has all that this operator reads and writes.

It may have more: a later version only adds fields, so that operators of both versions work with its CRD. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from flyball_operator.api import names
from flyball_operator.api.crd import schema, schema_hash

Schema = Mapping[str, Any]


def lacked(crd: Mapping[str, Any], *, most: int) -> tuple[str, ...] | None:
    """So many of the fields that a CRD lacks; none where it has all and more, None where it is this operator's."""
    if (crd["metadata"].get("annotations") or {}).get(names.ANNOTATION_SCHEMA_HASH) == schema_hash():
        return None
    served = next((one for one in crd["spec"]["versions"] if one["name"] == names.VERSION), None)
    if served is None:
        return (f"version {names.VERSION}",)
    return tuple(islice(lacking(schema(), (served.get("schema") or {}).get("openAPIV3Schema") or {}), most))


def lacking(ours: Schema, served: Schema, path: str = "") -> Iterator[str]:
    """Paths of fields that the served schema does not have, has otherwise, or asks for where ours does not."""
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return
    of_values = ours.get("enum") and served.get("enum") and not set(ours["enum"]) <= set(served["enum"])
    if ours.get("type") != served.get("type") or of_values:
        yield path or "the object"
        return
    yield from (f"{path}.{name}".lstrip(".") for name in _newly_required(ours, served))
    for name, field in (ours.get("properties") or {}).items():
        below = f"{path}.{name}".lstrip(".")
        found = (served.get("properties") or {}).get(name)
        if found is None:
            yield below
        else:
            yield from lacking(field, found, below)
    for keyword, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(ours.get(keyword), Mapping):
            found = served.get(keyword)
            yield from lacking(ours[keyword], found if isinstance(found, Mapping) else {}, path + mark)


def _newly_required(ours: Schema, served: Schema) -> list[str]:
    return [name for name in served.get("required") or () if name not in (ours.get("required") or ())]
