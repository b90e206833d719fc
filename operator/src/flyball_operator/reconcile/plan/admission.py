"""What admission policies and webhooks of the cluster make of an apply, and which fields Flyball cannot do without.

An object can differ from what was applied to it: a policy changed the apply itself. Applying the same again changes
nothing, or rolls pods because a policy is another by now. So the API server is asked first, by a dry run. A field that
it would change again stays as it is: that is the cluster's will. Only where a policy undoes what Flyball needs the
condition says so. What policies add is never looked at.

An apply of something new is not asked for, since it is due in any case. A field that another field manager wrote is no
policy's, so it is applied, too. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.objects import Object, annotation, content, digest
from flyball_operator.reconcile.plan.fields import Item, Path, differences, managers
from flyball_operator.reconcile.plan.intents import Apply, Intent
from flyball_operator.reconcile.plan.snapshot import DryRun, Snapshot

_OURS: Final = f"{names.GROUP}/*"
_TEMPLATE: Final = ("spec", "template")
#: The same of a LeaderWorkerSet: of all its pods, or of the leaders and of the workers.
_OF_GROUPS: Final = tuple(("spec", "leaderWorkerTemplate", of) for of in ("workerTemplate", "leaderTemplate"))
_ENGINE: Final = (*_TEMPLATE, "spec", "containers", names.CONTAINER_ENGINE)
_PLUGIN: Final = (*_TEMPLATE, "spec", "initContainers", names.CONTAINER_PLUGIN)

#: What no policy may undo, as shell patterns of the way to a field. What is not here, such as an image's registry,
#: tolerations, resources or a security context, is as the cluster wants it.
_NEEDED: Final[tuple[tuple[str, ...], ...]] = (
    # Garbage collection and ownership follow the one, lists of the operator and its own admission policy the others.
    ("metadata", "ownerReferences"),
    ("metadata", "labels", names.LABEL_MANAGED_BY),
    ("metadata", "labels", _OURS),
    # What was applied, and what became of earlier pod templates.
    ("metadata", "annotations", _OURS),
    # Which pods are served, counted, drained and fenced: those of the service, and no others.
    ("spec", "selector"),
    ("spec", "podSelector"),
    (*_TEMPLATE, "metadata", "labels", names.LABEL_MANAGED_BY),
    (*_TEMPLATE, "metadata", "labels", _OURS),
    # Who may connect to engines. Anything else opens the control port.
    ("spec", "ingress"),
    ("spec", "policyTypes"),
    # Where clients, probes, Prometheus and the tuner reach the engine.
    ("spec", "ports"),
    (*_ENGINE, "ports"),
    (*_TEMPLATE, "metadata", "annotations", names.ANNOTATION_SCRAPE),
    # How many pods there are: asked for, or left to an autoscaler, and then never applied.
    ("spec", "replicas"),
    # How many pods a group has, and that it is made anew whole.
    ("spec", "leaderWorkerTemplate", "size"),
    ("spec", "leaderWorkerTemplate", "restartPolicy"),
    # Which revision the pods are of, without which no rollout is ever complete.
    (*_TEMPLATE, "metadata", "annotations", _OURS),
    # When a start has failed: `spec.rollout.startupTimeout`. A shorter one rolls back, or kills an engine that loads.
    ("spec", "progressDeadlineSeconds"),
    # For how long a revision is judged before it has all pods.
    ("spec", "minReadySeconds"),
    (*_ENGINE, "startupProbe"),
    (*_ENGINE, "readinessProbe"),
    (*_ENGINE, "livenessProbe"),
    # The model, its name, and the ceilings below which limits move.
    (*_ENGINE, "command"),
    # The plugin: how it comes into the container, is loaded, and knows whose setpoints to take.
    (*_PLUGIN, "args"),
    (*_PLUGIN, "volumeMounts"),
    (*_ENGINE, "volumeMounts"),
    (*_TEMPLATE, "spec", "volumes"),
    (*_ENGINE, "env", "PYTHONPATH"),
    (*_ENGINE, "env", "FLYBALL_*"),
)


def unanswered(snapshot: Snapshot, intents: Iterable[Intent]) -> tuple[Apply, ...]:
    """Applies that a dry run must come before: the object had the same applied, and differs."""
    return tuple(
        intent
        for intent in intents
        if isinstance(intent, Apply) and not _is_new(snapshot, intent) and _answer(snapshot, intent) is None
    )


def answer(snapshot: Snapshot, apply: Apply, result: Object) -> DryRun:
    """What to remember of a dry run of this apply: the fields that policies change in it."""
    live = snapshot.objects[apply.kind]
    still = frozenset(differences(result, apply.body))
    mutated = frozenset(path for path in apply.fields if path in still and not managers(live, path))
    return DryRun(of=_of(snapshot, apply), at=snapshot.now, mutated=mutated)


def refused(snapshot: Snapshot, apply: Apply) -> DryRun:
    """What to remember of a dry run of this apply that the API server refused: it says of no field that it changes."""
    return DryRun(of=_of(snapshot, apply), at=snapshot.now, mutated=frozenset())


def worthwhile(snapshot: Snapshot, intents: Iterable[Intent]) -> tuple[Intent, ...]:
    """The intents without the fields that policies change, and without applies for the sake of these alone."""
    found: list[Intent] = []
    for intent in intents:
        if isinstance(intent, Apply):
            mutated = _mutated(snapshot, intent)
            if fields := tuple(path for path in intent.fields if path not in mutated):
                found.append(replace(intent, fields=fields))
        else:
            found.append(intent)
    return tuple(found)


def undone(snapshot: Snapshot, intents: Iterable[Intent]) -> tuple[Apply, ...]:
    """Applies of which policies undo what Flyball needs, with these fields."""
    found: list[Apply] = []
    for intent in intents:
        if isinstance(intent, Apply):
            mutated = _mutated(snapshot, intent)
            if fields := tuple(path for path in intent.fields if path in mutated and is_needed(path)):
                found.append(replace(intent, fields=fields))
    return tuple(found)


def is_needed(path: Path) -> bool:
    """Whether the field is one that Flyball needs, has such a field below it, or is below one."""
    steps = tuple(str(step.value) if isinstance(step, Item) else step for step in path)
    for template in _OF_GROUPS:
        if steps[: len(template)] == template:
            steps = (*_TEMPLATE, *steps[len(template) :])
    return any(_meet(steps, pattern) for pattern in _NEEDED)


def _meet(steps: Sequence[str], pattern: Sequence[str]) -> bool:
    return all(fnmatchcase(step, wanted) for step, wanted in zip(steps, pattern, strict=False))


def _is_new(snapshot: Snapshot, apply: Apply) -> bool:
    """Whether something else was applied to the object last."""
    last, now = (annotation(found, names.ANNOTATION_INTENT) for found in (snapshot.objects[apply.kind], apply.body))
    return last not in ("", now)


def _mutated(snapshot: Snapshot, apply: Apply) -> frozenset[Path]:
    known = _answer(snapshot, apply)
    return known.mutated if known is not None else frozenset()


def _answer(snapshot: Snapshot, apply: Apply) -> DryRun | None:
    """What a dry run of the same on the same said, if it is recent: nobody tells when a policy changes."""
    known = snapshot.dry_runs.get(apply.kind)
    if known is None or known.of != _of(snapshot, apply):
        return None
    # Half of it, so that each resync asks anew. Before the dry run is no time: the clock was set back.
    fresh = 0 <= (snapshot.now - known.at).total_seconds() < snapshot.config.resync_seconds / 2
    return known if fresh else None


def _of(snapshot: Snapshot, apply: Apply) -> str:
    """Names what is applied and what to, whatever its status and version are."""
    return digest([_content(apply.body), _content(snapshot.objects[apply.kind])])


def _content(found: Object) -> Object:
    metadata = {field: found["metadata"].get(field) for field in ("labels", "annotations", "ownerReferences")}
    return {"metadata": metadata, **content(found)}
