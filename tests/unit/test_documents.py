"""What documents say of this repository is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from flyball_engine.contract import MetricName
from flyball_lab.repository import ROOT

HAZARDS = "tests/engine/test_hazards.py"


def named_tests() -> list[str]:
    """`file::test` of every test that the page on hazards names."""
    page = (ROOT / "docs/hazards.md").read_text()
    alone = [f"{HAZARDS}::{name}" for name in re.findall(r"`(test_\w+)`", page)]
    return sorted({*alone, *re.findall(r"`(tests/[\w/]+\.py::test_\w+)`", page)})


@pytest.mark.parametrize("name", named_tests())
def test_a_test_that_the_page_on_hazards_names_is_there(name: str) -> None:
    path, test = name.split("::")
    assert re.search(rf"def {test}\(", (ROOT / path).read_text()), name


def test_every_hazard_that_is_shown_is_on_the_page() -> None:
    shown = re.findall(r"^def (test_\w+)\(shown", (ROOT / HAZARDS).read_text(), flags=re.MULTILINE)
    assert {f"{HAZARDS}::{name}" for name in shown} - set(named_tests()) == set()


def guards() -> list[str]:
    """`file::test` of every row of the threat model; a row names one at least."""
    page = (ROOT / "SECURITY.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| threat")]
    found = [re.findall(r"\[`(tests/[\w/]+\.py::\w+)`\]", row) for row in rows]
    assert all(found), "a row without a test"
    return [name for row in found for name in row]


@pytest.mark.parametrize("name", guards())
def test_a_test_that_the_threat_model_names_is_there(name: str) -> None:
    path, test = name.split("::")
    assert re.search(rf"(?:def|class) {test}\b", (ROOT / path).read_text()), name


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", page.read_text())
    gone = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert gone == [], "hack/docs looks at anchors, too"


def test_the_picker_of_the_example_scores_pods_by_a_metric_that_engines_have() -> None:
    plugins = yaml.safe_load((ROOT / "docs/examples/gateway/endpoint-picker.yaml").read_text())["plugins"]
    named = {one.get("name", one["type"]): one.get("parameters", {}) for one in plugins}
    (engine,) = named["core-metrics-extractor"]["engineConfigs"]
    (ours,) = engine["customMetrics"]
    assert ours["metricSpec"] == MetricName.HEADROOM_SECONDS
    assert named["headroom-scorer"]["attributeKey"] == ours["attributeKey"]
