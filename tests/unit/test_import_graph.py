"""No import leads back in a circle, between files of distributions and tests alike; what is pure is held to be."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from flyball_lab.repository import ROOT
from support.imports import import_statements

SOURCES = ("operator/src", "engine/src", "engine/lab/src")
Graph = Mapping[str, set[str]]


def modules(*folders: Path) -> dict[str, Path]:
    """Files by the name that they are imported by."""
    return {
        ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in folders
        for path in folder.rglob("*.py")
    }


def graph(found: Mapping[str, Path]) -> Graph:
    """What each module imports of the others, in functions too."""
    return {name: {one for one in _imported(path) if one in found} - {name} for name, path in found.items()}


@cache
def _imported(path: Path) -> tuple[str, ...]:
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield node.module


def circle(imports: Graph) -> list[str]:
    """One circle, empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_import_leads_back_in_a_circle() -> None:
    imports = graph(modules(*(ROOT / folder for folder in SOURCES), ROOT / "tests"))
    assert sum(map(len, imports.values())) > len(imports), "what imports nothing was not read"
    assert circle(imports) == []


def test_the_distributions_import_no_test() -> None:
    tests = modules(ROOT / "tests")
    ours = modules(*(ROOT / folder for folder in SOURCES))
    imports = graph(tests | ours)
    assert {name: found for name in ours if (found := imports[name] & tests.keys())} == {}


def test_operator_and_plugin_are_held_to_be_pure_where_they_say_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (pure,) = (one for one in project["tool"]["importlinter"]["contracts"] if one["id"] == "pure")
    held = tuple(f"{name}." for name in pure["source_modules"])
    said = re.compile(r"^PURE\.|\bPure[.,:;]")
    found = modules(ROOT / "operator/src", ROOT / "engine/src")
    by_word = {name for name, path in found.items() if said.search(_docstring(path))}
    assert len(by_word) > 100, "docstrings were not read"
    assert {name for name in by_word if not f"{name}.".startswith(held)} == set()


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


@pytest.mark.parametrize(
    "last", ["from house import hall\n", "import house.hall\n", "def late():\n    from house.hall import door\n"]
)
def test_a_circle_is_found(tmp_path: Path, last: str) -> None:
    house = tmp_path / "house"
    house.mkdir()
    for name, text in {"hall": "import house.attic\n", "attic": "from house.cellar import x\n", "cellar": last}.items():
        (house / f"{name}.py").write_text(text)
    assert set(circle(graph(modules(tmp_path)))) == {"house.hall", "house.attic", "house.cellar"}
