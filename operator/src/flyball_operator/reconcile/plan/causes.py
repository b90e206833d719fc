"""Why pods do not serve: of all that pods, their events and the Deployment say, the surest cause.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.objects import Kind, Object, annotation, being_deleted, moment, name
from flyball_operator.reconcile.plan import container_causes, event_causes
from flyball_operator.reconcile.plan.cause import Cause, CauseReason, cause
from flyball_operator.reconcile.plan.pods import (
    condition,
    has,
    insufficient,
    is_taken_up,
    node,
    others_placed,
    requested,
    serves,
    template_of,
)

#: Of a pull that failed, where the registry knows no such image. One that refuses the account says "may require" too.
_GONE: Final = re.compile(
    r"(?i)^(?!.*(denied|authori|forbidden)).*(not found|manifest unknown|does not exist)", re.DOTALL
)
#: What the scheduler waits for because nobody has made it.
_NOT_MADE: Final = re.compile(r'(?:persistentvolumeclaim|resourceclaim) "[^"]*" not found')
#: What concerns an image: a container's own, or one that it mounts.
_OF_IMAGES: Final = frozenset(
    {CauseReason.IMAGE_PULL_FAILED, CauseReason.INVALID_IMAGE_NAME, CauseReason.REGISTRY_UNAVAILABLE}
)
#: What containerd 1 says, which mounts no image and takes it for a folder.
_TAKEN_FOR_A_FOLDER: Final = 'failed to mkdir ""'
#: What runtimes say that mount images, of one that they could not mount.
_NOT_MOUNTED: Final = "ImageVolumeMountFailed"
#: Where an image is looked at that is no container's own.
_SEE_MODEL: Final = "it is the model: see spec.model.uri"
#: What is said of a pod that was evicted because it broke a limit of its own.
_OWN_LIMIT: Final = "exceeds the"

#: What Kubernetes says of an object outside the namespace that a pod names and that is not there; and our field.
_MISSING: Final = {
    "no PriorityClass with name": "spec.podTemplate.priorityClassName",
    "pod rejected: RuntimeClass": "spec.podTemplate.runtimeClassName",
    "error looking up service account": "spec.podTemplate.serviceAccountName",
}
#: Refusals that end without a change of the template. A webhook's own refusal reads "denied the request".
_REFUSED_FOR_NOW: Final = {
    "exceeded quota": CauseReason.QUOTA_EXCEEDED,
    "failed calling webhook": CauseReason.WEBHOOK_UNAVAILABLE,
}
#: What to do where earlier pods of the service hold what the next one waits for.
IN_PLACE: Final = (
    "set spec.rollout: {maxSurge: 0, maxUnavailable: 1}: an earlier pod then ends before a new one starts."
)


def find(
    pods: Sequence[Object],
    deployment: Object | None,
    spec_hash: str | None,
    events: Sequence[Object] = (),
    *,
    now: datetime | None = None,
    advice: str = IN_PLACE,
) -> Cause | None:
    """Why the pods of this template, of any where it is None, are not all ready, if anything says so.

    `now`: None where it is not known for how long pods have waited. `advice`: what comes next where earlier pods hold
    the devices, or a quota's room.
    """
    counted = _counted(pods)
    found = [*_of_deployment(deployment, counted, advice)]
    for pod in counted:
        if spec_hash in (None, template_of(pod)):
            found += _of_pod(pod, counted, deployment, events, advice)
            found += _of_node(pod, now)
    return min(found, key=lambda one: one.rank, default=None)


def ready_templates(pods: Sequence[Object]) -> frozenset[str]:
    """Spec hashes of the pods that serve, and stay."""
    return frozenset(template_of(pod) for pod in pods if serves(pod) and has(pod, "Ready") and not being_deleted(pod))


def runs(pods: Sequence[Object], spec_hash: str) -> bool:
    """Whether a pod of this template is Ready, or would be if its node said so: the template is then not at fault.

    One that serves: workers have nothing to probe, and are Ready at once.
    """
    mine = (pod for pod in _counted(pods) if template_of(pod) == spec_hash and serves(pod) and not _put_out(pod))
    return any(has(pod, "Ready") or has(pod, "ContainersReady") for pod in mine)


def lacks_plugin(pods: Sequence[Object], spec_hash: str, events: Sequence[Object]) -> bool:
    """Whether a pod of this template waits for the plugin's image, which is not there. Its registry is, and says so."""
    return any(
        found.reason == CauseReason.IMAGE_PULL_FAILED and _GONE.search(found.message)
        for pod in _counted(pods)
        if template_of(pod) == spec_hash
        for container in (pod.get("status") or {}).get("initContainerStatuses") or ()
        if container.get("name") == names.CONTAINER_PLUGIN and not container.get("ready")
        for found in container_causes.of_container(
            container, "", may_end=True, pull_error=event_causes.pull_error(pod, events)
        )
    )


