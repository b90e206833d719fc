"""Containers beside the engine, and what containers are made of: environment, ports, probes, whom they run as.

All of them are unprivileged, as the Pod Security level `restricted` has it. What would make them otherwise is declared
with the one value that is accepted, so that a manifest may say it and whoever asks for more reads why not. Pure.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, Field

from flyball_engine.contract import API_PORT, CONTROL_PORT
from flyball_operator.api import names
from flyball_operator.api.base import Check, Model, exactly_one
from flyball_operator.api.owned import OWNED_ENVIRONMENT
from flyball_operator.api.quantities import EnoughBytes, IntOrString, ReadsAsQuantity
from flyball_operator.api.rules import (
    IS_IMAGE,
    IS_SHORT,
    MapKeyed,
    Matches,
    ObjectName,
    Refuses,
    Rule,
)
from flyball_operator.api.volumes import DataKey, FieldRef, LabelName, Mounts

Image = Annotated[str, Field(min_length=1, max_length=512), IS_IMAGE, IS_SHORT]
ImagePullPolicy = Literal["Always", "IfNotPresent", "Never"]
#: Above 0, which is root; the largest number that Kubernetes takes.
UserId = Annotated[int, Field(ge=1, le=2**31 - 1)]
GroupId = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Seconds = Annotated[int, Field(ge=1, le=86_400)]


def _unsaid(_: object) -> None:
    """A field that says what is so anyway is as one that is absent: it changes no hash and rolls no pod."""


#: Fields of which Kubernetes' default, or what Flyball sets, is the one accepted value.
OnlyFalse = Annotated[Literal[False] | None, AfterValidator(_unsaid)]
OnlyTrue = Annotated[Literal[True] | None, AfterValidator(_unsaid)]
OnlyZero = Annotated[Literal[0] | None, AfterValidator(_unsaid)]


class SecretKeyRef(Model):
    """A key of a Secret in the service's namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: DataKey
    """Key in the Secret whose value is used."""


class KeySelector(Model):
    """A key of a Secret or ConfigMap in the service's namespace."""

    name: ObjectName
    """Name of the object."""
    key: DataKey
    """Key whose value is used."""
    optional: bool | None = None
    """Whether the container starts without it. Default: false."""


class EnvVarSource(Model):
    """Where a variable's value comes from."""

    checks: ClassVar[tuple[Check, ...]] = (exactly_one("secretKeyRef", "configMapKeyRef", "fieldRef", noun="source"),)

    secret_key_ref: KeySelector | None = None
    """A key of a Secret. The kubelet reads it; the operator never does."""
    config_map_key_ref: KeySelector | None = None
    """A key of a ConfigMap."""
    field_ref: FieldRef | None = None
    """A field of the pod."""


class EnvVar(Model):
    """An environment variable of a container."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "!has(self.valueFrom) || !has(self.value) || self.value == ''",
                "may not be set beside value: a variable has one of them",
                ".valueFrom",
            ),
            lambda variable: variable.value_from is None or not variable.value,
        ),
    )

    name: Annotated[
        str,
        Field(min_length=1, max_length=128),
        Matches(r"[A-Za-z_][A-Za-z0-9_]*", "must be letters, digits and '_', and not begin with a digit"),
    ]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=4096)] = ""
    """Its value, in plain text. Default: empty."""
    value_from: EnvVarSource | None = None
    """Where its value comes from instead: a Secret, a ConfigMap or a field of the pod. Default: `value`."""


class EngineEnvVar(EnvVar):
    """An environment variable of the engine container."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=128),
        Matches(r"[A-Za-z_][A-Za-z0-9_]*", "must be letters, digits and '_', and not begin with a digit"),
        Refuses(OWNED_ENVIRONMENT, "is set by Flyball: FLYBALL_*, VLLM_PLUGINS and PYTHONPATH may not be set"),
    ]
    """Name of the variable."""


