"""ControllerRevisions: the rendered pod templates, kept by the hash of what was asked for.

They decouple pods from the operator's version (a template is rendered once and then read), and they are what a failed
rollout goes back to. Each is written once and never changed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flyball_operator.api import names
from flyball_operator.api.objects import Kind, Object, annotation, digest
from flyball_operator.api.v1alpha1 import InferenceService, ObjectMeta
from flyball_operator.reconcile.plan.owned_objects import owned

#: Revisions kept besides the one asked for and the last good one.
KEEP: Final = 5

#: What must roll pods when it changes. Everything else in the spec reaches running engines, or concerns no pod.
_ROLL_RELEVANT: Final[dict[str, bool | set[str]]] = {
    "served_model": True,
    "engine_container": True,
    "accelerator": True,
    "parallelism": True,
    "batching": True,
    "pod_template": True,
    "rollout": {"startup_timeout", "drain_timeout"},
}
#: Of these, what concerns no pod.
_BESIDE_PODS: Final = {"served_model": {"cache": {"claim"}}}


@dataclass(frozen=True)
class Revision:
    """One kept template. `number` orders them; `live` is the object, None before it is created.

    `version`: of the operator that rendered it, empty where that did not say. `worker`: the template of workers, None
    where there are none.
    """

    spec_hash: str
    number: int
    template: Object
    live: Object | None = None
    version: str = ""
    worker: Object | None = None

    @property
    def data(self) -> Object:
        """Its templates, as a ControllerRevision keeps them."""
        return data_of(self.template, self.worker)


def data_of(template: Object, worker: Object | None) -> Object:
    """Templates as a ControllerRevision keeps them. Where there are no workers, nothing is said of them."""
    return {"template": template} | ({"workerTemplate": worker} if worker is not None else {})


def spec_hash(service: InferenceService, adopted: str = "") -> str:
    """Names what must roll pods when it changes.

    Fields at their defaults are left out, so that a field which a later version adds changes no hash. The UID is in it,
    so that a revision left by an earlier service of the same name is never taken for ours. `adopted` names the
    renderer's output that the service took by itself, if it did.
    """
    spec = service.spec.model_dump(
        mode="json", by_alias=True, include=_ROLL_RELEVANT, exclude=_BESIDE_PODS, exclude_defaults=True
    )
    adopt = service.metadata.annotations.get(names.ANNOTATION_ADOPT, "")
    model = service.spec.served_model
    beside = {"adopted": adopted} if adopted else {}
    # Its name is fixed, and nothing else of the claim is in a pod.
    beside |= {"claim": "made"} if model is not None and model.claim_to_make else {}
    # That there is a list; what is in it reaches running engines.
    beside |= {"adapters": "listed"} if service.spec.adapters is not None else {}
    return digest({"spec": _pruned(spec), "adopt": adopt, "uid": service.metadata.uid, **beside})


def _pruned(value: Any) -> Any:
    """Without empty objects: one whose fields are all at their defaults, or not relevant, says nothing."""
    if not isinstance(value, dict):
        return value
    pruned = {field: _pruned(below) for field, below in value.items()}
    return {field: below for field, below in pruned.items() if below != {}}


def read(found: Object) -> Revision | None:
    """The revision in a ControllerRevision; None if it is not one of ours."""
    data = found.get("data") or {}
    template = data.get("template")
    name = annotation(found, names.ANNOTATION_SPEC_HASH)
    if not isinstance(template, dict) or not name:
        return None
    return Revision(
        spec_hash=name,
        number=int(found.get("revision", 0)),
        template=template,
        live=found,
        version=annotation(found, names.ANNOTATION_RENDERED_BY),
        worker=data.get("workerTemplate"),
    )


def following(kept: Iterable[Revision], name: str, data: Object, version: str) -> Revision:
    """A new revision after those there are, of these templates."""
    number = max((other.number for other in kept), default=0) + 1
    return Revision(name, number, data["template"], version=version, worker=data.get("workerTemplate"))


def is_older(version: str, other: str) -> bool:
    """Whether a version of the operator comes before another; not where one of them is not known."""
    ours, theirs = (tuple(map(int, re.findall(r"\d+", re.split(r"[-+]", one)[0]))) for one in (version, other))
    return bool(ours and theirs) and ours < theirs


def render(meta: ObjectMeta, revision: Revision) -> Object:
    """The ControllerRevision of a revision."""
    name = f"{meta.name}-{revision.spec_hash}"
    body = owned(Kind.REVISION, meta, name=name, data=revision.data, revision=revision.number)
    rendered_by = {names.ANNOTATION_RENDERED_BY: revision.version} if revision.version else {}
    body["metadata"]["annotations"] = {names.ANNOTATION_SPEC_HASH: revision.spec_hash, **rendered_by}
    return body


def surplus(kept: Sequence[Revision], needed: Collection[str]) -> list[Revision]:
    """Revisions that are kept no longer: neither needed, nor among the newest of the others."""
    others = [revision for revision in kept if revision.spec_hash not in needed]
    return sorted(others, key=lambda revision: revision.number, reverse=True)[KEEP:]
