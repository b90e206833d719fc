"""InferenceService manifests: a good one, and ways to change it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from flyball_operator.api import names

Object = dict[str, Any]
DROP = object()
"""As a value: remove the field."""


def good(name: str = "chat", **changes: Any) -> Object:
    """A small valid InferenceService; `changes` are dotted paths with `__` for dots, from the root."""
    manifest: Object = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": "hf://Qwen/Qwen3-8B"},
            "engine": {"image": "vllm/vllm-openai:v0.32.0"},
            "objectives": [{"name": "ttft", "metric": "TimeToFirstToken", "threshold": "500ms"}],
        },
    }
    return edited(manifest, {path.replace("__", "."): value for path, value in changes.items()})


def edited(manifest: Object, changes: dict[str, Any]) -> Object:
    """A copy with values put at dotted paths; a number steps into a list."""
    result = copy.deepcopy(manifest)
    for path, value in changes.items():
        *parents, last = path.split(".")
        node: Any = result
        for step in parents:
            node = node[int(step)] if isinstance(node, list) else node.setdefault(step, {})
        if value is DROP:
            del node[last]
        elif isinstance(node, list):
            node[int(last)] = value
        else:
            node[last] = value
    return result


@dataclass(frozen=True)
class Wrong:
    """Changes to the good manifest, each field with a value that is refused and one that is accepted.

    `path` is the field the message must name, `says` what it must say. What the structural schema refuses, the API
    server words its own way: then `server` is what it must say.
    """

    id: str
    wrong: dict[str, Any]
    right: dict[str, Any]
    path: str
    says: str
    server: str = ""
