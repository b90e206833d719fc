"""ControllerRevisions: the rendered pod templates, kept by the hash of what was asked for.

They decouple pods from the operator's version (a template is rendered once and then read), and they are what a failed
rollout goes back to. What happened to a template is on its revision: `good` once a rollout of it was complete, `failed`
with the cause when one was given up. The revision in force has the highest number. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.v1alpha1 import InferenceService, ObjectMeta
from flyball_operator.plan.causes import Cause
from flyball_operator.plan.labels import owned
from flyball_operator.plan.objects import Kind, Object, annotation, digest

#: Revisions kept besides the one in force and the last good one.
KEEP: Final = 5

#: What must roll pods when it changes. Everything else in the spec reaches running engines, or concerns no pod.
_ROLL_RELEVANT: Final[dict[str, bool | set[str]]] = {
    "model": True,
    "engine": True,
    "accelerator": True,
    "parallelism": True,
    "batching": True,
    "pod_template": True,
    "rollout": {"startup_timeout", "drain_timeout"},
}


@dataclass(frozen=True)
class Revision:
    """One kept template.

    `number` orders them. `since`: when it came into force, in Kubernetes' spelling. `live` is the object, None before
    it is created.
    """

    spec_hash: str
    number: int
    template: Object
    good: bool = False
    failed: Cause | None = None
    since: str = ""
    live: Object | None = None


def spec_hash(service: InferenceService) -> str:
    """Names what must roll pods when it changes.

    Fields at their defaults are left out, so that a field which a later version adds changes no hash. The UID is in it,
    so that a revision left by an earlier service of the same name is never taken for ours.
    """
    spec = service.spec.model_dump(mode="json", by_alias=True, include=_ROLL_RELEVANT, exclude_defaults=True)
    adopt = service.metadata.annotations.get(names.ANNOTATION_ADOPT, "")
    return digest({"spec": spec, "adopt": adopt, "uid": service.metadata.uid})


def read(found: Object) -> Revision | None:
    """The revision in a ControllerRevision; None if it is not one of ours."""
    template = (found.get("data") or {}).get("template")
    name = annotation(found, names.ANNOTATION_SPEC_HASH)
    if not isinstance(template, dict) or not name:
        return None
    return Revision(
        spec_hash=name,
        number=int(found.get("revision", 0)),
        template=template,
        good=annotation(found, names.ANNOTATION_GOOD) == "true",
        failed=_read_cause(annotation(found, names.ANNOTATION_FAILED)),
        since=annotation(found, names.ANNOTATION_SINCE),
        live=found,
    )


def _read_cause(text: str) -> Cause | None:
    try:
        fields = json.loads(text)
        return Cause(reason=str(fields["reason"]), message=str(fields["message"]))
    except (ValueError, TypeError, KeyError):
        return None


def render(meta: ObjectMeta, revision: Revision) -> Object:
    """The ControllerRevision of a revision."""
    body = owned(
        Kind.REVISION,
        meta,
        name=f"{meta.name}-{revision.spec_hash}",
        data={"template": revision.template},
        revision=revision.number,
    )
    annotations = {names.ANNOTATION_SPEC_HASH: revision.spec_hash, names.ANNOTATION_SINCE: revision.since}
    if revision.good:
        annotations[names.ANNOTATION_GOOD] = "true"
    if revision.failed is not None:
        cause = {"reason": revision.failed.reason, "message": revision.failed.message}
        annotations[names.ANNOTATION_FAILED] = json.dumps(cause, sort_keys=True)
    body["metadata"]["annotations"] = annotations
    return body


def in_force(revisions: Iterable[Revision], current: Revision, now: str) -> tuple[Revision, list[Revision]]:
    """The current revision with the highest number, and the others.

    Others lose their failure: it holds for as long as the spec asks for the same, and asking for something else and
    then for the same again is a new attempt.
    """
    others = [replace(other, failed=None) for other in revisions if other.spec_hash != current.spec_hash]
    highest = max((other.number for other in others), default=0)
    if current.live is None or current.number <= highest:
        current = replace(current, number=highest + 1, since=now)
    return current, others


def last_good(others: Sequence[Revision]) -> Revision | None:
    """The newest of the other revisions that ever was rolled out whole."""
    return max((other for other in others if other.good), key=lambda other: other.number, default=None)


def surplus(others: Sequence[Revision]) -> list[Revision]:
    """Revisions that are kept no longer: neither among the newest, nor the last good one."""
    newest = sorted(others, key=lambda other: other.number, reverse=True)
    good = last_good(others)
    return [other for other in newest[KEEP:] if other != good]
