"""What a user states about gateways: which Gateways its route attaches to, and who picks the pod of a request. Pure.

Names and defaults are those of the Gateway API (gateway.networking.k8s.io/v1) and of its InferencePool
(inference.networking.k8s.io/v1).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from flyball_operator.api.base import Model
from flyball_operator.api.rules import LABEL, SUBDOMAIN, Matches, ObjectName

#: Port of the llm-d router and of the Gateway API inference extension's picker, unless they are told another.
DEFAULT_PICKER_PORT: Final = 9002

Hostname = Annotated[
    str,
    Field(min_length=1, max_length=253),
    Matches(
        rf"(\*\.)?{SUBDOMAIN}",
        "must be a DNS name in lower case without port, such as llm.example.com or *.example.com",
    ),
]
NamespaceName = Annotated[
    str,
    Field(min_length=1, max_length=63),
    Matches(LABEL, "must be the name of a namespace: a-z, 0-9 and '-'"),
]
ServiceName = Annotated[
    str,
    Field(min_length=1, max_length=63),
    Matches(LABEL, "must be the name of a Service: a-z, 0-9 and '-'"),
]


class FailureMode(StrEnum):
    """What a gateway does while the picker does not answer. FailOpen: it chooses pods itself. FailClose: it refuses."""

    FAIL_OPEN = "FailOpen"
    FAIL_CLOSE = "FailClose"


class ParentReference(Model):
    """A Gateway that requests come in by."""

    name: ObjectName
    """Name of the Gateway."""
    namespace: NamespaceName | None = None
    """Its namespace. Its listeners must allow routes of the service's namespace. Default: the service's."""
    section_name: ObjectName | None = None
    """Name of one listener of it. Default: all that fit."""


class RequestTimeout(StrEnum):
    """How long gateways let a request take. Unlimited: any time (`timeouts.request: 0s`). GatewayDefault: theirs."""

    UNLIMITED = "Unlimited"
    GATEWAY_DEFAULT = "GatewayDefault"


class EndpointPicker(Model):
    """Who picks the pod for each request, such as the llm-d router. Flyball makes none."""

    name: ServiceName
    """Name of its Service, in the service's namespace."""
    port: Annotated[int, Field(ge=1, le=65_535)] = DEFAULT_PICKER_PORT
    """Port of that Service. Default: 9002."""
    failure_mode: FailureMode = FailureMode.FAIL_CLOSE
    """What gateways do while it does not answer. FailOpen: they choose pods themselves. FailClose: they refuse.
    Default: FailClose."""


class Gateway(Model):
    """How requests from outside find the service. Changing it rolls no pod."""

    parent_refs: Annotated[tuple[ParentReference, ...], Field(min_length=1, max_length=8)]
    """Gateways that the HTTPRoute attaches to, at least one. Whoever may write it can claim host names there."""
    hostnames: Annotated[tuple[Hostname, ...], Field(max_length=16)] = ()
    """Host names of the route, such as llm.example.com. Services on one Gateway need different ones: of two equal
    routes the older gets all requests. Default: all that the listeners have."""
    request_timeout: RequestTimeout = RequestTimeout.UNLIMITED
    """How long a request may take. Unlimited: any time, since answers are streams. GatewayDefault: the route says
    nothing, as gateways need that refuse a timeout (GKE). Default: Unlimited."""
    endpoint_picker: EndpointPicker | None = None
    """With it an InferencePool is made, and the route goes there. Default: none, the route goes to the Service."""
