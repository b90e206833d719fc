"""Whether a service can be acted upon at all: a chain of rules, of which the first that says no counts.

While it is not accepted nothing of it is changed: what runs goes on. Every refusal here can go away without us (another
spec, an object removed), so none is final. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.objects import NAMED_KINDS, Kind, Object, controller, name
from flyball_operator.api.v1alpha1 import ObjectMeta
from flyball_operator.reconcile.plan.owned_objects import API_VERSIONS
from flyball_operator.reconcile.plan.snapshot import Snapshot

#: Seconds until the next look at an object that is in the way: nobody tells when it changes.
CONFLICT_SECONDS: Final = 15.0
#: So many unknown annotations are named.
_LISTED: Final = 5


class AcceptedReason(StrEnum):
    """Reasons of the condition `Accepted`."""

    ACCEPTED = "Accepted"
    """Everything asked for can be acted upon."""
    UNKNOWN_ANNOTATION = "UnknownAnnotation"
    """Accepted, but an annotation under Flyball's prefix is none that it knows: a misspelt one would do nothing."""
    INVALID_SPEC = "InvalidSpec"
    """The spec does not parse, or contradicts itself; the message names the field."""
    NAME_CONFLICT = "NameConflict"
    """An object that is not this service's has its name. It is not touched."""
    EARLIER_SERVICE_LEAVING = "EarlierServiceLeaving"
    """Objects of a deleted service of this name are still being removed."""
    LEADER_WORKER_SET_MISSING = "LeaderWorkerSetMissing"
    """`spec.parallelism.nodes` needs a LeaderWorkerSet, which the cluster lacks, or which may not be read."""
    REFUSED = "RefusedByServer"
    """The API server refused an object made from this spec; the message is its own."""
    CHANGED_BY_OTHERS = "ChangedByOthers"
    """Somebody changes an object after each apply, or a policy undoes in it what Flyball needs; the message names the
    fields and, where it is recorded, who."""
    OPERATOR_MISCONFIGURED = "OperatorMisconfigured"
    """The operator lacks what a governed engine needs: the plugin's image, or the signing key."""


@dataclass(frozen=True)
class Acceptance:
    """The answer, and why."""

    accepted: bool
    reason: AcceptedReason
    message: str


def judge(snapshot: Snapshot) -> Acceptance:
    """The first refusal, else acceptance."""
    return next(_refusals(snapshot), _accepted(snapshot.desire.meta))


def _accepted(meta: ObjectMeta) -> Acceptance:
    prefix = f"{names.GROUP}/"
    unknown = sorted(key for key in meta.annotations if key.startswith(prefix) and key not in names.USER_ANNOTATIONS)
    if not unknown:
        return Acceptance(True, AcceptedReason.ACCEPTED, "the spec can be acted upon")
    listed, accepted = ", ".join(unknown[:_LISTED]), ", ".join(names.USER_ANNOTATIONS)
    message = f"annotation {listed} is not known and does nothing; accepted under {prefix}: {accepted}"
    return Acceptance(True, AcceptedReason.UNKNOWN_ANNOTATION, message)


def _refusals(snapshot: Snapshot) -> Iterator[Acceptance]:
    service = snapshot.desire.service
    if service is None:
        yield Acceptance(False, AcceptedReason.INVALID_SPEC, snapshot.desire.error)
        return
    for kind in (*NAMED_KINDS, Kind.CONFIG_MAP):
        found = snapshot.objects.get(kind)
        if kind is Kind.DISRUPTION_BUDGET and not service.spec.pod_disruption_budget.enabled:
            # The user's own may have this name.
            continue
        if found is not None and snapshot.own(kind) is None:
            yield conflict(snapshot, found)
    if (words := snapshot.unreadable.get(Kind.LEADER_WORKER_SET)) is not None:
        yield Acceptance(False, AcceptedReason.LEADER_WORKER_SET_MISSING, _unreadable(words))
    if service.spec.governed:
        yield from _misconfigured(snapshot)
    elif service.spec.model.cache is not None and not snapshot.config.plugin_image:
        message = "a model cache needs the operator's FLYBALL_PLUGIN_IMAGE, which is not set"
        yield Acceptance(False, AcceptedReason.OPERATOR_MISCONFIGURED, message)
    if snapshot.refused:
        yield Acceptance(False, AcceptedReason.REFUSED, snapshot.refused)


def _unreadable(words: str) -> str:
    version = API_VERSIONS[Kind.LEADER_WORKER_SET]
    why = words or f"the cluster has no {version}; install LeaderWorkerSet 0.7 or newer (https://lws.sigs.k8s.io)"
    return f"spec.parallelism.nodes needs a LeaderWorkerSet: {why}"


def conflict(snapshot: Snapshot, found: Object) -> Acceptance:
    """What is said of an object of the service's name that is not the service's."""
    meta = snapshot.desire.meta
    called = name(found)
    what = f"{found['kind']} {called}"
    owner = controller(found)
    if owner is None:
        whose = "has no owner (made by hand, or left by an earlier service with --cascade=orphan)"
    elif owner.get("kind") == names.KIND and owner.get("name") == meta.name:
        message = f"{what} of an earlier service of this name is still being removed"
        return Acceptance(False, AcceptedReason.EARLIER_SERVICE_LEAVING, message)
    else:
        whose = f"belongs to {owner.get('kind')} {owner.get('name')}"
    command = f"kubectl delete {str(found['kind']).lower()} {called} -n {meta.namespace}"
    remedy = f"remove it ({command}) or give this service another name"
    return Acceptance(False, AcceptedReason.NAME_CONFLICT, f"{what} {whose} and is left alone: {remedy}")


def _misconfigured(snapshot: Snapshot) -> Iterator[Acceptance]:
    config = snapshot.config
    needed = {
        # Whoever makes the pods of a workload brings the plugin, too.
        "FLYBALL_PLUGIN_IMAGE": bool(config.plugin_image) or snapshot.workload is not None,
        "FLYBALL_SIGNING_KEY_SECRET or FLYBALL_SIGNING_KEY_FILE": config.publishes_keys or bool(config.public_key),
    }
    for setting, present in needed.items():
        if not present:
            message = f"governed engines need the operator's {setting}, which is not set"
            yield Acceptance(False, AcceptedReason.OPERATOR_MISCONFIGURED, message)
