"""The way from gateways to a service: what of it is made, and what the gateways make of that (condition `Routed`).

A cluster may lack the Gateway API, and nobody tells when it is installed. So its kinds are read, not watched, and only
of services that name a gateway or did: the condition is in the status before the first object is made, and goes after
the last one. Pods and Service need none of it. So nothing here holds them up, and `Ready` does not ask. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from flyball_operator.api.desire import Desire
from flyball_operator.api.gateway import Gateway, ParentReference
from flyball_operator.api.objects import ROUTE_KINDS, Kind, Object, moment
from flyball_operator.api.v1alpha1 import ConditionType, InferenceService
from flyball_operator.reconcile.plan import http_route, inference_pool
from flyball_operator.reconcile.plan.acceptance import CONFLICT_SECONDS, AcceptedReason, conflict
from flyball_operator.reconcile.plan.model_reasons import one_line
from flyball_operator.reconcile.plan.owned_objects import API_VERSIONS
from flyball_operator.reconcile.plan.snapshot import REFUSED_SECONDS, Snapshot

#: Seconds until objects are made that the status has announced.
_ANNOUNCED_SECONDS: Final = 1.0
#: Seconds until the next look while gateways may be about to answer, and for how long after a change they may be. Later
#: answers are seen with the resync.
_ANSWER_SECONDS: Final = 5.0
_ANSWERING: Final = timedelta(minutes=2)
#: Who defines each kind.
_INSTALL: Final[Mapping[Kind, str]] = {
    Kind.HTTP_ROUTE: "the Gateway API CRDs",
    Kind.INFERENCE_POOL: "the CRDs of the Gateway API Inference Extension",
}
#: What a gateway says of a route or pool that it serves.
_ANSWERS: Final = ("Accepted", "ResolvedRefs")


class RoutedReason(StrEnum):
    """Reasons of `Routed`."""

    ACCEPTED_BY_GATEWAY = "AcceptedByGateway"
    """Every gateway that the spec names leads requests to the service."""
    ROUTE_PENDING = "RoutePending"
    """Objects are being made or removed, or a gateway has not answered for the present ones."""
    REFUSED_BY_GATEWAY = "RefusedByGateway"
    """A gateway does not take the route or the pool; the message has its reason."""
    REFUSED_BY_SERVER = "RefusedByServer"
    """The API server refused the route or the pool, or the rights to read them; the message is its own."""
    GATEWAY_API_MISSING = "GatewayApiMissing"
    """The cluster does not have the kinds; the message names what to install."""
    NAME_CONFLICT = "NameConflict"
    """An object of the service's name exists that is not the service's; the message names it and the mend."""
    CHANGED_BY_OTHERS = "ChangedByOthers"
    """Others change the route or the pool after each apply; the message names the fields."""


@dataclass(frozen=True)
class RouteState:
    """What has become of the way. `again`: seconds until the next look, where nobody tells of a change before."""

    reason: RoutedReason
    message: str
    again: float | None = None

    @property
    def routed(self) -> bool:
        """Whether requests find the service by every gateway."""
        return self.reason is RoutedReason.ACCEPTED_BY_GATEWAY


def concerns(desire: Desire) -> bool:
    """Whether a service names a gateway, or may have objects of a time when it did. Of others nothing is read."""
    service = desire.service
    return (service is not None and service.spec.gateway is not None) or _announced(desire)


def was_routed(desire: Desire) -> bool:
    """Whether requests found the service when that was last looked at."""
    return any(one.type == ConditionType.ROUTED and one.status == "True" for one in desire.status.conditions)


def changes(service: InferenceService, snapshot: Snapshot) -> Iterator[tuple[Kind, Object | None]]:
    """Objects to keep, None where one is to be removed. A route never leads to a pool that is not there."""
    if not _announced(snapshot.desire) or snapshot.route_refused:
        return
    if _hindrance(service, snapshot) is not None:
        return
    pool = inference_pool.render(service)
    if pool is not None:
        yield Kind.INFERENCE_POOL, pool
    yield Kind.HTTP_ROUTE, http_route.render(service)
    if pool is None:
        yield Kind.INFERENCE_POOL, None


def state(service: InferenceService, snapshot: Snapshot) -> RouteState | None:
    """What has become of the way; None where no gateway is named and nothing is left."""
    if snapshot.route_refused:
        return RouteState(RoutedReason.REFUSED_BY_SERVER, one_line(snapshot.route_refused), REFUSED_SECONDS)
    gateway = service.spec.gateway
    if gateway is None:
        return _leaving(snapshot)
    if (hindrance := _hindrance(service, snapshot)) is not None:
        return hindrance
    if not _announced(snapshot.desire):
        return RouteState(RoutedReason.ROUTE_PENDING, "the HTTPRoute is being made", _ANNOUNCED_SECONDS)
    if snapshot.route_changed:
        return RouteState(RoutedReason.CHANGED_BY_OTHERS, snapshot.route_changed)
    return _answered(gateway, _kinds(service), snapshot)


def _announced(desire: Desire) -> bool:
    return any(one.type == ConditionType.ROUTED for one in desire.status.conditions)


def _kinds(service: InferenceService) -> Sequence[Kind]:
    gateway = service.spec.gateway
    if gateway is None:
        return ()
    return ROUTE_KINDS if gateway.endpoint_picker is not None else (Kind.HTTP_ROUTE,)


def _absent(service: InferenceService, snapshot: Snapshot) -> Kind | None:
    """A kind that is needed and cannot be read."""
    return next((kind for kind in reversed(_kinds(service)) if kind in snapshot.unreadable), None)


def _hindrance(service: InferenceService, snapshot: Snapshot) -> RouteState | None:
    """Why the objects cannot be made: a kind that is not there or may not be read, or another's object."""
    if (kind := _absent(service, snapshot)) is not None:
        return _unreadable(kind, snapshot)
    found = _foreign(service, snapshot)
    return None if found is None else _in_the_way(found, snapshot)


