"""Random walks over specs, as in `perturb`, on the real API server: its defaults, its merges, its refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from flyball_lab.harness.manifests import Object, good
from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from flyball_operator.api.v1alpha1 import RECONCILER_CONDITIONS, ConditionType
from support.cluster import apply, delete, get, items
from support.memory_api import leaves
from support.operators import RESOURCE, OperatorProcess
from support.specs import WALKS, walks

_HASHES = (names.ANNOTATION_SPEC_HASH, names.ANNOTATION_TEMPLATE_HASH)
ROUTES = ("httproutes", "inferencepools")
KINDS = ("deployments", "services", "poddisruptionbudgets", "controllerrevisions", "configmaps", *ROUTES)


# Shrinking takes hours, and the walk that fails says enough. A hypothesis example has the namespace of the one before.
@settings(
    max_examples=max(1, WALKS // 10),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(walk=walks(most=15, caches=False))
@pytest.mark.usefixtures("gateway_api")
def test_a_walk_ends_where_a_fresh_service_begins_and_so_does_the_way_back(
    place: str, running: OperatorProcess, walk: list[Object]
) -> None:
    for spec in walk:
        asked_for(place, "walked", spec)
    for name, spec in (("fresh", walk[-1]), ("begun", walk[0])):
        asked_for(place, "walked", spec)
        asked_for(place, name, spec)
        walked, made = left(place, "walked"), left(place, name)
        accepted = ConditionType.ACCEPTED
        if made[accepted][0] == "True":
            assert walked == made
        else:
            # What the API server refuses leaves objects as they were, and of a new service there were none.
            assert walked[accepted] == made[accepted]
    for name in ("walked", "fresh", "begun"):
        delete(RESOURCE, name, namespace=place)
    eventually(lambda: not remains(place), expecting="nothing left")


def remains(place: str) -> list[Object]:
    """All that is left of services."""
    return [one for kind in KINDS for one in items(kind, namespace=place, selector=names.LABEL_SERVICE)]


def asked_for(place: str, name: str, spec: Object) -> None:
    """Ask for a spec without pods, and wait until the operator has done all that it can about it."""
    # The number is the operator's where it scales.
    without_pods = {field: value for field, value in spec.items() if field != "scaling"} | {"replicas": 0}
    apply(good(name) | {"spec": without_pods}, namespace=place)

    def settled() -> bool:
        service = get(RESOURCE, name, namespace=place) or {}
        status = service.get("status") or {}
        conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
        if status.get("observedGeneration") != service["metadata"]["generation"]:
            return False
        if conditions.get(ConditionType.STALLED) == "True":
            return True
        routed = (ConditionType.ROUTED in conditions) == ("gateway" in spec)
        return routed and conditions.get(ConditionType.READY) == "True" and routes(place, name) == routes_of(spec)

    eventually(settled, expecting=f"{name} is as asked for, or refused", within=240)


def routes(place: str, name: str) -> list[str]:
    """Kinds of which there is a route or pool of the service."""
    return [kind for kind in ROUTES if get(kind, name, namespace=place) is not None]


def routes_of(spec: Object) -> list[str]:
    """Kinds of routes that a spec asks for."""
    gateway = spec.get("gateway")
    return [] if gateway is None else [*ROUTES] if "endpointPicker" in gateway else [ROUTES[0]]


def left(place: str, name: str) -> dict[str, Any]:
    """What the service has and says, by kind, without what no two services have in common."""
    service = get(RESOURCE, name, namespace=place)
    assert service is not None
    found: dict[str, Any] = {
        one["type"]: (one["status"], one["reason"])
        for one in service["status"]["conditions"]
        if one["type"] in RECONCILER_CONDITIONS
    }
    # The list of adapters stays where a spec asks for none any more: pods of the template before read it.
    passed_over = {"controllerrevisions"} if "adapters" in service["spec"] else {"controllerrevisions", "configmaps"}
    for kind in (kind for kind in KINDS if kind not in passed_over):
        for item in items(kind, namespace=place, selector=f"{names.LABEL_SERVICE}={name}"):
            found |= {
                f"{kind} {path}": value for path, value in leaves(_common(item, service["metadata"]["uid"], name))
            }
    return found


def _common(item: Object, uid: str, name: str) -> Object:
    """An object's own fields, with words in place of its service's name and UID, and without hashes of these."""
    text = json.dumps({field: item.get(field, {}) for field in ("metadata", "spec", "data")})
    text = text.replace(uid, "UID").replace(name, "NAME")
    body: Object = json.loads(text)
    metadata, spec = body["metadata"], body["spec"]
    annotations = ((spec.get("template") or {}).get("metadata") or {}).get("annotations") or {}
    for fields, own in ((annotations, _HASHES), (spec, ("clusterIP", "clusterIPs"))):
        for field in own:
            fields.pop(field, None)
    return {**body, "metadata": {"labels": metadata["labels"], "owners": metadata["ownerReferences"]}}
