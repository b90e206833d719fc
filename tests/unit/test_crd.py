"""From pydantic to a structural schema: what is inlined, kept, dropped or refused, and that all of ours is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from flyball_operator.api import names
from flyball_operator.api.crd import (
    StructuralError,
    custom_resource_definition,
    hash_of,
    schema,
    schema_hash,
    structural,
)
from flyball_operator.api.rules import VALIDATIONS

Schema = dict[str, Any]


class Inner(BaseModel):
    """An inner model."""

    size: Annotated[int, Field(ge=1, le=9)] = 3
    label: str | None = None


class Outer(BaseModel):
    """An outer model."""

    inner: Inner = Inner()
    other: Annotated[Inner, Field(description="Described here.")]
    items: tuple[Inner, ...] = ()
    words: Annotated[dict[str, str], Field(max_length=4)] = Field(default_factory=dict)


class Tree(BaseModel):
    """A recursive model."""

    children: list[Tree] = []


class Choice(BaseModel):
    """A union that no structural schema can say."""

    value: int | list[str]


def nodes(node: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema in a schema, with its path."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from nodes(node[key], f"{path}[{key}]")


def test_references_are_inlined_with_what_stands_beside_them() -> None:
    properties = structural(Outer.model_json_schema())["properties"]
    assert properties["inner"]["description"] == "An inner model."
    assert properties["other"]["description"] == "Described here."
    assert properties["items"]["items"]["properties"]["size"]["maximum"] == 9


def test_optional_means_absent_and_defaults_are_given_in_full() -> None:
    properties = structural(Outer.model_json_schema())["properties"]
    assert properties["inner"]["properties"]["label"] == {"type": "string"}
    assert properties["inner"]["default"] == {"size": 3}
    assert "default" not in properties["items"]
    assert properties["words"] == {"type": "object", "maxProperties": 4, "additionalProperties": {"type": "string"}}


def test_what_a_structural_schema_cannot_say_is_refused() -> None:
    with pytest.raises(StructuralError, match="Tree refers to itself"):
        structural(Tree.model_json_schema())
    with pytest.raises(StructuralError, match="a union of 2 types"):
        structural(Choice.model_json_schema())


def test_everything_in_ours_is_bounded() -> None:
    """The API server estimates the cost of rules from the bounds, and etcd has none of its own."""
    bounds = {"string": "maxLength", "array": "maxItems", "integer": "maximum"}
    for path, node in nodes(schema()):
        if path in (".apiVersion", ".kind", ".metadata.name") or "enum" in node or node.get("format") == "date-time":
            continue
        bound = "maxProperties" if "additionalProperties" in node else bounds.get(node.get("type", ""))
        assert bound is None or bound in node, f"{path} has no {bound}"


def test_everything_in_ours_is_described() -> None:
    for path, node in nodes(schema()):
        for name, child in node.get("properties", {}).items():
            if (
                ".affinity" in path
                or ".tolerations" in path
                or ".labelSelector" in path
                or ".hostPath" in path
                or (name in ("metadata", "name") and path in ("", ".metadata"))
            ):
                continue
            assert child.get("description"), f"{path}.{name} is not described"


def test_the_status_has_no_defaults_but_a_generation_not_yet_seen_and_replicas_has_none_either() -> None:
    whole = schema()["properties"]
    assert {path: node["default"] for path, node in nodes(whole["status"]) if "default" in node} == {
        "": {"observedGeneration": 0},
        ".observedGeneration": 0,
    }
    assert "default" not in whole["spec"]["properties"]["replicas"]


def test_every_rule_has_words_of_its_own() -> None:
    for path, node in nodes(schema()):
        for rule in node.get(VALIDATIONS, ()):
            assert rule["message"], path
            assert "\n" not in rule["message"]


def test_the_document_says_the_hash_of_its_schema() -> None:
    annotations = custom_resource_definition()["metadata"]["annotations"]
    assert annotations == {names.ANNOTATION_SCHEMA_HASH: schema_hash()}


def reworded(node: Any) -> Any:
    """The same schema in other words."""
    if isinstance(node, list):
        return [reworded(one) for one in node]
    if not isinstance(node, dict):
        return node
    return {key: "other words" if _is_prose(key, value) else reworded(value) for key, value in node.items()}


def _is_prose(key: str, value: object) -> bool:
    return key in ("description", "message") and isinstance(value, str)


def test_prose_does_not_change_the_hash_and_a_limit_does() -> None:
    ours = schema()
    assert reworded(ours) != ours
    assert hash_of(reworded(ours)) == schema_hash()
    ours["properties"]["spec"]["properties"]["replicas"]["maximum"] -= 1
    assert hash_of(reworded(ours)) != schema_hash()