def started(pods: Sequence[Object], spec_hash: str) -> str:
    """When the first of this template's pods had a node, or was made if none has; empty where there is no pod."""
    mine = [pod for pod in _counted(pods) if template_of(pod) == spec_hash]
    placed = [found["lastTransitionTime"] for pod in mine if (found := _placed(pod))]
    made = [pod["metadata"]["creationTimestamp"] for pod in mine if pod["metadata"].get("creationTimestamp")]
    return str(min(placed or made, default=""))


def _counted(pods: Sequence[Object]) -> list[Object]:
    """Pods that stay. One that its node put out does not count where another has taken its place."""
    staying = [pod for pod in sorted(pods, key=name) if not being_deleted(pod)]
    alive = {template_of(pod) for pod in staying if not _put_out(pod)}
    return [pod for pod in staying if not (_put_out(pod) and template_of(pod) in alive)]


def _failed(pod: Object) -> bool:
    """Whether all of it ended for good. Containers are restarted, so only its node does that, or its own limits."""
    return bool((pod.get("status") or {}).get("phase") == "Failed")


def _put_out(pod: Object) -> bool:
    return _failed(pod) and _OWN_LIMIT not in str(pod["status"].get("message"))


def _placed(pod: Object) -> Object:
    """The condition that says since when the pod has a node; empty without one."""
    found = condition(pod, "PodScheduled")
    return found if found.get("status") == "True" and found.get("lastTransitionTime") else {}


def _of_deployment(deployment: Object | None, pods: Sequence[Object], advice: str) -> Iterator[Cause]:
    failure = condition(deployment or {}, "ReplicaFailure")
    if failure.get("status") != "True":
        return
    message = str(failure.get("message", ""))
    reason = next((one for words, one in _REFUSED_FOR_NOW.items() if words in message), CauseReason.PODS_REFUSED)
    if reason is CauseReason.QUOTA_EXCEEDED and stay_in_turn(deployment) and _has_earlier(deployment, pods):
        message += f"; if the quota stays, {advice}"
    yield cause(reason, str((deployment or {}).get("kind", Kind.DEPLOYMENT)), message + _advice(message))


def _advice(refusal: str) -> str:
    """Which field names the object that is missing, where the refusal is of such a kind."""
    return next((f"; create it, or change {field}" for words, field in _MISSING.items() if words in refusal), "")


def stay_in_turn(deployment: Object | None) -> bool:
    """Whether no pod ends before one of the next template is Ready."""
    strategy = ((deployment or {}).get("spec") or {}).get("strategy") or {}
    return bool((strategy.get("rollingUpdate") or {}).get("maxUnavailable") == 0)


def _has_earlier(deployment: Object | None, pods: Sequence[Object]) -> bool:
    """Whether there are pods of another template than the Deployment has."""
    template: Object = ((deployment or {}).get("spec") or {}).get("template") or {"metadata": {}}
    return any(template_of(pod) != annotation(template, names.ANNOTATION_SPEC_HASH) for pod in pods)


def _in_its_way(pod: Object, pods: Sequence[Object], deployment: Object | None) -> list[Object]:
    """Pods of other templates that have a node, where none of them ends before this one is Ready."""
    if not stay_in_turn(deployment):
        return []
    return others_placed(pod, pods)


