"""The Service in front of a service's pods: the OpenAI port alone, for the control port is nobody's but the operator's.

Its scheme is that of the template that the Deployment has, not the spec's: a rollout that failed is back at another.
The pods' port has one name whatever its scheme, so that pods of two templates are endpoints side by side. Pure.
"""

from __future__ import annotations

from typing import Final

from flyball_engine.contract import API_PORT
from flyball_operator.api import names
from flyball_operator.api.objects import Kind, Object, annotation
from flyball_operator.api.v1alpha1 import InferenceService, ObjectMeta
from flyball_operator.reconcile.plan.owned_objects import owned, serving_selector

_HTTPS: Final = "https"


def render(service: InferenceService, template: Object) -> Object:
    """The Service of pods with this template."""
    port = {"name": names.PORT_HTTP, "port": API_PORT, "targetPort": names.PORT_HTTP, "protocol": "TCP"}
    if _scheme(template) == _HTTPS:
        # Gateways and meshes go by either.
        port |= {"name": _HTTPS, "appProtocol": _HTTPS}
    return owned(Kind.SERVICE, service.metadata, spec={"selector": serving_selector(service), "ports": [port]})


def url(meta: ObjectMeta, template: Object) -> str:
    """Where clients inside the cluster reach the OpenAI API of pods with this template."""
    return f"{_scheme(template)}://{meta.name}.{meta.namespace}.svc:{API_PORT}"


def _scheme(template: Object) -> str:
    return annotation(template, names.ANNOTATION_SCHEME) or "http"
