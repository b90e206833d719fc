"""An InferenceService as the API server holds it, read as untrusted input.

Where the spec does not parse, what is needed to say so in its status still does. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from flyball_operator.api.objects import Object
from flyball_operator.api.parse import InvalidSpecError, parse_service
from flyball_operator.api.v1alpha1 import ConditionType, InferenceService, InferenceServiceStatus, ObjectMeta


@dataclass(frozen=True)
class Desire:
    """An InferenceService as found: its metadata and status, and its parsed form or why it does not parse."""

    meta: ObjectMeta
    status: InferenceServiceStatus
    service: InferenceService | None
    error: str = ""

    @cached_property
    def to_tune(self) -> InferenceService | None:
        """The service, if it is governed, accepted and not being deleted; looked for once."""
        service = self.service
        if service is None or not service.spec.governed or self.meta.deletion_timestamp is not None:
            return None
        accepted = any(
            found.type == ConditionType.ACCEPTED and found.status == "True" for found in self.status.conditions
        )
        return service if accepted else None


def read_desire(raw: Object, known: Desire | None = None) -> Desire:
    """Parse what the API server holds. Raises `NoObjectError` only if it is not even a Kubernetes object.

    `known`: as it was in an earlier version. Its spec is taken while the generation is the same: most events tell of
    status, and to read a spec takes longest.
    """
    before = known.service if known is not None else None
    try:
        service = parse_service(raw, before)
    except InvalidSpecError as error:
        return Desire(meta=error.metadata, status=error.status, service=None, error=str(error))
    return Desire(meta=service.metadata, status=service.status, service=service)
