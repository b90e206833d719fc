"""From what the API server sent to an `InferenceService`, or to sentences that name the fields that are wrong.

The CRD refuses the same things earlier, but an object may be older than its CRD, or the CRD may have been changed: what
is read is untrusted. The status is read leniently, because it is ours and a bad one must not stop the service: what
cannot be read of it counts as not written. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from flyball_operator.api.field_errors import sentences
from flyball_operator.api.v1alpha1 import (
    Condition,
    InferenceService,
    InferenceServiceSpec,
    InferenceServiceStatus,
    ObjectiveStatus,
    ObjectMeta,
    TuningStatus,
)


class ParseError(ValueError):
    """What was read is no `InferenceService`."""


class NoObjectError(ParseError):
    """There is no readable metadata: nothing can be reported on this object."""


class InvalidSpecError(ParseError):
    """The spec is wrong; `metadata` and `status` are good, and `errors` name each wrong field."""

    def __init__(self, errors: Sequence[str], *, metadata: ObjectMeta, status: InferenceServiceStatus) -> None:
        super().__init__("; ".join(errors))
        self.errors = tuple(errors)
        self.metadata = metadata
        self.status = status


def parse_service(raw: Mapping[str, Any], known: InferenceService | None = None) -> InferenceService:
    """The service in a JSON object. `known`: as it was earlier; with its generation it has its spec, the same object.

    Raises `NoObjectError` where there is no metadata to speak of, `InvalidSpecError` with one sentence per wrong field.
    """
    metadata = parse_metadata(raw)
    status = parse_status(raw.get("status"))
    try:
        spec = known.spec if known is not None and _has_same_spec(known.metadata, metadata) else None
        spec = spec or InferenceServiceSpec.model_validate(raw.get("spec"))
        return InferenceService(metadata=metadata, spec=spec, status=status)
    except ValidationError as error:
        raise InvalidSpecError(sentences(error), metadata=metadata, status=status) from error


def _has_same_spec(known: ObjectMeta, metadata: ObjectMeta) -> bool:
    # The API server counts each change of a spec. A generation of 0 comes from nobody who counts.
    return known.uid == metadata.uid and known.generation == metadata.generation > 0


def parse_metadata(raw: Mapping[str, Any]) -> ObjectMeta:
    """The metadata in a JSON object. Raises `NoObjectError`."""
    try:
        return ObjectMeta.model_validate(raw.get("metadata"))
    except ValidationError as error:
        raise NoObjectError("; ".join(sentences(error))) from error


def parse_status(raw: object) -> InferenceServiceStatus:
    """The status as far as it can be read: each part on its own, and conditions of a later operator left out."""
    if not isinstance(raw, Mapping):
        return InferenceServiceStatus()
    with suppress(ValidationError):
        return InferenceServiceStatus.model_validate(raw)
    parts: dict[str, Any] = {}
    for key, value in raw.items():
        readable = _readable(key, value)
        if readable is not None:
            parts[key] = readable
    return InferenceServiceStatus.model_validate(parts)


def _readable(key: str, value: object) -> object | None:
    """The part `key` of a status if it reads on its own, else None; of lists, the items that read."""
    items = {"conditions": Condition, "objectives": ObjectiveStatus}
    if key in items and isinstance(value, list):
        kept = [item for item in value if _reads(items[key], item)]
        return kept if _reads(InferenceServiceStatus, {key: kept}) else None
    if key == "tuning" and isinstance(value, Mapping):
        return _tuning(value)
    return value if _reads(InferenceServiceStatus, {key: value}) else None


def _tuning(value: Mapping[str, Any]) -> dict[str, Any]:
    """Field by field: epoch and generation must survive a model or decision that does not read."""
    return {field: part for field, part in value.items() if _reads(TuningStatus, {field: part})}


def _reads(model: type[Any], value: object) -> bool:
    try:
        model.model_validate(value)
    except ValidationError:
        return False
    return True
