"""Prefill/decode disaggregation, as a user states it: `spec.engine.kvTransfer`. Pure.

Some engines process prompts and make one token of each answer; others load the prompts' KV cache from them and make the
rest. Each of these roles is a service of its own. Which requests go where is a router's matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field, JsonValue

from flyball_operator.api.base import Model
from flyball_operator.api.rules import Constraint, Matches


class KVRole(StrEnum):
    """What an engine does with the KV cache of prompts: vLLM's kv_producer, kv_consumer and kv_both."""

    PRODUCER = "Producer"
    CONSUMER = "Consumer"
    BOTH = "Both"


class LoadFailurePolicy(StrEnum):
    """What becomes of a request whose KV cache cannot be loaded."""

    RECOMPUTE = "Recompute"
    FAIL = "Fail"


#: Most characters that a connector's own settings have as JSON: the command line of a container has room for them.
MOST_EXTRA: Final = 8192


@dataclass(frozen=True)
class _IsSmall(Constraint):
    """JSON of at most so many characters. The API server counts its first level alone."""

    most: int

    def objection(self, value: Mapping[str, Any]) -> str | None:
        """Its length, where that is too much."""
        length = len(json.dumps(value, separators=(",", ":")))
        return None if length <= self.most else f"has {length} characters as JSON; accepted: at most {self.most}"


def _of_any_fields(schema: dict[str, Any]) -> None:
    """What only the connector knows: the API server keeps all of it."""
    schema.pop("additionalProperties", None)
    schema["x-kubernetes-preserve-unknown-fields"] = True


class KVTransfer(Model):
    """How an engine hands on the KV cache of prompts, or loads it: vLLM's --kv-transfer-config."""

    role: KVRole
    """Producer: the engine processes prompts; a router ends each request there after one token. Consumer: it loads the
    prompts from producers, and makes the answers. Both: either, as with a cache that engines share."""
    connector: Annotated[
        str,
        Field(min_length=1, max_length=128),
        Matches(r"[A-Za-z_][A-Za-z0-9_]*", "must be the name of a class: letters, digits and '_'"),
    ]
    """vLLM's connector, such as NixlConnector or LMCacheConnectorV1. vLLM exits at the start if it has no such
    connector."""
    connector_module_path: (
        Annotated[
            str,
            Field(min_length=1, max_length=256),
            Matches(
                r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*",
                "must be the name of a Python module such as my_package.my_connector",
            ),
        ]
        | None
    ) = None
    """Python module of the image that has the connector. Default: none, the connector is one of vLLM's."""
    buffer_device: (
        Annotated[
            str,
            Field(min_length=1, max_length=16),
            Matches(r"[a-z]+", "must be a device that vLLM knows, such as cuda, cpu or xpu"),
        ]
        | None
    ) = None
    """Device that the connector buffers KV cache on. Default: vLLM's own, the device that the engine runs on."""
    load_failure_policy: LoadFailurePolicy | None = None
    """What becomes of a request whose KV cache cannot be loaded. Recompute: the engine processes the prompt itself.
    Fail: the request ends with an error. Default: vLLM's own, Fail."""
    extra_config: Annotated[
        dict[str, JsonValue],
        Field(max_length=64, json_schema_extra=_of_any_fields),
        _IsSmall(MOST_EXTRA),
    ] = Field(default_factory=dict)
    """Settings of the connector's own, by its names (vLLM's kv_connector_extra_config); at most 8192 characters as
    JSON. Default: none."""
