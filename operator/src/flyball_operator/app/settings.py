"""Settings of the operator, from environment variables with the prefix FLYBALL_.

The string under a setting is what `python3 -m flyball_operator --help` says of it. Validated as a whole at start: a
wrong one ends the process with a message that names it, before anything is touched.
"""

from __future__ import annotations

import re
import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, HttpUrl, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

#: Begins the name of each setting's environment variable.
ENV_PREFIX: Final = "FLYBALL_"
#: Stands for every namespace of the cluster.
ALL_NAMESPACES: Final = "*"
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OWN_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


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


class Settings(BaseSettings):
    """What an operator process is started with."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore", use_attribute_docstrings=True)

    namespaces: Annotated[tuple[str, ...], NoDecode] = ()
    """Namespaces whose services are looked after, separated by commas; `*` for all. Default: the operator's own."""
    pod_namespace: str = ""
    """The operator's own namespace, where its Lease is. Default: the service account's."""
    pod_name: str = ""
    """Name of this process in Lease, events and logs. Default: the host's name."""
    prometheus_url: HttpUrl = HttpUrl("http://prometheus.monitoring:9090")
    """Prometheus that scrapes the engines. Where it cannot be reached limits hold, and a condition says so."""
    signing_key_file: Path | None = None
    """PEM file of the Ed25519 key that setpoints are signed with. Default: none; governed services are not accepted."""
    plugin_image: str = ""
    """Image of the init container that brings the engine plugin. Default: none; governed services are not accepted."""
    lease_name: str = "flyball-operator"
    """Name of the Lease that replicas elect their leader by."""
    metrics_port: Annotated[int, Field(ge=1, le=65_535)] = 8080
    """Port of /metrics, /healthz and /readyz, on all addresses."""
    tick_seconds: Annotated[float, Field(ge=0.5, le=60)] = 5.0
    """Seconds between two looks of the tuner at the metrics."""
    resync_seconds: Annotated[float, Field(ge=5, le=3600)] = 300.0
    """Seconds between two lists of everything, after which every service is looked at again, and what others
    changed is applied again."""
    workers: Annotated[int, Field(ge=1, le=64)] = 8
    """Services that are worked on at the same time."""
    log_level: LogLevel = LogLevel.INFO
    """Least level that is logged: DEBUG, INFO, WARNING or ERROR."""
    log_format: LogFormat = LogFormat.JSON
    """`json` or `text`."""

    @field_validator("namespaces", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("namespaces")
    @classmethod
    def _check_namespaces(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if ALL_NAMESPACES in value and len(value) > 1:
            raise ValueError("'*' stands for all namespaces and goes with no other")
        for item in value:
            if item != ALL_NAMESPACES and not _NAMESPACE.fullmatch(item):
                raise ValueError(f"{item!r} is no namespace name")
        return tuple(dict.fromkeys(value))

    @property
    def own_namespace(self) -> str:
        """The operator's own namespace: as set, else the service account's, else `default`."""
        if self.pod_namespace:
            return self.pod_namespace
        return _OWN_NAMESPACE_FILE.read_text().strip() if _OWN_NAMESPACE_FILE.exists() else "default"

    @property
    def watched(self) -> tuple[str | None, ...]:
        """Namespaces to watch; None stands for all of them."""
        if ALL_NAMESPACES in self.namespaces:
            return (None,)
        return self.namespaces or (self.own_namespace,)

    @property
    def instance(self) -> str:
        """Name of this process."""
        return self.pod_name or socket.gethostname()
