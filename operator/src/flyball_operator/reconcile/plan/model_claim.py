"""The PersistentVolumeClaim that is made for a model: whose it is, what is wrong with it, and what it is to be.

It has the service's name with a suffix, and the labels of what is ours. One that is kept has no owner, so a service
that is made anew finds it by name and label. Any other object of that name is left alone. A claim cannot take another
class or other access modes: these are asked for once, and afterwards are those of the claim. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.model_source import CacheClaim, ClaimDeletion
from flyball_operator.api.objects import Kind, Object, being_deleted, controller, name
from flyball_operator.api.quantities import quantity
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan import event_causes, pod
from flyball_operator.reconcile.plan.model_reasons import ModelReason, one_line
from flyball_operator.reconcile.plan.owned_objects import owned
from flyball_operator.reconcile.plan.snapshot import Snapshot

#: Seconds until a look at what tells nobody when it changes: a foreign claim, or a quota.
LOOK_SECONDS: Final = 60.0
#: Conditions of a claim that say why its volume has not grown yet (Kubernetes 1.31 and newer for the errors).
_GROWTH: Final = ("ControllerResizeError", "NodeResizeError", "FileSystemResizePending")
_NO_CLASS: Final = re.compile(r'storageclass\.storage\.k8s\.io "[^"]*" not found')


@dataclass(frozen=True)
class ClaimProblem:
    """Why the claim is not as asked for. `again`: seconds until the next look, None where a watch tells.

    `usable`: whether it can be used as it is.
    """

    reason: ModelReason
    message: str
    again: float | None = None
    usable: bool = False


def problem(service: InferenceService, snapshot: Snapshot) -> ClaimProblem | None:
    """Why no Job can use the claim, or why it stays as it is; None where it is good, or named by the user."""
    asked = service.spec.model.claim_to_make
    return next(_problems(service, asked, snapshot), None) if asked is not None else None


def _problems(service: InferenceService, asked: CacheClaim, snapshot: Snapshot) -> Iterator[ClaimProblem]:
    """A chain of rules, of which the first that finds something counts."""
    found, title = _found(snapshot), f"PersistentVolumeClaim {pod.claim(service)}"
    refused = one_line(snapshot.claim_refused) if snapshot.claim_refused else ""
    if refused and found is None:
        yield ClaimProblem(ModelReason.CLAIM_REFUSED, refused, LOOK_SECONDS)
    if found is None:
        yield ClaimProblem(ModelReason.DOWNLOAD_PENDING, f"{title} is being made")
        return
    if being_deleted(found) or _is_of_an_earlier_service(service, found):
        message = f"{title} is being deleted, and goes once no pod uses it; then another is made"
        # The watch tells of ours alone.
        again = None if _is_ours(service, found) else LOOK_SECONDS
        yield ClaimProblem(ModelReason.CLAIM_BEING_DELETED, message, again)
    if not _is_ours(service, found):
        remedy = f"name it in spec.model.cache.claimName to use it, or remove it ({_deletion(found)})"
        message = f"{title} was not made for this service and is left alone: {remedy}"
        yield ClaimProblem(ModelReason.CLAIM_CONFLICT, message, LOOK_SECONDS)
    if (found.get("status") or {}).get("phase") == "Lost":
        volume = found["spec"].get("volumeName", "")
        yield ClaimProblem(ModelReason.CLAIM_LOST, f"{title} has lost its volume {volume}: {_anew(found)}")
    if others := "; ".join(_fixed_otherwise(asked, found)):
        message = f"{others}. Kubernetes does not change this in a claim: ask for what it has, or {_anew(found)}"
        yield ClaimProblem(ModelReason.CLAIM_DIFFERS, message, usable=True)
    if refused:
        yield ClaimProblem(ModelReason.CLAIM_REFUSED, refused, LOOK_SECONDS, usable=True)


def pending(service: InferenceService, snapshot: Snapshot) -> ClaimProblem | None:
    """Why the claim has no volume yet, as far as events say; None where it has one."""
    asked, found = service.spec.model.claim_to_make, _found(snapshot)
    if asked is None or found is None or not event_causes.is_pending(found):
        return None
    again = event_causes.look_again_at(found, snapshot.now)
    words = event_causes.of_claim(found, snapshot.events)
    said = [f"PersistentVolumeClaim {name(found)}: {one_line(words)}; the download waits for it"] if words else []
    if _amount(asked.size) != _amount(_size(found)):
        said.append(f"it asks for {_size(found)}, and for {asked.size} once it has a volume; or {_anew(found)}")
    reason = ModelReason.STORAGE_CLASS_NOT_FOUND if _NO_CLASS.search(words) else ModelReason.CLAIM_PENDING
    return ClaimProblem(reason, "; ".join(said), again)


def of_size(service: InferenceService, snapshot: Snapshot) -> str:
    """Says that the claim asks for more than the service, or that its volume still grows; empty where neither is so."""
    asked, found = service.spec.model.claim_to_make, _found(snapshot)
    if asked is None or found is None:
        return ""
    title, size = f"claim {name(found)}", _size(found)
    if _amount(asked.size) < _amount(size):
        return f"{title} asks for {size}, not {asked.size}: Kubernetes shrinks no claim"
    status = found.get("status") or {}
    has = (status.get("capacity") or {}).get("storage")
    if has is None or _amount(has) >= _amount(size):
        return ""
    said = [one for one in status.get("conditions") or () if one.get("type") in _GROWTH and one.get("status") == "True"]
    words = "; ".join(one_line(str(one.get("message") or one["type"])) for one in said)
    return f"the volume of {title} has {has} and is to grow to {size}" + (f": {words}" if words else "")


def wanted(service: InferenceService, snapshot: Snapshot) -> Object | None:
    """The claim as it is to be; None where none is to be made or changed now."""
    asked, found = service.spec.model.claim_to_make, _found(snapshot)
    if asked is None:
        return None
    asked_class: Object = {} if asked.storage_class_name is None else {"storageClassName": asked.storage_class_name}
    if found is None:
        if snapshot.claim_refused:
            return None
        spec = asked_class | {"accessModes": [mode.value for mode in asked.access_modes]}
        size = str(asked.size)
    else:
        wrong = problem(service, snapshot)
        if wrong is not None and not wrong.usable:
            return None
        spec = {field: found["spec"][field] for field in ("accessModes", "storageClassName") if field in found["spec"]}
        if snapshot.claim_refused:
            # What was refused is left as it is, so that whether the claim is kept is not refused with it.
            size = _size(found)
        else:
            # A claim that has no class yet may still be given one.
            spec, size = asked_class | spec, _size_to_be(asked, found)
    spec["resources"] = {"requests": {"storage": size}}
    body = owned(Kind.VOLUME_CLAIM, service.metadata, name=pod.claim(service), spec=spec)
    # A kept claim outlives the service, and with it the UID.
    del body["metadata"]["labels"][names.LABEL_SERVICE_UID]
    if asked.deletion is ClaimDeletion.KEEP:
        del body["metadata"]["ownerReferences"]
    return body


def _found(snapshot: Snapshot) -> Object | None:
    return snapshot.objects.get(Kind.VOLUME_CLAIM)


def _is_ours(service: InferenceService, found: Object) -> bool:
    labels, owner = found["metadata"].get("labels") or {}, controller(found)
    labelled = (names.MANAGED_BY, service.metadata.name)
    return (labels.get(names.LABEL_MANAGED_BY), labels.get(names.LABEL_SERVICE)) == labelled and (
        owner is None or owner.get("uid") == service.metadata.uid
    )


def _is_of_an_earlier_service(service: InferenceService, found: Object) -> bool:
    """Whether garbage collection is about to delete it: its owner had this name, and is gone."""
    owner = controller(found) or {}
    group = str(owner.get("apiVersion") or "").partition("/")[0]
    named = (group, owner.get("kind"), owner.get("name")) == (names.GROUP, names.KIND, service.metadata.name)
    return named and owner.get("uid") != service.metadata.uid


def _deletion(found: Object) -> str:
    return f"kubectl delete pvc {name(found)} -n {found['metadata']['namespace']}"


def _anew(found: Object) -> str:
    return f"scale to 0 and delete it ({_deletion(found)}): another is made, and what was on it is lost"


def _fixed_otherwise(asked: CacheClaim, found: Object) -> Iterator[str]:
    """What of the claim is otherwise than asked for, and stays so."""
    modes: list[str] = list(found["spec"].get("accessModes") or ())
    if set(modes) != {mode.value for mode in asked.access_modes}:
        listed = ", ".join(mode.value for mode in asked.access_modes)
        yield (
            f"spec.model.cache.claim.accessModes: [{listed}] is not what claim {name(found)} has; accepted:"
            f" [{', '.join(modes)}]"
        )
    klass = found["spec"].get("storageClassName")
    # A claim may get the cluster's default class later.
    if klass is not None and asked.storage_class_name not in (None, klass):
        yield (
            f"spec.model.cache.claim.storageClassName: {asked.storage_class_name or '(empty)'} is not what claim"
            f" {name(found)} has; accepted: {klass or '(empty)'}"
        )


def _size_to_be(asked: CacheClaim, found: Object) -> str:
    """What the claim is to ask for: never less than it has, and while it has no volume, what it asks for already."""
    now = _size(found)
    status = found.get("status") or {}
    if _amount(asked.size) == _amount(now):
        return str(asked.size)
    grows = _amount(asked.size) > _amount((status.get("capacity") or {}).get("storage"))
    return str(asked.size) if status.get("phase") == "Bound" and grows else now


def _size(found: Object) -> str:
    return str((found["spec"].get("resources") or {}).get("requests", {}).get("storage", "0"))


def _amount(size: object) -> Decimal:
    return quantity(size) or Decimal(0)
