"""The Deployment: how many pods, of which template, and how one template follows another.

Surge first (one more pod, none missing) wherever a spare pod can be had: on CPU, and with one replica, because nothing
would serve meanwhile. In place (none more, one missing) on accelerators with two or more replicas, where a spare device
is seldom there and a surge would wait for it for ever. So too with one replica, once it is seen that no device is free
(`in_place`). While a template is judged (`revision_analysis`), so many pods as are judged are replaced, and the
Deployment's controller waits with the others for as long as that takes. Pure.
"""

from __future__ import annotations

from typing import Final

from flyball_operator.api.objects import Kind, Object
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan.history import to_annotations
from flyball_operator.reconcile.plan.in_place import is_left_to_us
from flyball_operator.reconcile.plan.owned_objects import owned, selector
from flyball_operator.reconcile.plan.pod import progress_seconds
from flyball_operator.reconcile.plan.rollout import RolloutDecision

#: Seconds after a revision was judged, before the Deployment's controller goes on without a verdict. By then the tuner
#: has looked a last time (every 15 s, or at the next tick of at most 60 s), written what came of it, and the reconciler
#: has acted on it.
VERDICT_MARGIN: Final = 120


def render(service: InferenceService, rollout: RolloutDecision, live: Object | None) -> Object:
    """The Deployment with this pod template.

    The size of `live`, the one there is, is kept where the spec names none.
    """
    replicas = wanted_replicas(service, live)
    surge, unavailable = rollout_steps(service, replicas, no_device=bool(rollout.history.in_place))
    held = 0
    if rollout.judged is not None and rollout.target.spec_hash == rollout.judged.revision:
        surge, unavailable = canary_steps(service, replicas, surge)
        held = judged_seconds(service)
    spec = {
        "replicas": replicas,
        "revisionHistoryLimit": 3,
        **({"minReadySeconds": held} if held else {}),
        # The API server refuses one that is not above minReadySeconds.
        "progressDeadlineSeconds": progress_seconds(service) + held,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
        "selector": {"matchLabels": selector(service.metadata)},
        "template": rollout.target.template,
    }
    body = owned(Kind.DEPLOYMENT, service.metadata, spec=spec)
    body["metadata"]["annotations"] = to_annotations(rollout.history)
    return body


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

    Groups of pods are replaced in place: a spare one is seldom to be had, and for one replica none is ever added.
    `no_device`: it was seen that none is free for one pod more.
    """
    asked = service.spec.rollout
    if service.spec.parallelism.nodes > 1:
        return 0, asked.max_unavailable or 1
    in_place = (service.spec.has_devices and replicas >= 2) or (no_device and is_left_to_us(service))
    surge = (0 if in_place else 1) if asked.max_surge is None else asked.max_surge
    unavailable = (1 if in_place else 0) if asked.max_unavailable is None else asked.max_unavailable
    if surge or unavailable:
        return surge, unavailable
    return (1, 0) if asked.max_surge is None else (0, 1)


def canary_steps(service: InferenceService, replicas: int, surge: int) -> tuple[int, int]:
    """`maxSurge` and `maxUnavailable` while a revision is judged: one of them is the number of pods that run it.

    It is the surge where pods are added otherwise, too. That is the weight, rounded down, but at least one pod, and no
    more than the spec allows of either.
    """
    asked = service.spec.rollout
    pods = max(1, replicas * asked.canary.weight // 100) if asked.canary is not None else 1
    if surge:
        return min(pods, asked.max_surge or pods), 0
    return 0, min(pods, asked.max_unavailable or pods)


def judged_seconds(service: InferenceService) -> int:
    """For how long the Deployment's controller holds pods that are Ready for new, so that no others are replaced.

    It counts from when each pod is Ready, the tuner from when all that are judged are. Between the first and the last
    is at most the start-up time, so that is added. A verdict ends it at once.
    """
    canary = service.spec.rollout.canary
    return canary.duration_seconds + progress_seconds(service) + VERDICT_MARGIN if canary is not None else 0


def judged_pods(live: Object) -> int:
    """Pods that run a revision while it is judged, by the steps that the Deployment has."""
    steps = live["spec"]["strategy"]["rollingUpdate"]
    return max(1, *(step for step in (steps.get("maxSurge"), steps.get("maxUnavailable")) if isinstance(step, int)))
