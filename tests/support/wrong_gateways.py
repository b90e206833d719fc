"""Wrong gateways, part of `wrong_manifests`."""

from __future__ import annotations

from typing import Any

from flyball_lab.harness.manifests import Wrong

_GATEWAY = "spec.gateway"
_PARENTS: dict[str, Any] = {"parentRefs": [{"name": "edge", "namespace": "infra", "sectionName": "https"}]}


def _host(wrong: str, right: str) -> Wrong:
    return Wrong(
        f"host name {wrong}",
        {_GATEWAY: _PARENTS | {"hostnames": [wrong]}},
        {_GATEWAY: _PARENTS | {"hostnames": [right]}},
        f"{_GATEWAY}.hostnames[0]",
        "must be a DNS name in lower case without port",
    )


def _picker(field: str, wrong: Any, right: Any, says: str, server: str = "") -> Wrong:
    picker = {"name": "picker"}
    return Wrong(
        f"picker {field} {wrong}",
        {_GATEWAY: _PARENTS | {"endpointPicker": picker | {field: wrong}}},
        {_GATEWAY: _PARENTS | {"endpointPicker": picker | {field: right}}},
        f"{_GATEWAY}.endpointPicker.{field}",
        says,
        server,
    )


WRONG_GATEWAYS = (
    Wrong(
        "a gateway without parents",
        {_GATEWAY: {"parentRefs": []}},
        {_GATEWAY: _PARENTS},
        f"{_GATEWAY}.parentRefs",
        "at least 1 item",
        "should have at least 1 items",
    ),
    Wrong(
        "a gateway in a namespace that cannot be",
        {_GATEWAY: {"parentRefs": [{"name": "edge", "namespace": "in.fra"}]}},
        {_GATEWAY: _PARENTS},
        f"{_GATEWAY}.parentRefs[0].namespace",
        "must be the name of a namespace",
    ),
    Wrong(
        "a request timeout in seconds",
        {_GATEWAY: _PARENTS | {"requestTimeout": "0s"}},
        {_GATEWAY: _PARENTS | {"requestTimeout": "GatewayDefault"}},
        f"{_GATEWAY}.requestTimeout",
        "'Unlimited' or 'GatewayDefault'",
        '"Unlimited", "GatewayDefault"',
    ),
    _host("https://llm.example.com", "llm.example.com"),
    _host("LLM.example.com", "*.example.com"),
    _picker("name", "Picker", "picker-1", "must be the name of a Service"),
    _picker("port", 0, 1, "greater than or equal to 1", "should be greater than or equal to 1"),
    _picker("failureMode", "FailSafe", "FailOpen", "'FailOpen' or 'FailClose'", '"FailOpen", "FailClose"'),
)
