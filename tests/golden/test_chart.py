"""What the chart renders to, for five sets of values, and that generated files are current."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from flyball_lab.benches.tick import cost
from flyball_lab.repository import ROOT
from flyball_lab.tools import generate
from flyball_operator.api import names
from support import helm
from support.helm import VALUE_SETS, Object, render

FOLDER = ROOT / "tests/golden/chart"
#: Made anew at each rendering without a cluster.
SECRET_VALUE = "(a key)"
#: How the names of ConfigMaps begin that hold a generated file.
DASHBOARDS = "flyball-dashboard-"


def golden_text(rendered: list[Object]) -> str:
    """YAML in a stable order, without what changes from run to run; what has a file of its own is named only."""
    kept = []
    for one in rendered:
        if one["kind"] == "Secret":
            one["data"] = dict.fromkeys(one["data"], SECRET_VALUE)
        if one["kind"] == "CustomResourceDefinition":
            one["spec"] = "(crds/)"
        if one["kind"] == "ConfigMap" and one["metadata"]["name"].startswith(DASHBOARDS):
            one["data"] = dict.fromkeys(one["data"], "(charts/flyball/files/dashboards)")
        kept.append(one)
    kept.sort(key=lambda one: (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]))
    return yaml.safe_dump_all(kept, sort_keys=False, width=120)


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_the_chart_renders_as_committed(value_set: str, rewrite: bool) -> None:
    path = FOLDER / f"{value_set}.yaml"
    text = golden_text(render(helm.values(value_set)))
    if rewrite:
        path.write_text(text)
    assert text == path.read_text()


def test_the_generated_files_are_current(tmp_path: Path) -> None:
    generate.main(tmp_path)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    said = {path.relative_to(ROOT) for path in (ROOT / "docs/reference").glob("*.md")}
    dashboards = {path.relative_to(ROOT) for path in (ROOT / "charts/flyball/files/dashboards").glob("*.json")}
    assert made.keys() >= said | dashboards | {Path(f"crds/{names.CRD_NAME}.yaml")}
    assert [str(path) for path, text in made.items() if text != (ROOT / path).read_text()] == []


def test_ticks_are_measured_in_the_environment_of_the_chart() -> None:
    (operator,) = helm.of_kind(render({}), "Deployment")
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert {name: environment.get(name) for name in cost.SETTINGS} == cost.SETTINGS


def test_the_chart_installs_the_committed_crd_and_keeps_it() -> None:
    (ours,) = helm.of_kind(render({}), "CustomResourceDefinition")
    committed = yaml.safe_load((ROOT / f"crds/{names.CRD_NAME}.yaml").read_text())
    assert ours["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
    assert ours == committed
