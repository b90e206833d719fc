"""Objects outside the namespace that pods name and that are not there: the conditions name object and field."""

from __future__ import annotations

from pathlib import Path

from support.cluster import apply, namespace
from support.operators import expect_condition, ungoverned_service
from support.tenants import operator

MISSING = {
    "priority": ("priorityClassName", "no PriorityClass with name not-there was found"),
    "runtime": ("runtimeClassName", 'RuntimeClass "not-there" not found'),
}


def test_a_missing_class_is_named_with_its_field(crd: Path, tmp_path: Path) -> None:
    with namespace("flyball-missing") as place, operator(place, tmp_path):
        for name, (field, _) in MISSING.items():
            apply(ungoverned_service(name, **{f"spec__podTemplate__{field}": "not-there"}), namespace=place)
        for name, (field, words) in MISSING.items():
            message = expect_condition(place, "Ready", "False", "PodsRefused", name=name)
            assert f"{words}; create it, or change spec.podTemplate.{field}" in message
