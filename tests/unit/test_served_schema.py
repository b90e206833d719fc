"""An operator works with the CRD of a later version, which has more, and says what an earlier one's lacks."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from flyball_operator.api import names
from flyball_operator.api.crd import custom_resource_definition, schema
from flyball_operator.api.served_schema import lacked, lacking

SPEC = ("properties", "spec", "properties")
BATCHING = (*SPEC, "batching")
MODES = (*SPEC, "tuning", "properties", "mode", "enum")
MAX_NUM_SEQS = (*BATCHING, "properties", "maxNumSeqs")


def at(node: Any, *path: str) -> Any:
    for step in path:
        node = node[step]
    return node


def test_the_same_schema_and_one_with_more_lack_nothing() -> None:
    later = deepcopy(schema())
    assert not list(lacking(schema(), later))
    at(later, *BATCHING, "properties")["maxNumLater"] = {"type": "integer"}
    at(later, "properties", "status", "properties")["later"] = {"type": "object", "required": ["at"]}
    at(later, *MODES).append("Later")
    assert not list(lacking(schema(), later))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda one: at(one, *BATCHING, "properties").pop("maxNumSeqs"), ["spec.batching.maxNumSeqs"]),
        (lambda one: at(one, *MAX_NUM_SEQS).update(type="string"), ["spec.batching.maxNumSeqs"]),
        (lambda one: at(one, *BATCHING).update(required=["maxNumSeqs"]), ["spec.batching.maxNumSeqs"]),
        (
            lambda one: at(one, *MODES).remove("Auto"),
            ["spec.tuning.mode"],
        ),
        (
            lambda one: at(one, *SPEC, "objectives", "items", "properties").pop("metric"),
            ["spec.objectives[].metric"],
        ),
        (lambda one: at(one, "properties").pop("status"), ["status"]),
    ],
)
def test_what_is_not_there_is_told_by_its_path(change: Any, told: list[str]) -> None:
    served = deepcopy(schema())
    change(served)
    assert list(lacking(schema(), served)) == told


def test_a_part_that_takes_anything_lacks_nothing() -> None:
    served = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert not list(lacking(schema(), served))


def test_of_a_crd_the_hash_tells_first_then_its_fields() -> None:
    found = custom_resource_definition()
    assert lacked(found, most=2) is None
    found["metadata"]["annotations"][names.ANNOTATION_SCHEMA_HASH] = "another"
    assert lacked(found, most=2) == ()
    served = at(found, "spec")["versions"][0]["schema"]["openAPIV3Schema"]
    for field in ("tuning", "batching", "model"):
        del at(served, *SPEC)[field]
    assert len(lacked(found, most=2) or ()) == 2
    assert set(lacked(found, most=5) or ()) == {"spec.tuning", "spec.batching", "spec.model"}
    found["spec"]["versions"] = []
    assert lacked(found, most=2) == (f"version {names.VERSION}",)
