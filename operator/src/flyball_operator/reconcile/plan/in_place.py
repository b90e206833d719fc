"""Whether an earlier pod ends before the next one starts, because no device is free for both.

Surge first would wait for ever there: the next pod waits for the device that an earlier one holds. So where the spec
leaves the way to Flyball, the earlier one goes first, for the rest of this rollout. Nodes are not read: the scheduler
says that no device is free, or a quota does. It must be sure that the next pod fits where the earlier one was, or
nothing would serve for long. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from flyball_engine.figures import format_duration
from flyball_operator.api.objects import Object, being_deleted
from flyball_operator.api.quantities import quantity
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan import event_causes, pods
from flyball_operator.reconcile.plan.causes import stay_in_turn
from flyball_operator.reconcile.plan.revision import Revision
from flyball_operator.reconcile.plan.snapshot import Snapshot

#: Seconds that a pod may wait for a device before an earlier one goes. Autoscalers need some 30 s to say that they add
#: a node, and the earlier pod serves meanwhile.
PATIENCE_SECONDS: Final = 60.0
#: The same where room comes: the Cluster Autoscaler and Karpenter give a node up after as long.
PROVISION_SECONDS: Final = 900.0

#: What follows "if no node has more, ".
ADVICE: Final = (
    f"an earlier pod ends first: after {format_duration(PATIENCE_SECONDS)}, or after"
    f" {format_duration(PROVISION_SECONDS)} where an autoscaler adds a node."
)

#: The Cluster Autoscaler's event of a pod that it adds a node for, and Karpenter's.
_NODE_COMES: Final = frozenset({"TriggeredScaleUp", "Nominated"})
#: A resource that a quota has too little of; its refusal names no others.
_EXCEEDED: Final = re.compile(r"requests\.([\w./-]+)=")
#: Of the scheduler's message, where some node takes no new pods: it may be the one where the earlier pod runs.
_CORDONED: Final = "node(s) were unschedulable"
#: What decides on which nodes a pod may run, besides resources.
_PLACEMENT: Final = ("nodeSelector", "affinity", "tolerations", "runtimeClassName")


def is_left_to_us(service: InferenceService) -> bool:
    """Whether the spec says nothing of how many pods may be missing: no step of a rollout, no budget of none."""
    asked, budget = service.spec.rollout, service.spec.pod_disruption_budget
    budget_of_none = budget.enabled and budget.max_unavailable in (0, "0%")
    return asked.max_surge is None and asked.max_unavailable is None and not budget_of_none


def seconds_left(
    service: InferenceService, snapshot: Snapshot, target: Revision, kept: Mapping[str, Revision]
) -> float | None:
    """Seconds until earlier pods go first, so that pods of `target` start; None where they do not.

    `kept`: the templates of earlier pods, by spec hash.
    """
    accelerator = service.spec.accelerator
    surges = stay_in_turn(snapshot.pods_owner)
    if accelerator is None or not surges or not is_left_to_us(service):
        return None
    earlier = [
        pod
        for pod in snapshot.pods
        if pods.template_of(pod) != target.spec_hash and _holds(pod, accelerator.resource_name)
    ]
    left = [
        seconds - (snapshot.now - begun).total_seconds()
        for begun, seconds, lacking in _waits(snapshot, target.spec_hash)
        if accelerator.resource_name in lacking and any(_makes_room(pod, target, kept, lacking) for pod in earlier)
    ]
    # No more than all of it where the clock was set back.
    return min(PROVISION_SECONDS, max(0.0, min(left))) if left else None


def _waits(snapshot: Snapshot, spec_hash: str) -> Iterator[tuple[datetime, float, frozenset[str]]]:
    """Since when pods of this template wait, how long they may, and for which resources."""
    for pod in snapshot.pods:
        begun = pods.since(pod, "PodScheduled")
        mine = pods.template_of(pod) == spec_hash and not being_deleted(pod)
        message = str(pods.condition(pod, "PodScheduled").get("message"))
        if mine and begun is not None and pods.is_unschedulable(pod) and _CORDONED not in message:
            lacking = pods.insufficient(message)
            yield begun, PROVISION_SECONDS if _room_comes(pod, snapshot) else PATIENCE_SECONDS, lacking
    deployment = snapshot.pods_owner or {}
    refused, begun = pods.condition(deployment, "ReplicaFailure"), pods.since(deployment, "ReplicaFailure")
    message = str(refused.get("message"))
    if refused.get("status") == "True" and begun is not None and "exceeded quota" in message:
        yield begun, PATIENCE_SECONDS, frozenset(_EXCEEDED.findall(message))


def _room_comes(pod: Object, snapshot: Snapshot) -> bool:
    """Whether an autoscaler adds a node for the pod, or the scheduler makes room by ending pods of less priority."""
    told = event_causes.of(pod, snapshot.events)
    return bool(pod["status"].get("nominatedNodeName")) or any(event.get("reason") in _NODE_COMES for event in told)


def _holds(pod: Object, device: str) -> bool:
    """Whether the pod has devices, and does not leave by itself."""
    stays = not being_deleted(pod) and not pods.has_ended(pod)
    return stays and bool(pods.node(pod)) and device in pods.requested(pod)


def _makes_room(pod: Object, target: Revision, kept: Mapping[str, Revision], lacking: frozenset[str]) -> bool:
    """Whether a pod of `target` fits where this one is: it may run there, and asks for no more of what lacks."""
    revision = kept.get(pods.template_of(pod))
    if revision is None:
        return False
    earlier, following = revision.template["spec"], target.template["spec"]
    if any(earlier.get(field) != following.get(field) for field in _PLACEMENT):
        return False
    return all(_amount(following, resource) <= _amount(earlier, resource) for resource in lacking)


def _amount(pod_spec: Mapping[str, Any], resource: str) -> Decimal:
    """How much of a resource pods of this template ask for; init containers run one after another, before the rest."""
    together = sum((_asked(one, resource) for one in pod_spec["containers"]), Decimal(0))
    return max([together, *(_asked(one, resource) for one in pod_spec.get("initContainers") or ())])


def _asked(container: Mapping[str, Any], resource: str) -> Decimal:
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    return quantity(requests.get(resource, limits.get(resource, 0))) or Decimal(0)
