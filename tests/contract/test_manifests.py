"""Every rule of the API has a manifest that breaks it and a neighbour that keeps it: here, for our parser."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from flyball_lab.harness.manifests import Object, Wrong, edited, good
from flyball_lab.repository import ROOT
from flyball_operator.api import names
from flyball_operator.api.parse import InvalidSpecError, parse_service
from flyball_operator.api.service_spec import InferenceServiceSpec
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.tuning.metrics import TunerMetrics
from support.wrong_manifests import WRONG

EXAMPLES = [
    *sorted((ROOT / "docs/examples").glob("*.yaml")),
    ROOT / "docs/examples/existing-engines/service.yaml",
    ROOT / "engine/lab/src/flyball_lab/demo/chat.yaml",
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: First keys of snippets of other things: jobs of Prometheus, values of the chart, a ConfigMap.
OTHER_SNIPPETS = {"relabel_configs", "metrics", "runAsAssignedUser", "data"}


def snippets() -> dict[str, Object]:
    """The snippets in YAML of all pages, by page and line."""
    found = {}
    for page in PAGES:
        text = page.read_text()
        for block in re.finditer(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, block.start()) + 1
            found[f"{page.relative_to(ROOT)}:{line}"] = yaml.safe_load(block[1])
    return {where: snippet for where, snippet in found.items() if next(iter(snippet)) not in OTHER_SNIPPETS}


SNIPPETS = snippets()


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


@pytest.mark.parametrize("where", SNIPPETS)
def test_the_snippets_of_pages_are_accepted(where: str) -> None:
    """A part of a spec is read as an edit of a good one."""
    snippet = SNIPPETS[where]
    if "kind" in snippet:
        assert read(snippet)
        return
    part, fields = snippet.get("spec", snippet), {field.alias for field in InferenceServiceSpec.model_fields.values()}
    assert part.keys() <= fields, "what is it a snippet of?"
    base = good()
    base["spec"] |= {name: base["spec"].get(name, {}) | value for name, value in part.items()}
    assert read(base)


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
