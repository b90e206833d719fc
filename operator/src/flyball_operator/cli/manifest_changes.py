"""What an edited manifest would change of a service, and what that does to pods, limits and objectives. Pure.

Whether pods are replaced is decided as the operator does: by the hash of the spec that its planner uses. Which fields
of the pod template change is seen by rendering both specs alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from flyball_operator.api import names
from flyball_operator.api.engine_container import plugin_image
from flyball_operator.api.objects import Object
from flyball_operator.api.spec import LARGEST_BOUND
from flyball_operator.api.v1alpha1 import InferenceService, Range
from flyball_operator.reconcile.plan import history, pod, revision
from flyball_operator.reconcile.plan.deployment import canary_steps, rollout_steps, wanted_replicas
from flyball_operator.reconcile.plan.fields import differences, spelt
from flyball_operator.reconcile.plan.snapshot import Config

#: By `kubectl apply`, of its own last apply.
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
#: Of metadata, what people write.
_METADATA: Final = ("labels", "annotations")
_ABSENT: Final = "(absent)"


@dataclass(frozen=True)
class Change:
    """One field. None: absent."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Pods:
    """What becomes of pods. `fields`: of their template. `max_surge`, `max_unavailable`: more or fewer meanwhile.

    `judged`: how many are replaced first, and judged; 0 where all are replaced at once.
    """

    replaced: bool
    why: str
    fields: tuple[str, ...]
    replicas_before: int
    replicas_after: int
    max_surge: int
    max_unavailable: int
    judged: int = 0


@dataclass(frozen=True)
class Changes:
    """All that the manifest would change. `limits`: what becomes of those in force, in sentences."""

    created: bool
    fields: tuple[Change, ...]
    pods: Pods
    limits: tuple[str, ...]

    @property
    def any(self) -> bool:
        """Whether anything would change."""
        return self.created or bool(self.fields)


def changes(
    before: tuple[Object, InferenceService] | None, after: tuple[Object, InferenceService], deployment: Object | None
) -> Changes:
    """Between two objects, as the API server has them and as they parse; `before`: None if it would be created."""
    old, new = (before[0] if before is not None else {}), after[0]
    fields = [*_fields(_written(old), _written(new), "metadata"), *_fields(old.get("spec"), new.get("spec"), "spec")]
    return Changes(
        created=before is None,
        fields=tuple(fields),
        pods=_pods(before[1] if before is not None else None, after[1], deployment),
        limits=tuple(_limits(before[1], after[1])) if before is not None else (),
    )


def merge_patch(last: Any, wanted: Mapping[str, Any]) -> Object:
    """What `kubectl apply` sends of a custom resource: all that is wanted, and null for what was applied last only."""
    patch: Object = {key: None for key in last if key not in wanted} if isinstance(last, Mapping) else {}
    for key, value in wanted.items():
        below = last.get(key) if isinstance(last, Mapping) else None
        patch[key] = merge_patch(below, value) if isinstance(value, Mapping) else value
    return patch


def _written(found: Object) -> Object:
    """Of metadata, what people write; without what kubectl notes for itself."""
    metadata = found.get("metadata") or {}
    kept = {field: dict(metadata.get(field) or {}) for field in _METADATA}
    kept["annotations"].pop(LAST_APPLIED, None)
    return kept


def _fields(before: Any, after: Any, path: str) -> Iterator[Change]:
    """Fields that differ. Items of a list that have names are told apart by them."""
    left, right = _by_name(before), _by_name(after)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        listed = isinstance(before, list) or isinstance(after, list)
        for key in dict.fromkeys([*left, *right]):
            below = f"{path}[{key}]" if listed or not key.isidentifier() else f"{path}.{key}"
            yield from _fields(left.get(key), right.get(key), below)
    elif before != after:
        yield Change(path, before, after)


def _by_name(value: Any) -> Any:
    """A list of named items as a mapping; what is absent is like an empty one beside a mapping, so that fields show."""
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
        found = {str(item["name"]): item for item in value}
        return found if len(found) == len(value) else value
    return value


def _pods(before: InferenceService | None, after: InferenceService, deployment: Object | None) -> Pods:
    if after.spec.workload is not None:
        # Others make them, and nothing in the spec replaces or scales them.
        return Pods(
            replaced=False, why="", fields=(), replicas_before=0, replicas_after=0, max_surge=0, max_unavailable=0
        )
    noted = history.read(deployment)
    replicas = wanted_replicas(after, deployment)
    surge, unavailable = rollout_steps(after, replicas, no_device=bool(noted.in_place))
    replaced, why = False, ""
    fields: tuple[str, ...] = ()
    if before is not None:
        same = revision.spec_hash(before, noted.adopted) == revision.spec_hash(after, noted.adopted)
        image = "" if deployment is None else plugin_image(deployment["spec"]["template"])
        config = Config(plugin_image=image, publishes_keys=True)
        fields = tuple(_template_fields(pod.render(before, config, ""), pod.render(after, config, "")))
        if not same:
            replaced = True
            why = (
                f"the annotation {names.ANNOTATION_ADOPT} changes"
                if _adopts(before, after)
                else "their template changes"
            )
        elif noted.failed is not None and before.spec.rollout != after.spec.rollout:
            replaced, why = True, "the template that failed is tried again, in other steps"
    judged = replaced and after.spec.rollout.canary is not None
    canary = canary_steps(after, replicas, surge) if judged else (0, 0)
    return Pods(
        replaced=replaced,
        why=why,
        fields=fields if replaced else (),
        replicas_before=0 if before is None else wanted_replicas(before, deployment),
        replicas_after=replicas,
        max_surge=max(surge, canary[0]),
        max_unavailable=max(unavailable, canary[1]),
        judged=max(canary),
    )