Quantity = Annotated[int | str, ReadsAsQuantity()]
ResourceMap = Annotated[
    dict[str, Quantity], Field(max_length=16), EnoughBytes("memory"), EnoughBytes("ephemeral-storage")
]


class ContainerClaim(Model):
    """A claim of spec.podTemplate.resourceClaims that the container uses."""

    name: LabelName
    """Name of the claim in the pod."""
    request: LabelName | None = None
    """Request in the claim whose devices the container gets. Default: all of the claim's."""


class Resources(Model):
    """Requests, limits and claims of a container, as in a pod."""

    requests: ResourceMap = Field(default_factory=dict)
    """Amounts that the scheduler sets aside."""
    limits: ResourceMap = Field(default_factory=dict)
    """Amounts that the container may not exceed."""
    claims: Annotated[tuple[ContainerClaim, ...], Field(max_length=8), MapKeyed("name")] = ()
    """Devices by dynamic resource allocation: claims of spec.podTemplate.resourceClaims. Default: none."""


class ContainerPort(Model):
    """A port that the container listens on."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                f"self.containerPort != {API_PORT} && self.containerPort != {CONTROL_PORT}",
                f"may not be {API_PORT} or {CONTROL_PORT}: the engine of the same pod listens there",
                ".containerPort",
            ),
            lambda port: port.container_port not in (API_PORT, CONTROL_PORT),
        ),
    )

    name: (
        Annotated[
            str,
            Field(min_length=1, max_length=15),
            Matches(r"([a-z0-9]+-)*[a-z0-9]+", "must be a port name: a-z and 0-9, with single '-' between, at most 15"),
            Refuses(r"[0-9-]*", "must have a letter"),
            Refuses(
                f"{names.PORT_HTTP}|{names.PORT_CONTROL}",
                f"is a port of the engine's; accepted: any name but {names.PORT_HTTP}, {names.PORT_CONTROL}",
            ),
        ]
        | None
    ) = None
    """Name of the port. Default: none."""
    container_port: Annotated[int, Field(ge=1, le=65_535)]
    """Number of the port, unique in the list."""
    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    """Protocol. Default: TCP."""
    host_port: OnlyZero = None
    """Only 0, none: pods open no port of the node."""


_PORT: Final = IntOrString(
    least=1,
    most=65_535,
    pattern=r"([a-z0-9]+-)*[a-z0-9]+",
    longest=15,
    hint="must be the number of a port, 1 to 65535, or the name of one in ports",
)
PortRef = Annotated[int | str, _PORT]


class HTTPGet(Model):
    """Healthy is a status from 200 to 399."""

    path: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Path of the request. Default: /."""
    port: PortRef
    """Number or name of the port."""
    scheme: Literal["HTTP", "HTTPS"] | None = None
    """Scheme. Default: HTTP."""


class TCPSocket(Model):
    """Healthy is a connection."""

    port: PortRef
    """Number or name of the port."""


class GRPCCheck(Model):
    """Healthy is what gRPC's health protocol calls SERVING."""

    port: Annotated[int, Field(ge=1, le=65_535)]
    """Number of the port."""
    service: Annotated[str, Field(max_length=256)] | None = None
    """Service that is asked for. Default: the server."""


class ExecCheck(Model):
    """Healthy is exit code 0."""

    command: Annotated[tuple[Annotated[str, Field(max_length=4096)], ...], Field(min_length=1, max_length=32)]
    """Command that runs in the container."""


