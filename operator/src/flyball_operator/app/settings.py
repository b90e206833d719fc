"""Settings of the operator, from environment variables with the prefix FLYBALL_.

The string under a setting is what `python3 -m flyball_operator --help` says of it. Validated as a whole at start: a
wrong one ends the process with a message that names it, before anything is touched.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from enum import StrEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, HttpUrl, IPvAnyAddress, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from flyball_operator.api import names
from flyball_operator.api.quantities import parse_duration
from flyball_operator.api.shards import MOST_SHARDS
from flyball_operator.app.label_selector import check_selector
from flyball_operator.prometheus import access
from flyball_operator.reconcile.plan.adoption import AdoptionPolicy
from flyball_operator.reconcile.plan.network_policy import IngressPeers

#: Begins the name of each setting's environment variable.
ENV_PREFIX: Final = "FLYBALL_"
#: Stands for every namespace of the cluster.
ALL_NAMESPACES: Final = "*"
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SECRET: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_PERIOD: Final = re.compile(r"0s|[1-9][0-9]{0,5}[mh]")
_USERNAME: Final = re.compile(r"[^:\x00-\x1f\x7f]*")


class LogFormat(StrEnum):
    """JSON for machines, text for people."""

    JSON = "json"
    TEXT = "text"


class LogLevel(StrEnum):
    """Least level that is written."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class PrometheusSettings(BaseSettings):
    """How to ask Prometheus, for the operator and for `flyball replay`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
        # A wrong address may have a password in it.
        hide_input_in_errors=True,
    )

    prometheus_url: HttpUrl = HttpUrl("http://prometheus.monitoring:9090")
    """Prometheus that scrapes the engines. Where it cannot be reached limits hold, and a condition says so."""
    prometheus_bearer_token_file: Path | None = None
    """File of a bearer token to ask Prometheus with, read anew for each query."""
    prometheus_password_file: Path | None = None
    """File of the password of `FLYBALL_PROMETHEUS_USERNAME`, read anew for each query. Not with a bearer token."""
    prometheus_username: Annotated[str, Field(validate_default=True)] = ""
    """User name of basic authentication."""
    prometheus_headers_file: Path | None = None
    """File of further headers, read anew for each query: lines such as `X-Scope-OrgID: team-a`."""
    prometheus_ca_file: Path | None = None
    """PEM file of the only authorities whose certificates Prometheus may have. Default: those of the image."""
    prometheus_client_cert_file: Path | None = None
    """PEM file of a client certificate, read anew for each connection."""
    prometheus_client_key_file: Annotated[Path | None, Field(validate_default=True)] = None
    """PEM file of its key, not encrypted."""
    prometheus_insecure_skip_verify: bool = False
    """Take any certificate of Prometheus: whoever is between can read the credentials and answer in its place."""

    @field_validator("prometheus_url", mode="wrap")
    @classmethod
    def _check_url(cls, given: object, parse: Callable[[object], HttpUrl]) -> HttpUrl:
        return _plain_url(
            given,
            parse,
            such_as="http://prometheus.monitoring:9090",
            user=f"{_variable('prometheus_username')} and {_variable('prometheus_password_file')}",
        )

    @field_validator(
        "prometheus_bearer_token_file", "prometheus_password_file", "prometheus_headers_file", "prometheus_ca_file"
    )
    @classmethod
    def _check_file(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        check = {
            "prometheus_bearer_token_file": access.read_token,
            "prometheus_password_file": access.read_password,
            "prometheus_headers_file": access.read_headers,
            "prometheus_ca_file": access.check_authorities,
        }
        if value is not None and info.field_name is not None:
            check[info.field_name](value)
        return value

    @field_validator("prometheus_password_file")
    @classmethod
    def _check_one_way(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and info.data.get("prometheus_bearer_token_file") is not None:
            raise ValueError(f"goes not with {_variable('prometheus_bearer_token_file')}; accepted: one of them")
        return value

    @field_validator("prometheus_username")
    @classmethod
    def _check_username(cls, value: str, info: ValidationInfo) -> str:
        if not _USERNAME.fullmatch(value):
            raise ValueError("accepted: a user name without colons and control characters")
        if "prometheus_password_file" in info.data:
            _check_both(value or None, info.data["prometheus_password_file"], "prometheus_password_file")
        return value

    @field_validator("prometheus_client_key_file")
    @classmethod
    def _check_pair(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        certificate = info.data.get("prometheus_client_cert_file")
        _check_both(value, certificate, "prometheus_client_cert_file")
        if value is not None and certificate is not None:
            access.check_pair(certificate, value)
        return value

    @field_validator("prometheus_insecure_skip_verify")
    @classmethod
    def _check_verify(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("prometheus_ca_file") is not None:
            raise ValueError(f"goes not with {_variable('prometheus_ca_file')}; accepted: one of them")
        return value

    @property
    def prometheus_access(self) -> access.Access:
        """What Prometheus is asked with."""
        certificate, key = self.prometheus_client_cert_file, self.prometheus_client_key_file
        return access.Access(
            bearer_token_file=self.prometheus_bearer_token_file,
            username=self.prometheus_username,
            password_file=self.prometheus_password_file,
            headers_file=self.prometheus_headers_file,
            ca_file=self.prometheus_ca_file,
            client_certificate=(certificate, key) if certificate is not None and key is not None else None,
            insecure_skip_verify=self.prometheus_insecure_skip_verify,
        )


def problems(error: ValidationError) -> Iterator[str]:
    """What is wrong with settings, each with the name of its variable, and without what it was."""
    for item in error.errors():
        yield f"{_variable('_'.join(map(str, item['loc'])))}: {item['msg'].removeprefix('Value error, ')}"


def _variable(name: str) -> str:
    return f"{ENV_PREFIX}{name.upper()}"


def _plain_url(given: object, parse: Callable[[object], HttpUrl], *, such_as: str, user: str = "none") -> HttpUrl:
    """The URL, without a user, query and fragment. `user`: how else to give a user name and password."""
    try:
        value = parse(given)
    except ValidationError:
        raise ValueError(f"is no URL such as {such_as}") from None
    if value.username is not None or value.password is not None:
        raise ValueError(f"has a user name or password in it; accepted: {user}")
    if value.query is not None or value.fragment is not None:
        raise ValueError(f"has a query or fragment; accepted: a URL such as {such_as}")
    return value


def _check_both(value: object, other: object, name: str) -> None:
    """Raise `ValueError` if only one of two is set that belong together."""
    if value is None and other is not None:
        raise ValueError(f"is missing; {_variable(name)} needs it")
    if value is not None and other is None:
        raise ValueError(f"needs {_variable(name)}, too; accepted: both or none")


class Settings(PrometheusSettings):
    """What an operator process is started with."""

    namespaces: Annotated[tuple[str, ...], NoDecode] = ()
    """Namespaces whose services are looked after, separated by commas; `*` for all. Default: the operator's own."""
    watch_namespace_selector: str = ""
    """Label selector as kubectl takes it, such as `team=ml,tier in (a,b)`: namespaces with these labels are looked
    after, in place of `FLYBALL_NAMESPACES`. They come and go while the operator runs."""
    pod_namespace: str = ""
    """The operator's own namespace, where its Lease is. Default: the service account's."""
    pod_name: str = ""
    """Name of this process in Lease, events and logs. Default: the host's name."""
    signing_key_file: Path | None = None
    """PEM file of the Ed25519 key that setpoints are signed with, read anew when it changes. Default: none; without
    `FLYBALL_SIGNING_KEY_SECRET` governed services are not accepted."""
    signing_key_secret: str = ""
    """Secret in the operator's own namespace in which it makes and rotates that key itself. It then writes the public
    keys to a ConfigMap in each namespace of services. Not with `FLYBALL_SIGNING_KEY_FILE`."""
    signing_key_rotation_period: str = "720h"
    """Age at which a key in `FLYBALL_SIGNING_KEY_SECRET` is replaced: whole minutes or hours, or 0s for never."""
    plugin_image: str = ""
    """Image of the init container that brings the engine plugin. Default: none; governed services are not accepted."""
    network_policy: Annotated[IngressPeers | None, NoDecode] = None
    """JSON of who may connect to engine pods: `{"api": [...], "control": [...]}`, each a list of peers as in a
    NetworkPolicy. Default: none; no NetworkPolicy is made."""
    adopt: Annotated[AdoptionPolicy | None, NoDecode] = None
    """JSON of how services adopt a new pod template by themselves: `{"maxConcurrent": 1, "after": "720h",
    "window": {"start": "22:00", "duration": "4h", "days": ["Sat", "Sun"]}}`, in UTC; without `days` each day, without
    `window` always, without `after` at any age of theirs. Default: not at all."""
    lease_name: str = "flyball-operator"
    """Name of the Lease that replicas elect their leader by."""
    shards: Annotated[int, Field(ge=1, le=MOST_SHARDS)] = 1
    """Shares that all services are divided into, each of which one replica looks after, up to 64. The second has the
    Lease `FLYBALL_LEASE_NAME`-shard-1, and so on. The same for all replicas."""
    replicas: Annotated[int, Field(ge=1)] = 1
    """Replicas that there should be: each holds its share of the shards."""
    metrics_port: Annotated[int, Field(ge=1, le=65_535)] = 8080
    """Port of /metrics, /healthz and /readyz, on all addresses."""
    console_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Port of the console; 0: there is none."""
    console_address: IPvAnyAddress = IPv4Address("127.0.0.1")
    """Address that the console listens on. It has no login: on all addresses, whoever reaches the pod can read it."""
    tracing_endpoint: HttpUrl | None = None
    """OpenTelemetry collector that spans of decisions are sent to, by OTLP over HTTP, such as
    http://collector.observability:4318. Default: none."""
    tick_seconds: Annotated[float, Field(ge=0.5, le=60)] = 5.0
    """Seconds between two looks of the tuner at the metrics."""
    resync_seconds: Annotated[float, Field(ge=5, le=3600)] = 300.0
    """Seconds between two lists of everything, after which every service is looked at again, and what others
    changed is applied again."""
    workers: Annotated[int, Field(ge=1, le=64)] = 16
    """Services of a shard that are worked on at the same time. They share lists, so more of them take less."""
    log_level: LogLevel = LogLevel.INFO
    """Least level that is logged: DEBUG, INFO, WARNING or ERROR."""
    log_format: LogFormat = LogFormat.JSON
    """`json` or `text`."""

    @field_validator("tracing_endpoint", mode="wrap")
    @classmethod
    def _check_endpoint(cls, given: object, parse: Callable[[object], HttpUrl]) -> HttpUrl | None:
        return None if given is None else _plain_url(given, parse, such_as="http://collector.observability:4318")

    @field_validator("namespaces", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("network_policy", "adopt", mode="before")
    @classmethod
    def _read_json(cls, value: object) -> object:
        return json.loads(value) if isinstance(value, str) else value

    @field_validator("namespaces")
    @classmethod
    def _check_namespaces(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if ALL_NAMESPACES in value and len(value) > 1:
            raise ValueError("'*' stands for all namespaces and goes with no other")
        for item in value:
            if item != ALL_NAMESPACES and not _NAMESPACE.fullmatch(item):
                raise ValueError(f"{item!r} is no namespace name")
        return tuple(dict.fromkeys(value))

    @field_validator("watch_namespace_selector")
    @classmethod
    def _check_selector(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("namespaces"):
            raise ValueError(f"goes not with {_variable('namespaces')}; accepted: one of them")
        check_selector(value)
        return value

    @field_validator("signing_key_secret")
    @classmethod
    def _check_secret(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("signing_key_file") is not None:
            raise ValueError(f"goes not with {_variable('signing_key_file')}; accepted: one of them")
        if value and not _SECRET.fullmatch(value):
            raise ValueError("is no name of a Secret; accepted: lower case letters, digits, - and .")
        return value

    @field_validator("signing_key_rotation_period")
    @classmethod
    def _check_period(cls, value: str) -> str:
        if not _PERIOD.fullmatch(value):
            raise ValueError("accepted: whole minutes or hours such as 720h, or 0s for never")
        return value

    @property
    def rotation_period(self) -> timedelta:
        """Age at which a key that the operator made is replaced; zero is never."""
        return timedelta(seconds=float(parse_duration(self.signing_key_rotation_period)))

    @property
    def own_namespace(self) -> str:
        """The operator's own namespace: as set, else the service account's, else `default`."""
        if self.pod_namespace:
            return self.pod_namespace
        file = names.OWN_NAMESPACE_FILE
        return file.read_text().strip() if file.exists() else "default"

    @property
    def watched(self) -> tuple[str | None, ...]:
        """Namespaces to watch that are known from the start; None stands for all of them."""
        if self.watch_namespace_selector:
            return ()
        if ALL_NAMESPACES in self.namespaces:
            return (None,)
        return self.namespaces or (self.own_namespace,)

    @property
    def instance(self) -> str:
        """Name of this process."""
        return self.pod_name or socket.gethostname()
