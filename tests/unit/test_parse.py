"""Reading a service that anyone may have written: errors by field, a status that may be damaged."""

from __future__ import annotations

from typing import Any

import pytest

from flyball_lab.harness.manifests import Object, edited, good
from flyball_operator.api.parse import InvalidSpecError, NoObjectError, parse_service
from flyball_operator.api.v1alpha1 import ConditionType, Mode


def stored(manifest: Object | None = None, **parts: Any) -> Object:
    """A manifest as the API server returns it."""
    identity = {"namespace": "default", "uid": "u-1", "generation": 3}
    whole = manifest or good()
    return whole | {"metadata": whole["metadata"] | identity} | parts


def test_what_is_left_out_takes_its_default() -> None:
    service = parse_service(stored())
    assert service.metadata.generation == 3
    assert service.spec.tuning.mode is Mode.AUTO
    assert service.spec.replicas is None
    assert service.spec.objectives[0].threshold_seconds == 0.5
    assert service.spec.objectives[0].allowed_violations == pytest.approx(0.01)


def test_every_wrong_field_is_named_at_once() -> None:
    wrong = edited(good(), {"spec.engine.image": "a b", "spec.replicas": -1, "spec.objectives.0.target": "100"})
    with pytest.raises(InvalidSpecError) as refusal:
        parse_service(stored(wrong))
    fields = [error.split(":")[0] for error in refusal.value.errors]
    assert fields == ["spec.engine.image", "spec.replicas", "spec.objectives[0].target"]


def test_an_invalid_spec_still_says_whose_it_is_and_what_was_reported() -> None:
    wrong = stored(edited(good(), {"spec.replicas": -1}), status={"epoch": 4, "observedGeneration": 2})
    with pytest.raises(InvalidSpecError) as refusal:
        parse_service(wrong)
    assert refusal.value.metadata.name == "chat"
    assert refusal.value.status.epoch == 4


def test_errors_without_end_are_cut() -> None:
    wrong = edited(good(), {"spec.engine.env": [{"name": "1"} for _ in range(20)]})
    with pytest.raises(InvalidSpecError) as refusal:
        parse_service(stored(wrong))
    assert len(refusal.value.errors) == 9
    assert refusal.value.errors[-1] == "and 12 more"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("spec.engine.image", 5, "must be an image reference"),
        ("spec.engine.image", 5, "Write it in quotes"),
        ("spec.engine.image", None, "Input should be a valid string"),
        ("spec.podTemplate.resources", {"limits": {"cpu": 1.5}}, "such as 500m, 2, 16Gi or 1.5. Write it in quotes"),
        ("spec.scaling", {}, "maxReplicas: Field required (Most pods"),
        ("spec.engine", "vllm/vllm-openai", "spec.engine: Input should be a valid dictionary"),
    ],
)
def test_an_error_says_what_the_schema_knows_of_the_field(field: str, value: object, says: str) -> None:
    wrong = edited(good(), {field: value})
    with pytest.raises(InvalidSpecError) as refusal:
        parse_service(stored(wrong))
    assert says in str(refusal.value)
    assert value is not None or "quotes" not in str(refusal.value)


@pytest.mark.parametrize("spec", [None, [], "x", {}])
def test_a_spec_that_is_none_is_refused(spec: object) -> None:
    with pytest.raises(InvalidSpecError, match="spec"):
        parse_service(stored(spec=spec))


@pytest.mark.parametrize("raw", [{}, {"metadata": None}, {"metadata": {"name": "a"}}])
def test_without_an_identity_there_is_nothing_to_report_on(raw: Object) -> None:
    with pytest.raises(NoObjectError, match="metadata"):
        parse_service(raw)


def test_unknown_fields_are_those_of_a_newer_version() -> None:
    assert parse_service(stored(edited(good(), {"spec.fromTheFuture": {"a": 1}, "status": {"new": 1}})))


def test_a_damaged_status_loses_only_what_is_damaged() -> None:
    status = {
        "epoch": 7,
        "replicas": "two",
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Serving"},
            {"type": "FromTheFuture", "status": "True", "reason": "Unknown"},
            "nonsense",
        ],
        "tuning": {"epoch": 7, "generation": 12, "model": {"t0": 5}, "decisions": "none"},
    }
    read = parse_service(stored(status=status)).status
    assert (read.epoch, read.tuning.epoch, read.tuning.generation) == (7, 7, 12)
    assert [condition.type for condition in read.conditions] == [ConditionType.READY]
    assert read.replicas == 0
    assert read.tuning.model.t0 == "0"


@pytest.mark.parametrize("status", [None, [], "x", {"conditions": 3, "tuning": []}])
def test_no_status_is_an_empty_one(status: object) -> None:
    assert parse_service(stored(status=status)).status.conditions == ()