def _foreign(service: InferenceService, snapshot: Snapshot) -> Object | None:
    """An object of the service's name that is not the service's, of a kind that is needed."""
    kinds = reversed(_kinds(service))
    found = (snapshot.objects[kind] for kind in kinds if kind in snapshot.objects and snapshot.own(kind) is None)
    return next(found, None)


def _in_the_way(found: Object, snapshot: Snapshot) -> RouteState:
    said = conflict(snapshot, found)
    foreign = said.reason is AcceptedReason.NAME_CONFLICT
    reason = RoutedReason.NAME_CONFLICT if foreign else RoutedReason.ROUTE_PENDING
    return RouteState(reason, said.message, CONFLICT_SECONDS)


def _unreadable(kind: Kind, snapshot: Snapshot) -> RouteState:
    if words := snapshot.unreadable[kind]:
        return RouteState(RoutedReason.REFUSED_BY_SERVER, f"{kind.value}: {one_line(words)}")
    version = API_VERSIONS[kind]
    message = f"{kind.value}: the cluster has no {version}; install {_INSTALL[kind]}. The Service serves without it"
    return RouteState(RoutedReason.GATEWAY_API_MISSING, message)


def _leaving(snapshot: Snapshot) -> RouteState | None:
    left = [kind.value for kind in ROUTE_KINDS if snapshot.own(kind) is not None]
    if left:
        return RouteState(RoutedReason.ROUTE_PENDING, f"{' and '.join(left)}: being removed")
    # Who may not look does not know whether a route is left.
    hidden = next((kind for kind in reversed(ROUTE_KINDS) if snapshot.unreadable.get(kind)), None)
    if _announced(snapshot.desire) and hidden is not None:
        return _unreadable(hidden, snapshot)
    return None


def _answered(gateway: Gateway, kinds: Sequence[Kind], snapshot: Snapshot) -> RouteState:
    found = [(kind, snapshot.own(kind)) for kind in reversed(kinds)]
    again = _ANSWER_SECONDS if any(_is_young(live, snapshot) for _, live in found if live is not None) else None
    pending = ""
    for kind, live in found:
        if live is None:
            return RouteState(RoutedReason.ROUTE_PENDING, f"{kind.value}: being made", _ANNOUNCED_SECONDS)
        for parent in gateway.parent_refs:
            answers = list(_answers(live, parent, snapshot.desire.meta.namespace))
            where = f"{kind.value} on {_named(parent, snapshot)}"
            refusal = next((one for one in answers if one.get("status") == "False"), None)
            if refusal is not None:
                said = f"{refusal.get('type')} is False, {refusal.get('reason')}: {refusal.get('message')}"
                return RouteState(RoutedReason.REFUSED_BY_GATEWAY, f"{where}: {one_line(said)}", again)
            if not answers and kind is Kind.INFERENCE_POOL and not _is_young(live, snapshot):
                # Some gateways say of pools nothing, but in the route's ResolvedRefs.
                continue
            if {one.get("type") for one in answers if one.get("status") == "True"} != set(_ANSWERS):
                pending = pending or f"{where}: its controller has not answered; if it stays so, look at that Gateway"
    if pending:
        return RouteState(RoutedReason.ROUTE_PENDING, pending, again)
    gateways = ", ".join(_named(parent, snapshot) for parent in gateway.parent_refs)
    return RouteState(RoutedReason.ACCEPTED_BY_GATEWAY, f"accepted by {gateways}")


def _answers(live: Object, parent: ParentReference, namespace: str) -> Iterator[Mapping[str, Any]]:
    """What is said of an object on one gateway, as far as it is of the object as it is now."""
    generation = int(live["metadata"].get("generation") or 0)
    for entry in (live.get("status") or {}).get("parents") or ():
        if not _is_of(entry.get("parentRef") or {}, parent, namespace):
            continue
        for condition in entry.get("conditions") or ():
            if (
                condition.get("type") in _ANSWERS
                and int(condition.get("observedGeneration") or generation) >= generation
            ):
                yield condition


def _is_of(reference: Mapping[str, Any], parent: ParentReference, namespace: str) -> bool:
    """Whether an answer is of this gateway. Answers on a pool name no listener."""
    return (
        reference.get("kind", "Gateway") == "Gateway"
        and reference.get("name") == parent.name
        and (reference.get("namespace") or namespace) == (parent.namespace or namespace)
        and reference.get("sectionName") in (None, "", parent.section_name)
    )


def _named(parent: ParentReference, snapshot: Snapshot) -> str:
    listener = f" ({parent.section_name})" if parent.section_name else ""
    return f"Gateway {parent.namespace or snapshot.desire.meta.namespace}/{parent.name}{listener}"


def _is_young(live: Object, snapshot: Snapshot) -> bool:
    """Whether the object was made or changed so lately that gateways may be about to answer."""
    metadata = live["metadata"]
    times = [
        metadata.get("creationTimestamp"),
        *(one.get("time") for one in metadata.get("managedFields") or () if not one.get("subresource")),
    ]
    found = [at for one in times if one and (at := moment(one)) is not None]
    return bool(found) and snapshot.now - max(found) < _ANSWERING
