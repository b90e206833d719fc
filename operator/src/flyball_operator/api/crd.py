"""The CustomResourceDefinition, made from the pydantic models.

pydantic writes JSON schema; the API server wants a *structural* schema: no references, no null branches, no titles, no
`additionalProperties` beside properties, defaults only where they mean something. This module is that difference, and
what stands around the schema: subresources, printer columns, the schema's hash. Pure.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from typing import Any, Final

from pydantic import JsonValue

from flyball_operator.api import names
from flyball_operator.api.rules import VALIDATIONS
from flyball_operator.api.v1alpha1 import InferenceService, InferenceServiceSpec, InferenceServiceStatus

Schema = dict[str, Any]

#: Keys of JSON schema that pass as they are.
_KEPT: Final = (
    "type",
    "format",
    "description",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
    VALIDATIONS,
)


class StructuralError(ValueError):
    """A model says something that a structural schema cannot say."""


def schema() -> Schema:
    """The structural schema of the whole object, for the caller to change."""
    return deepcopy(_schema())


@cache
def _schema() -> Schema:
    spec = structural(InferenceServiceSpec.model_json_schema())
    status = _status()
    rules = [check.rule for check in InferenceService.checks] + list(InferenceService.transitions)
    return {
        "description": _docstring(InferenceService),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Always {names.API_VERSION}."},
            "kind": {"type": "string", "description": f"Always {names.KIND}."},
            # Declared, so that a rule can blame it; more than the name may not be declared of the metadata.
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": spec,
            "status": status,
        },
        VALIDATIONS: [rule.to_json() for rule in rules],
    }


def _status() -> Schema:
    """The schema of the status, whose writers leave out what they do not know: no field but one has a default.

    kstatus takes an object without `observedGeneration` and conditions for done. So the API server adds a generation
    that no object has, until the reconciler writes its own.
    """
    status = without_defaults(structural(InferenceServiceStatus.model_json_schema()))
    status["properties"]["observedGeneration"]["default"] = 0
    return status | {"default": {"observedGeneration": 0}}


@cache
def schema_hash() -> str:
    """Short hash of the schema without its prose: what the operator needs the API server to serve."""
    return hash_of(_schema())


def hash_of(of: Schema) -> str:
    """Short hash of a schema without its prose."""
    text = json.dumps(_without_prose(of), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def custom_resource_definition(annotations: Mapping[str, str] | None = None) -> Schema:
    """The whole CRD, with `annotations` beside the schema's hash."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": names.CRD_NAME,
            "annotations": {names.ANNOTATION_SCHEMA_HASH: schema_hash(), **(annotations or {})},
            "labels": {names.LABEL_NAME: names.MANAGED_BY},
        },
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": list(names.SHORT_NAMES),
                "categories": ["flyball"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": _columns(),
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "schema": {"openAPIV3Schema": schema()},
                }
            ],
        },
    }


def structural(document: Schema) -> Schema:
    """A pydantic JSON schema as a structural one: references inlined, optional means absent.

    Raises `StructuralError` on a recursive model or on a union other than optional and int-or-string.
    """
    return _Structural(document.get("$defs", {})).convert(document, ())


def without_defaults(node: Schema) -> Schema:
    """The schema without any default."""
    return _map_schemas({key: value for key, value in node.items() if key != "default"}, without_defaults)


