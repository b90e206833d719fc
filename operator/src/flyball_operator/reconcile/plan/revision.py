"""ControllerRevisions: the rendered pod templates, kept by the hash of what was asked for.

They decouple pods from the operator's version (a template is rendered once and then read), and they are what a failed
rollout goes back to. Each is written once and never changed. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flyball_operator.api import names
from flyball_operator.api.v1alpha1 import InferenceService, ObjectMeta
from flyball_operator.reconcile.plan.objects import Kind, Object, annotation, digest, owned

#: Revisions kept besides the one asked for and the last good one.
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
    """One kept template. `number` orders them; `live` is the object, None before it is created."""

    spec_hash: str
    number: int
    template: Object
    live: Object | None = None


def spec_hash(service: InferenceService) -> str:
    """Names what must roll pods when it changes.

    Fields at their defaults are left out, so that a field which a later version adds changes no hash. The UID is in it,
    so that a revision left by an earlier service of the same name is never taken for ours.
    """
    spec = service.spec.model_dump(mode="json", by_alias=True, include=_ROLL_RELEVANT, exclude_defaults=True)
    adopt = service.metadata.annotations.get(names.ANNOTATION_ADOPT, "")
    return digest({"spec": _pruned(spec), "adopt": adopt, "uid": service.metadata.uid})


def _pruned(value: Any) -> Any:
    """Without empty objects: one whose fields are all at their defaults, or not relevant, says nothing."""
    if not isinstance(value, dict):
        return value
    pruned = {field: _pruned(below) for field, below in value.items()}
    return {field: below for field, below in pruned.items() if below != {}}


def read(found: Object) -> Revision | None:
    """The revision in a ControllerRevision; None if it is not one of ours."""
    template = (found.get("data") or {}).get("template")
    name = annotation(found, names.ANNOTATION_SPEC_HASH)
    if not isinstance(template, dict) or not name:
        return None
    return Revision(spec_hash=name, number=int(found.get("revision", 0)), template=template, live=found)


def following(kept: Iterable[Revision], name: str, template: Object) -> Revision:
    """A new revision after those there are."""
    return Revision(spec_hash=name, number=max((other.number for other in kept), default=0) + 1, template=template)


def render(meta: ObjectMeta, revision: Revision) -> Object:
    """The ControllerRevision of a revision."""
    data = {"template": revision.template}
    name = f"{meta.name}-{revision.spec_hash}"
    body = owned(Kind.REVISION, meta, name=name, data=data, revision=revision.number)
    body["metadata"]["annotations"] = {names.ANNOTATION_SPEC_HASH: revision.spec_hash}
    return body


def surplus(kept: Sequence[Revision], needed: Collection[str]) -> list[Revision]:
    """Revisions that are kept no longer: neither needed, nor among the newest of the others."""
    others = [revision for revision in kept if revision.spec_hash not in needed]
    return sorted(others, key=lambda revision: revision.number, reverse=True)[KEEP:]