class Probe(Model):
    """How the kubelet asks a container."""

    checks: ClassVar[tuple[Check, ...]] = (exactly_one("httpGet", "tcpSocket", "grpc", "exec", noun="action"),)

    http_get: HTTPGet | None = None
    """An HTTP request."""
    tcp_socket: TCPSocket | None = None
    """A connection."""
    grpc: GRPCCheck | None = None
    """gRPC's health check."""
    exec: ExecCheck | None = None
    """A command in the container."""
    # Kubernetes keeps no 0 of this field, so what is rendered has none to miss.
    initial_delay_seconds: Annotated[
        Annotated[int, Field(ge=0, le=86_400)] | None, AfterValidator(lambda value: value or None)
    ] = None
    """Seconds before the first. Default: 0."""
    period_seconds: _Seconds | None = None
    """Seconds between two. Default: 10."""
    timeout_seconds: _Seconds | None = None
    """Seconds until no answer is a failure. Default: 1."""
    failure_threshold: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Failures in a row that count. Default: 3."""


class Capabilities(Model):
    """Only what is so anyway: all capabilities are dropped."""

    add: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=0)] = ()
    """Empty: no capability may be added."""
    drop: Annotated[tuple[Literal["ALL"], ...], Field(max_length=1)] = ()
    """`ALL`, which is so anyway."""


class ContainerSecurityContext(Model):
    """Whom a container runs as. It is never root, never privileged, and has no capabilities."""

    run_as_user: UserId | None = None
    """User id, above 0. Default: the pod's."""
    run_as_group: GroupId | None = None
    """Group id. Default: the pod's."""
    read_only_root_filesystem: bool = True
    """Whether it may write to mounted volumes alone. Default: true."""
    run_as_non_root: OnlyTrue = None
    """Only true, which is so anyway."""
    allow_privilege_escalation: OnlyFalse = None
    """Only false, which is so anyway."""
    privileged: OnlyFalse = None
    """Only false, which is so anyway."""
    capabilities: Annotated[Capabilities | None, AfterValidator(_unsaid)] = None
    """Only `drop: [ALL]`, which is so anyway."""


Words = Annotated[tuple[Annotated[str, Field(max_length=4096)], ...], Field(max_length=64)]


class Container(Model):
    """A container beside the engine, as in a pod. It is unprivileged, and its pod's address is the engine's, too."""

    name: Annotated[
        LabelName,
        Refuses(
            f"{names.CONTAINER_ENGINE}|{names.CONTAINER_PLUGIN}",
            f"is a container of Flyball's; accepted: any name but {names.CONTAINER_ENGINE}, {names.CONTAINER_PLUGIN}",
        ),
    ]
    """Name of the container, unique among containers and initContainers."""
    image: Image
    """Image of the container."""
    image_pull_policy: ImagePullPolicy | None = None
    """When the kubelet pulls the image. Default: Always for the tag `latest`, else IfNotPresent."""
    command: Words = ()
    """Entry point. Default: the image's."""
    args: Words = ()
    """Arguments of the entry point. Default: the image's."""
    working_dir: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Working directory. Default: the image's."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=32), MapKeyed("name")] = ()
    """Environment variables. Default: none."""
    ports: Annotated[tuple[ContainerPort, ...], Field(max_length=8), MapKeyed("containerPort")] = ()
    """Ports that it listens on. Default: none."""
    resources: Resources = Resources()
    """Requests, limits and claims. Default: none."""
    volume_mounts: Mounts = ()
    """Volumes of spec.podTemplate.volumes that it sees. Default: none."""
    startup_probe: Probe | None = None
    """Says when it has started. Default: at once."""
    readiness_probe: Probe | None = None
    """Says when it is ready; a pod is Ready when all of its containers are. Default: always."""
    liveness_probe: Probe | None = None
    """Says when it is to be restarted. Default: never."""
    security_context: ContainerSecurityContext = ContainerSecurityContext()
    """Whom it runs as."""


class InitContainer(Container):
    """A container that starts before the engine: one that ends, or with restartPolicy Always a sidecar that stays."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "has(self.restartPolicy)"
                " || !(has(self.startupProbe) || has(self.readinessProbe) || has(self.livenessProbe))",
                "must be Always where there are probes: one that ends has none",
                ".restartPolicy",
            ),
            lambda one: (
                one.restart_policy is not None
                or (one.startup_probe, one.readiness_probe, one.liveness_probe) == (None, None, None)
            ),
        ),
    )

    restart_policy: Literal["Always"] | None = None
    """Always: a sidecar that starts before the engine and ends after it. Default: the engine starts when it ended."""
