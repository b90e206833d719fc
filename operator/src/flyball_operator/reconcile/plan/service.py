"""The Service in front of a service's pods: the OpenAI port alone, for the control port is nobody's but the operator's.

Pure.
"""

from __future__ import annotations

from flyball_engine.contract import API_PORT
from flyball_operator.api import names
from flyball_operator.api.v1alpha1 import ObjectMeta
from flyball_operator.reconcile.plan.objects import Kind, Object, owned, selector


def render(meta: ObjectMeta) -> Object:
    """The Service."""
    port = {"name": names.PORT_HTTP, "port": API_PORT, "targetPort": names.PORT_HTTP, "protocol": "TCP"}
    return owned(Kind.SERVICE, meta, spec={"selector": selector(meta), "ports": [port]})


def url(meta: ObjectMeta) -> str:
    """Where clients inside the cluster reach the OpenAI API."""
    return f"http://{meta.name}.{meta.namespace}.svc:{API_PORT}"
