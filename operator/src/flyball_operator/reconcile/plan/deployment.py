"""The Deployment: how many pods, of which template, and how one template follows another.

Surge first (one more pod, none missing) wherever a spare pod can be had: on CPU, and with one replica, because nothing
would serve meanwhile. In place (none more, one missing) on accelerators with two or more replicas, where a spare device
is seldom there and a surge would wait for it for ever. So too with one replica, once it is seen that no device is free
(`in_place`). Pure.
"""

from __future__ import annotations

from typing import Final

from flyball_operator.api.objects import Kind, Object
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan.history import to_annotations
from flyball_operator.reconcile.plan.in_place import is_left_to_us
from flyball_operator.reconcile.plan.owned_objects import owned, selector
from flyball_operator.reconcile.plan.pod import startup_seconds, waiting_seconds
from flyball_operator.reconcile.plan.rollout import RolloutDecision

#: Seconds beyond the start-up time before a rollout counts as failed: scheduling, and an image that is mostly there.
PROGRESS_MARGIN: Final = 30
#: Starts of one engine that a rollout waits for. The kubelet starts one that died anew after 10 s, then 20 s, and each
#: start has its own wait for a setpoint. One that dies a third time will not come up by being started again.
ENGINE_STARTS: Final = 3


def render(service: InferenceService, rollout: RolloutDecision, live: Object | None) -> Object:
    """The Deployment with this pod template.

    The size of `live`, the one there is, is kept where the spec names none.
    """
    replicas = wanted_replicas(service, live)
    surge, unavailable = rollout_steps(service, replicas, no_device=bool(rollout.history.in_place))
    spec = {
        "replicas": replicas,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": progress_seconds(service),
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
        "selector": {"matchLabels": selector(service.metadata)},
        "template": rollout.target.template,
    }
    body = owned(Kind.DEPLOYMENT, service.metadata, spec=spec)
    body["metadata"]["annotations"] = to_annotations(rollout.history)
    return body


def progress_seconds(service: InferenceService) -> int:
    """Seconds without progress after which a rollout counts as failed: no pod that comes up may take longer."""
    return startup_seconds(service) + ENGINE_STARTS * waiting_seconds(service) + PROGRESS_MARGIN


def wanted_replicas(service: InferenceService, live: Object | None) -> int:
    """`spec.replicas`, else what runs, else 1: without the field, whoever scales is not overruled.

    With `spec.scaling` the number in status, which the tuner decides, else what runs, within its bounds.
    """
    if service.spec.replicas is not None:
        return service.spec.replicas
    running = int(live["spec"].get("replicas", 1)) if live is not None else 1
    scaling, decided = service.spec.scaling, service.status.present_scaling
    if scaling is None:
        return running
    return max(scaling.min_replicas, min(scaling.max_replicas, running if decided is None else decided.replicas))


def rollout_steps(service: InferenceService, replicas: int, *, no_device: bool = False) -> tuple[int, int]:
    """`maxSurge` and `maxUnavailable`, as asked for, else as above; never both zero, or no pod could be replaced.

    `no_device`: it was seen that none is free for one pod more.
    """
    asked = service.spec.rollout
    in_place = (service.spec.has_devices and replicas >= 2) or (no_device and is_left_to_us(service))
    surge = (0 if in_place else 1) if asked.max_surge is None else asked.max_surge
    unavailable = (1 if in_place else 0) if asked.max_unavailable is None else asked.max_unavailable
    if surge or unavailable:
        return surge, unavailable
    return (1, 0) if asked.max_surge is None else (0, 1)
