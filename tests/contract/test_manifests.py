"""Every rule of the API has a manifest that breaks it and a neighbour that keeps it: here, for our parser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from flyball_lab.harness.manifests import Object, Wrong, edited, good
from flyball_lab.repository import ROOT
from flyball_operator.api import names
from flyball_operator.api.parse import InvalidSpecError, parse_service
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.tuning.metrics import TunerMetrics
from support.wrong_manifests import WRONG

EXAMPLES = [
    *sorted((ROOT / "docs/examples").glob("*.yaml")),
    ROOT / "docs/examples/existing-engines/service.yaml",
    ROOT / "engine/lab/src/flyball_lab/demo/chat.yaml",
]


def read(manifest: Object) -> InferenceService:
    identity = {"namespace": "default", "uid": "6d0f6d62-0000-4000-8000-000000000000"}
    return parse_service(manifest | {"metadata": identity | manifest["metadata"]})


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.id)
def test_a_wrong_manifest_is_refused_by_name(case: Wrong) -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        read(edited(good(), case.wrong))
    assert any(error.startswith(case.path) and case.says in error for error in refusal.value.errors), refusal.value


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.id)
def test_its_neighbour_is_accepted(case: Wrong) -> None:
    assert read(edited(good(), case.right))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_accepted(path: Path) -> None:
    # The demo's has a place where its image is filled in.
    found = [*yaml.safe_load_all(path.read_text().replace("ENGINE_IMAGE", "engine:1"))]
    services = [manifest for manifest in found if manifest["kind"] == names.KIND]
    assert services
    assert all(map(read, services))


def test_each_case_stands_once() -> None:
    ids = [case.id for case in WRONG]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("path", sorted((ROOT / "docs/examples/autoscaler").glob("*.yaml")), ids=lambda path: path.stem)
def test_other_autoscalers_scale_the_service_by_a_metric_that_there_is(path: Path) -> None:
    manifest = yaml.safe_load(path.read_text())
    target = manifest["spec"]["scaleTargetRef"]
    assert (target["apiVersion"], target["kind"]) == (names.API_VERSION, names.KIND)
    registry = CollectorRegistry()
    TunerMetrics(registry)
    assert "flyball_operator_desired_replicas" in {family.name for family in registry.collect()}
    assert "flyball_operator_desired_replicas" in json.dumps(manifest["spec"])
