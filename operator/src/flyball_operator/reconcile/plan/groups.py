"""A LeaderWorkerSet in the shape of a Deployment: rollouts, roll-backs and the status are decided alike for both.

Its groups stand for a Deployment's pods. They are counted by their pods, as read: the status of a LeaderWorkerSet does
not say which generation it is about. Why pods are refused is not in it either. The StatefulSets that make the pods tell
in events. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from flyball_operator.api import names
from flyball_operator.api.objects import Object, annotation, being_deleted, controlled_by, name, uid
from flyball_operator.reconcile.plan import event_causes
from flyball_operator.reconcile.plan.pods import has, template_of


def stateful_sets_to_ask_about(
    found: Object | None, pods: Sequence[Object], stateful_sets: Sequence[Object], now: datetime
) -> list[Object]:
    """StatefulSets of this LeaderWorkerSet whose events are to be read, as they may say why pods of it are not there.

    `pods`: all that are its. None has no StatefulSets.
    """
    if found is None:
        return []
    makers = (found, *pods)
    own = [one for one in stateful_sets if any(controlled_by(one, uid(maker)) for maker in makers)]
    return event_causes.stateful_sets_to_ask_about(own, _missing(found, pods), now)


def as_deployment(found: Object, pods: Sequence[Object], events: Sequence[Object] = ()) -> Object:
    """The LeaderWorkerSet with these pods, as a Deployment."""
    made, size = found["spec"]["leaderWorkerTemplate"], _size(found)
    # What workers have of their own is made of the leader's.
    template = made.get("leaderTemplate") or made["workerTemplate"]
    wanted = template_of(template)
    groups = _groups(pods)
    ready = [group for group in groups if _is_ready(group, size)]
    counts = {
        "replicas": len(groups),
        "updatedReplicas": sum(all(template_of(pod) == wanted for pod in group) for group in groups),
        "readyReplicas": len(ready),
        "availableReplicas": len(ready),
    }
    # What a Deployment's controller says, and nobody else here: a group that is made anew later undoes no rollout.
    replaced = annotation(found, names.ANNOTATION_GOOD) == wanted
    reason = "NewReplicaSetAvailable" if replaced else "ReplicaSetUpdated"
    progressing = {"type": "Progressing", "status": "True", "reason": reason}
    refused = event_causes.of_stateful_sets(_missing(found, pods), events)
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": refused}
    # Its webhook fills these in, and may have been away.
    steps = (found["spec"].get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
    return {
        **{field: found[field] for field in ("apiVersion", "kind", "metadata")},
        "spec": {
            "replicas": found["spec"].get("replicas", 1),
            "template": template,
            "strategy": {"rollingUpdate": {field: steps.get(field) for field in ("maxSurge", "maxUnavailable")}},
        },
        "status": {
            **counts,
            "observedGeneration": found["metadata"].get("generation", 1),
            "conditions": [progressing, failure] if refused else [progressing],
        },
    }


def _size(found: Object) -> int:
    return int(found["spec"]["leaderWorkerTemplate"].get("size", 1))


def _missing(found: Object, pods: Sequence[Object]) -> list[str]:
    """Names of pods that StatefulSets have yet to make: leaders, and workers of each group that has its leader.

    One on its way out is not missing: its StatefulSet cannot make another before it is gone.
    """
    there = {name(pod) for pod in pods}
    leaders = [f"{name(found)}-{index}" for index in range(found["spec"].get("replicas", 1))]
    workers = [f"{leader}-{worker}" for leader in leaders if leader in there for worker in range(1, _size(found))]
    return [one for one in (*leaders, *workers) if one not in there]


def _groups(pods: Sequence[Object]) -> list[list[Object]]:
    """Pods by their groups; those that leave are of none, and neither is a group without one that stays."""
    found: defaultdict[str, list[Object]] = defaultdict(list)
    for pod in pods:
        if not being_deleted(pod):
            found[str((pod["metadata"].get("labels") or {}).get(names.LABEL_GROUP_INDEX, ""))].append(pod)
    return list(found.values())


def _is_ready(group: Sequence[Object], size: int) -> bool:
    """Whether all pods of the group are there and Ready."""
    return len(group) == size and all(has(pod, "Ready") for pod in group)