def _adopts(before: InferenceService, after: InferenceService) -> bool:
    """Whether the user asks for this operator's template."""
    one, other = (service.metadata.annotations.get(names.ANNOTATION_ADOPT) for service in (before, after))
    return one != other


def _template_fields(before: Object, after: Object) -> Iterator[str]:
    for found in (before, after):
        found["metadata"]["annotations"].pop(names.ANNOTATION_TEMPLATE_HASH, None)
    there, back = differences(before, after), differences(after, before)
    yield from dict.fromkeys(spelt(path) for way in (there, back) for path in way)


def _limits(before: InferenceService, after: InferenceService) -> Iterator[str]:
    """What becomes of the limits in force. Changing any of this restarts no pod, but the ceilings do."""
    setpoint = after.status.tuning.setpoint
    for field, was in (
        ("maxNumActiveSeqs", setpoint.max_num_active_seqs),
        ("maxNumScheduledTokens", setpoint.max_num_scheduled_tokens),
    ):
        least, most = _bounds(after, field)
        if (least, most) == _bounds(before, field):
            continue
        yield f"{field}: {_shown(least)} to {most} instead of {' to '.join(map(_shown, _bounds(before, field)))}"
        if was is not None and not (least or 0) <= was <= most:
            by_ceiling = was > most and _range(after, field).max is None
            when = "once no pod with more is left" if by_ceiling else "at the operator's next look"
            yield f"{field} is {was} now, and is brought within these bounds {when}"
    if before.spec.objectives != after.spec.objectives:
        yield "objectives change: limits are chosen anew from the model that is learnt, without a restart"
    if before.spec.tuning.mode is not after.spec.tuning.mode:
        yield f"mode {after.spec.tuning.mode.value} instead of {before.spec.tuning.mode.value}"


def _bounds(service: InferenceService, field: str) -> tuple[int | None, int]:
    ceilings, found = service.spec.batching, _range(service, field)
    most = ceilings.max_num_seqs if field == "maxNumActiveSeqs" else ceilings.max_num_batched_tokens
    # What engines of others were started with, no manifest says.
    return found.min, found.max or (most if service.spec.workload is None else LARGEST_BOUND)


def _range(service: InferenceService, field: str) -> Range:
    bounds = service.spec.tuning.bounds
    return bounds.max_num_active_seqs if field == "maxNumActiveSeqs" else bounds.max_num_scheduled_tokens


def _shown(value: int | None) -> str:
    return "the least" if value is None else str(value)


def as_json(namespace: str, name: str, found: Changes) -> dict[str, Any]:
    """The document of `-o json`."""
    return {
        "namespace": namespace,
        "name": name,
        "changed": found.any,
        "created": found.created,
        "fields": [asdict(one) for one in found.fields],
        "pods": asdict(found.pods),
        "limits": list(found.limits),
    }


def as_lines(namespace: str, name: str, found: Changes) -> Iterator[str]:
    """The same for people: a paragraph or an item a line."""
    where = f"{namespace}/{name}"
    if not found.any:
        yield f"{where}: nothing changes"
        return
    if found.created:
        yield f"{where}: would be created, with {_count(found.pods.replicas_after, 'pod')}"
        return
    yield f"{where}: {_count(len(found.fields), 'field')} changed"
    for one in found.fields:
        yield f"  {one.field}: {_value(one.before)} -> {_value(one.after)}"
    yield from _pod_lines(found.pods)
    yield from ("limits: " + text for text in found.limits)


def _pod_lines(pods: Pods) -> Iterator[str]:
    if pods.replaced:
        yield (
            f"pods: all are replaced, because {pods.why};"
            f" meanwhile at most {pods.max_surge} more and {pods.max_unavailable} missing"
        )
        if pods.judged:
            yield f"pods: first {_count(pods.judged, 'pod')}, judged by the objectives as spec.rollout.canary says"
        yield from (f"  {field}" for field in pods.fields)
    else:
        yield "pods: none is replaced"
    if pods.replicas_before != pods.replicas_after:
        yield f"pods: {pods.replicas_after} instead of {pods.replicas_before}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


def _value(value: Any) -> str:
    return _ABSENT if value is None else str(value)
