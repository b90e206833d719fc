"""The HTTPRoute: `/v1` of the gateways that a service names goes to its Service, or to its InferencePool.

Only `/v1` is let in, which has the OpenAI API: what else vLLM serves on the port, such as its metrics, stays inside the
cluster. By default the route has no time limit: an answer streams for as long as it has tokens, and gateways may have
limits of seconds. vLLM ends a request whose client is gone. Limits of connections stay the gateway's. Pure.
"""

from __future__ import annotations

from typing import Any, Final

from flyball_engine.contract import API_PORT
from flyball_operator.api.gateway import ParentReference, RequestTimeout
from flyball_operator.api.objects import Kind, Object
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan.owned_objects import API_VERSIONS, owned

_PATH: Final = "/v1"
#: How the Gateway API spells that a request may take any time.
_NO_TIMEOUT: Final = "0s"


def render(service: InferenceService) -> Object | None:
    """The route, None where the spec names no gateway."""
    gateway = service.spec.gateway
    if gateway is None:
        return None
    rule: Object = {
        "matches": [{"path": {"type": "PathPrefix", "value": _PATH}}],
        "backendRefs": [_backend(service.metadata.name, pool=gateway.endpoint_picker is not None)],
    }
    if gateway.request_timeout is RequestTimeout.UNLIMITED:
        rule["timeouts"] = {"request": _NO_TIMEOUT}
    spec: Object = {"parentRefs": [_parent(one) for one in gateway.parent_refs], "rules": [rule]}
    if gateway.hostnames:
        spec["hostnames"] = list(gateway.hostnames)
    return owned(Kind.HTTP_ROUTE, service.metadata, spec=spec)


def _parent(parent: ParentReference) -> Object:
    """A Gateway, and no other kind of parent."""
    kind = {"group": "gateway.networking.k8s.io", "kind": "Gateway"}
    return {**kind, **parent.model_dump(mode="json", by_alias=True, exclude_none=True)}


def _backend(name: str, *, pool: bool) -> dict[str, Any]:
    if pool:
        group = API_VERSIONS[Kind.INFERENCE_POOL].partition("/")[0]
        return {"group": group, "kind": Kind.INFERENCE_POOL.value, "name": name, "weight": 1}
    return {"group": "", "kind": "Service", "name": name, "port": API_PORT, "weight": 1}
