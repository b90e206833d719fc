"""What documents say of this repository is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from flyball_engine.contract import MetricName
from flyball_lab.repository import ROOT
from support.sentences import sentences, words

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


#: Words that a sentence may have.
LONGEST = 30


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_of_a_page_are_short(page: Path) -> None:
    long = [f"{words(one)} words: {one}" for one in sentences(page.read_text()) if words(one) > LONGEST]
    assert long == [], "of a generated page, the source is to be mended"


def test_code_is_a_word_and_list_table_and_heading_end_a_sentence() -> None:
    page = """# A heading
One `two words` [three](four.md): (five). Six
seven.

- eight
  nine
- ten | no cell

|a cell|`b | c` \\| d|

```
no prose
```
"""
    found = ["# A heading", "One code three: (five).", "Six seven.", "- eight nine", "- ten | no cell"]
    assert list(sentences(page)) == [*found, "a cell", "code \\| d"]
    assert [words(one) for one in found] == [2, 4, 2, 2, 3]


def test_every_example_is_named_on_a_page() -> None:
    written = "\n".join(page.read_text() for page in PAGES)
    examples = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs/examples").rglob("*") if path.is_file()]
    assert examples
    assert [str(path) for path in examples if str(path) not in written] == []


def test_the_picker_of_the_example_scores_pods_by_a_metric_that_engines_have() -> None:
    plugins = yaml.safe_load((ROOT / "docs/examples/gateway/endpoint-picker.yaml").read_text())["plugins"]
    named = {one.get("name", one["type"]): one.get("parameters", {}) for one in plugins}
    (engine,) = named["core-metrics-extractor"]["engineConfigs"]
    (ours,) = engine["customMetrics"]
    assert ours["metricSpec"] == MetricName.HEADROOM_SECONDS
    assert named["headroom-scorer"]["attributeKey"] == ours["attributeKey"]
