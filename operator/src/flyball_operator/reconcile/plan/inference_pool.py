"""The InferencePool: a service's pods, among which an endpoint picker chooses for each request.

It selects the pods that the Service selects. Which of them are Ready, gateway and picker see themselves. Pure.
"""

from __future__ import annotations

from flyball_engine.contract import API_PORT
from flyball_operator.api.objects import Kind, Object
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan.owned_objects import owned, serving_selector


def render(service: InferenceService) -> Object | None:
    """The pool, None where the spec names no picker."""
    gateway = service.spec.gateway
    if gateway is None or gateway.endpoint_picker is None:
        return None
    picker = gateway.endpoint_picker
    spec = {
        "selector": {"matchLabels": serving_selector(service)},
        "targetPorts": [{"number": API_PORT}],
        "endpointPickerRef": {
            "group": "",
            "kind": "Service",
            "name": picker.name,
            "port": {"number": picker.port},
            "failureMode": picker.failure_mode.value,
        },
    }
    return owned(Kind.INFERENCE_POOL, service.metadata, spec=spec)
