"""Whether a look at a service would see the same again until somebody writes something of it. Pure.

What a plan is made from beside objects that are watched is the time, events of pods that wait, objects that are not the
service's own, and what policies make of an apply. A steady service depends on none of these.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from flyball_operator.api.desire import Desire
from flyball_operator.api.objects import NAMED_KINDS, UNWATCHED_KINDS, Object, digest, uid, version_of
from flyball_operator.api.v1alpha1 import RECONCILER_CONDITIONS, TUNER_FIELDS, ConditionType
from flyball_operator.reconcile.plan import routing
from flyball_operator.reconcile.plan.adoption import NEVER, Standing
from flyball_operator.reconcile.plan.intents import Plan
from flyball_operator.reconcile.plan.pods import has
from flyball_operator.reconcile.plan.snapshot import Snapshot

#: Resyncs come a tenth earlier or later. Each is to find the last look too old.
_BEFORE_A_RESYNC: Final = 0.8


def is_steady(snapshot: Snapshot, plan: Plan, left: Desire) -> bool:
    """Whether only a change of the service or of what it has calls for another look.

    `left`: the service as this look left it.
    """
    ready = next((found for found in left.status.conditions if found.type == ConditionType.READY), None)
    return (
        not plan.intents
        and plan.requeue_after is None
        and left.meta.deletion_timestamp is None
        and ready is not None
        and ready.status == "True"
        # Whoever waits to adopt another template is looked at when its turn comes, and has none before it is due.
        and (snapshot.turn == NEVER or plan.standing is Standing.CURRENT or plan.due is not None)
        and all(snapshot.own(kind) is not None for kind in snapshot.objects if kind in NAMED_KINDS)
        and all(has(pod, "Ready") for pod in snapshot.pods)
        # Nobody tells when a policy changes.
        and not any(known.mutated for known in snapshot.dry_runs.values())
    )


def considered(desire: Desire) -> str:
    """A digest of what plans are made from: the spec's number, metadata, and the status but for the tuner's part.

    Of that, the number of replicas, what it says of a canary, and whether pods lack adapters count: their ConfigMap is
    not watched, and may have been deleted.
    """
    meta, status = desire.meta, desire.status
    scaling = status.present_scaling
    part = status.model_dump(mode="json", by_alias=True, exclude={"conditions"})
    conditions = [found.model_dump(mode="json") for found in status.conditions if found.type in RECONCILER_CONDITIONS]
    return digest(
        [
            meta.model_dump(mode="json", exclude={"resource_version"}),
            {field: value for field, value in part.items() if field not in TUNER_FIELDS},
            conditions,
            None if scaling is None else scaling.replicas,
            None if status.analysis is None else status.analysis.model_dump(mode="json"),
            any(one.type == ConditionType.ADAPTERS_LOADED and one.status == "False" for one in status.conditions),
        ]
    )


def good_until(snapshot: Snapshot, plan: Plan) -> datetime | None:
    """When to look again in any case: nobody tells when a kind changes that is not watched, or a template is old.

    None: never.
    """
    service = snapshot.desire.service
    of_unwatched = service is not None and (service.spec.adapters is not None or service.spec.parallelism.nodes > 1)
    if not routing.concerns(snapshot.desire) and not of_unwatched:
        return plan.due
    resync = snapshot.now + timedelta(seconds=snapshot.config.resync_seconds * _BEFORE_A_RESYNC)
    return resync if plan.due is None else min(resync, plan.due)


def versions(snapshot: Snapshot) -> dict[str, int]:
    """Versions of the watched objects in a snapshot, by UID; of the service, which is compared by its content, none."""
    found: list[Object] = [
        *(found for kind, found in snapshot.objects.items() if kind not in UNWATCHED_KINDS),
        *snapshot.revisions,
        *snapshot.pods,
        *snapshot.slices,
        *snapshot.jobs,
        *snapshot.job_pods,
    ]
    return {snapshot.desire.meta.uid: 0} | {uid(one): version_of(one) for one in found}