class _Structural:
    """One conversion; holds the definitions that references name."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions

    def convert(self, node: Schema, seen: tuple[str, ...]) -> Schema:
        """Convert one node below the references `seen`."""
        if "$ref" in node:
            return self._inline(node, seen)
        if "anyOf" in node:
            return self._union(node, seen)
        result: Schema = {key: node[key] for key in _KEPT if key in node}
        if "const" in node:
            result["enum"] = [node["const"]]
        if "description" in result:
            result["description"] = " ".join(result["description"].split())
        if result.get("type") == "integer":
            result["format"] = "int32" if node.get("maximum", 2**63) < 2**31 else "int64"
        self._children(node, result, seen)
        return _with_default(result, node.get("default"))

    def _inline(self, node: Schema, seen: tuple[str, ...]) -> Schema:
        name = node["$ref"].rsplit("/", 1)[-1]
        if name in seen:
            raise StructuralError(f"{name} refers to itself; a structural schema cannot")
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return self.convert(self._definitions[name] | beside, (*seen, name))

    def _union(self, node: Schema, seen: tuple[str, ...]) -> Schema:
        branches = [branch for branch in node["anyOf"] if branch.get("type") != "null"]
        if len(branches) != 1:
            raise StructuralError(f"a union of {len(branches)} types; a structural schema has one")
        beside = {key: value for key, value in node.items() if key != "anyOf"}
        return self.convert(branches[0] | beside, seen)

    def _children(self, node: Schema, result: Schema, seen: tuple[str, ...]) -> None:
        if "properties" in node:
            result["properties"] = {name: self.convert(child, seen) for name, child in node["properties"].items()}
        elif isinstance(node.get("additionalProperties"), dict):
            result["additionalProperties"] = self.convert(node["additionalProperties"], seen)
        if "items" in node:
            result["items"] = self.convert(node["items"], seen)
            result.setdefault("x-kubernetes-list-type", "atomic")


def _with_default(node: Schema, default: JsonValue) -> Schema:
    """Keep what a default says: scalars, and of an object its fields' defaults, in full: rules are tried on it."""
    if isinstance(default, dict):
        fields = node.get("properties", {}).items()
        default = {name: child["default"] for name, child in fields if "default" in child}
    if default in (None, "", [], {}):
        return node
    return node | {"default": default}


def _map_schemas(node: Schema, change: Any) -> Schema:
    """`node` with `change` applied to every schema directly below it."""
    result = dict(node)
    if "properties" in node:
        result["properties"] = {name: change(child) for name, child in node["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in node:
            result[key] = change(node[key])
    return result


def _without_prose(node: Schema) -> Schema:
    kept = {key: value for key, value in node.items() if key != "description"}
    if VALIDATIONS in node:
        kept[VALIDATIONS] = [rule["rule"] for rule in node[VALIDATIONS]]
    return _map_schemas(kept, _without_prose)


def _docstring(model: type) -> str:
    return " ".join((inspect.getdoc(model) or "").split())


def _columns() -> list[Schema]:
    ready = '.status.conditions[?(@.type=="Ready")]'
    available = '.status.conditions[?(@.type=="Available")]'
    setpoint = ".status.tuning.setpoint"
    return [
        _column("Ready", f"{ready}.status", "Whether all that this generation asks for runs and serves"),
        _column("Available", f"{available}.status", "Whether at least one pod serves, of whatever generation"),
        _column("Replicas", ".status.replicas", "Pods there are", kind="integer"),
        _column("Serving", ".status.readyReplicas", "Pods that serve", kind="integer"),
        _column("Objectives", ".status.objectivesMet", "Objectives met, of all"),
        _column("Active Seqs", f"{setpoint}.maxNumActiveSeqs", "Requests that may run at once", kind="integer"),
        _column("Scheduled Tokens", f"{setpoint}.maxNumScheduledTokens", "Tokens a step may process", kind="integer"),
        _column("Mode", ".spec.tuning.mode", "Disabled, Recommend or Auto"),
        _column("Age", ".metadata.creationTimestamp", "", kind="date"),
        _column("Reason", f"{ready}.reason", "Why it is ready or not", wide=True),
        _column("Model", ".spec.model.uri", "What is served", wide=True),
        _column("URL", ".status.url", "Address of the OpenAI API inside the cluster", wide=True),
    ]


def _column(name: str, path: str, description: str, *, kind: str = "string", wide: bool = False) -> Schema:
    column: Schema = {"name": name, "type": kind, "jsonPath": path}
    if description:
        column["description"] = description
    if wide:
        column["priority"] = 1
    return column