def _of_pod(
    pod: Object, pods: Sequence[Object], deployment: Object | None, events: Sequence[Object], advice: str
) -> Iterator[Cause]:
    if has(pod, "Ready"):
        return
    status = pod.get("status") or {}
    where = _where(pod)
    earlier = _in_its_way(pod, pods, deployment)
    if _failed(pod):
        reason = CauseReason.NODE_UNAVAILABLE if _put_out(pod) else CauseReason.ENGINE_FAILED
        yield cause(reason, where, f"{status.get('reason', 'Failed')}: {status.get('message', 'no message')}")
        return
    if condition(pod, "PodScheduled").get("status") == "False":
        yield from _of_scheduling(where, str(condition(pod, "PodScheduled").get("message", "")), earlier, advice)
    pull_error = event_causes.pull_error(pod, events)
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            if not container.get("ready"):
                place, may_end = f"{where}, container {container.get('name')}", kind == "initContainerStatuses"
                for found in container_causes.of_container(container, place, may_end=may_end, pull_error=pull_error):
                    yield _with_field(found, pod)
    for found in event_causes.of_volumes(pod, where, events):
        held = any(name(other) in found.message for other in earlier)
        yield Cause(found.reason, f"{found.message}; {IN_PLACE}") if held else found


def _where(pod: Object) -> str:
    return f"pod {name(pod)}" + (f" on node {node(pod)}" if node(pod) else "")


def _of_node(pod: Object, now: datetime | None) -> Iterator[Cause]:
    """What shows that the pod's node is not ready, or gone. Nodes are not read."""
    if has(pod, "Ready") or _failed(pod):
        return
    if has(pod, "ContainersReady") and condition(pod, "Ready").get("reason") != "ReadinessGatesNotReady":
        words = "its containers were ready, but the node is not, or is gone"
        yield cause(CauseReason.NODE_UNAVAILABLE, _where(pod), words)
    placed = _placed(pod).get("lastTransitionTime")
    since = moment(placed)
    if now is None or since is None or is_taken_up(pod):
        return
    if (now - since).total_seconds() >= event_causes.PATIENCE_SECONDS:
        words = f"the kubelet has reported nothing of it since {placed}: its node is not ready, or is gone"
        yield cause(CauseReason.NODE_UNAVAILABLE, _where(pod), words)


def _with_field(found: Cause, pod: Object) -> Cause:
    """The cause, with the field to look at where it is about the image of the model.

    The kubelet says of the container that mounts an image what it says of a container's own.
    """
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    image = next((one.get("image") or {} for one in volumes if one.get("name") == names.VOLUME_MODEL), {})
    reference = image.get("reference")
    if not reference:
        return found
    if _NOT_MOUNTED in found.message:
        return Cause(found.reason, f"{found.message}; {_SEE_MODEL}")
    if found.reason == CauseReason.CONTAINER_NOT_STARTED and _TAKEN_FOR_A_FOLDER in found.message:
        needed = "spec.model.uri is an image, which the node's container runtime must be able to mount"
        return Cause(found.reason, f"{found.message}; {needed}: containerd 2.1 or CRI-O")
    if found.reason not in _OF_IMAGES:
        return found
    # Not a part of another reference, such as one with a longer tag.
    if not re.search(rf"(?<![\w.-]){re.escape(reference)}(?![\w-]|[.:@/]\w)", found.message):
        return found
    return Cause(found.reason, f"{found.message}; {_SEE_MODEL}")


def _of_scheduling(where: str, message: str, earlier: Sequence[Object], advice: str) -> Iterator[Cause]:
    # Of preemption, which had nothing to try.
    message = message.removesuffix(" not found") if message.endswith(". not found") else message
    if _NOT_MADE.search(message):
        yield cause(CauseReason.CONFIG_MISSING, where, message)
        return
    held = {resource for other in earlier for resource in requested(other)}
    lacking = ", ".join(sorted(held & insufficient(message)))
    if lacking:
        message += f" Earlier pods of this service hold {lacking}. If no node has more, {advice}"
    yield cause(CauseReason.UNSCHEDULABLE, where, message)
