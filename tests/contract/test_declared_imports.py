"""Every third-party module that a distribution imports is declared in its pyproject.toml.

Each part is imported whole in a process that refuses what its declarations, and what those need in turn, do not hold.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.imports import import_statements

ROOT = Path(__file__).parents[2]
#: Folders of the distributions, by name.
FOLDERS = {"flyball-operator": "operator", "flyball-engine": "engine", "flyball-lab": "engine/lab"}
SOURCES = {name: ROOT / folder / "src" for name, folder in FOLDERS.items()}
#: What only vLLM's own environment holds. The plugin, and what runs beside it there, import it undeclared.
INSIDE_VLLM = {"vllm", "fastapi", "huggingface_hub", "boto3", "botocore", "opentelemetry"}
#: Modules that cannot be imported here, and what of the extra `padded` or of vLLM's environment they need at once.
NOT_HERE = {
    "flyball_lab.harness.model_runner": "vllm",
    "flyball_lab.harness.scheduler_scenarios": "vllm",
    "flyball_lab.harness.scenario_scheduler": "vllm",
    "flyball_lab.padded.generator": "torch",
    "flyball_lab.tools.make_encoder": "torch",
    "flyball_lab.tools.padded_encoder": "torch",
    "flyball_lab.tools.step_hooks": "vllm",
    "flyball_lab.tools.vllm_encoder": "vllm",
}


@dataclass(frozen=True)
class Part:
    """Rooms of a distribution that need its dependencies and those of these extras; no rooms: all that is in it."""

    distribution: str
    extras: tuple[str, ...] = ()
    rooms: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.distribution}[{','.join(self.extras)}]" if self.extras else self.distribution

    @property
    def files(self) -> dict[str, Path]:
        """Its modules by name, but for those that run when they are imported."""
        folder = SOURCES[self.distribution]
        found = {_module(path, folder): path for path in sorted(folder.rglob("*.py")) if path.name != "__main__.py"}
        return {name: path for name, path in found.items() if not self.rooms or _room(name) in self.rooms}

    @property
    def importable(self) -> list[str]:
        return [name for name in self.files if name not in NOT_HERE]

    def declared(self, *, but: str = "") -> list[Requirement]:
        """What pyproject.toml says, without the requirement of this name."""
        project = _project(self.distribution)
        lines = [*project["dependencies"], *(line for extra in self.extras for line in _extra(project, extra))]
        return [one for one in map(Requirement, lines) if one.name != but]


def _module(path: Path, folder: Path) -> str:
    return ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")


def _room(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


@cache
def _project(distribution: str) -> dict[str, Any]:
    document = tomllib.loads((ROOT / FOLDERS[distribution] / "pyproject.toml").read_text(encoding="utf-8"))
    project: dict[str, Any] = document["project"]
    return project


def _extra(project: dict[str, Any], extra: str) -> list[str]:
    lines: list[str] = project["optional-dependencies"][extra]
    return lines


PARTS = (
    Part("flyball-operator"),
    Part("flyball-engine"),
    Part("flyball-lab", rooms=("", "openai", "quantiles", "repository", "simulator", "sizing")),
    Part("flyball-lab", extras=("pages",), rooms=("benchmark", "pages")),
    Part("flyball-lab", extras=("padded",), rooms=("padded",)),
    Part("flyball-lab", extras=("dashboards",), rooms=("dashboards",)),
    Part(
        "flyball-lab",
        extras=("benches", "dashboards", "padded", "pages"),
        rooms=("baselines", "benches", "demo", "harness", "tools"),
    ),
)

#: Imports each of the modules, where a module that is refused cannot be found. Prints the first failure.
IMPORTER = """
import importlib, json, sys

asked = json.load(sys.stdin)
sys.path[:0] = asked["sources"]
refused = frozenset(asked["refused"])


class Refuser:
    def find_spec(self, name, path=None, target=None):
        if name in refused:
            raise ModuleNotFoundError(f"{name} is not declared", name=name)


sys.meta_path.insert(0, Refuser())
assert not refused & sys.modules.keys(), refused & sys.modules.keys()
for module in asked["modules"]:
    try:
        importlib.import_module(module)
    except ImportError as error:
        sys.exit(f"{module}: {error}")
"""


@cache
def _providers() -> dict[str, frozenset[str]]:
    """Distributions by the top-level modules that they hold, ours among them."""
    found = {module: {canonicalize_name(one) for one in names} for module, names in _installed().items()}
    ours = {name.replace("-", "_"): {name} for name in FOLDERS}
    return {module: frozenset(names) for module, names in (found | ours).items()}


def _installed() -> dict[str, list[str]]:
    return {module: list(names) for module, names in metadata.packages_distributions().items()}


def closure(declared: Sequence[Requirement]) -> set[str]:
    """Names of the distributions that come with these requirements, theirs among them."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    left = [(one, extra) for one in declared for extra in ("", *one.extras)]
    while left:
        requirement, extra = left.pop()
        name = canonicalize_name(requirement.name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found.add(name)
        for one in _requirements(name):
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                left += [(one, inner) for inner in ("", *one.extras)]
    return found


@cache
def _requirements(name: str) -> tuple[Requirement, ...]:
    """Of a distribution, ours or installed; none of one that is not here, as torch."""
    if name in FOLDERS:
        return tuple(Part(name).declared())
    try:
        return tuple(map(Requirement, metadata.requires(name) or ()))
    except metadata.PackageNotFoundError:
        return ()


def failure(part: Part, declared: Sequence[Requirement], modules: Sequence[str]) -> str:
    """What of the modules of a part cannot be imported where only this is declared; empty if all can."""
    held = {part.distribution, *closure(declared)}
    asked = {
        "sources": [str(folder) for folder in SOURCES.values()],
        "refused": sorted(module for module, names in _providers().items() if not names & held),
        "modules": modules,
    }
    # In isolation: the paths and warnings of this process are not those of an installed distribution.
    done = subprocess.run(
        [sys.executable, "-I", *_where_compiled(), "-c", IMPORTER],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0 or done.stderr
    return done.stderr


def _where_compiled() -> list[str]:
    """The option for what was compiled: in isolation the variable counts for nothing, and all is compiled anew."""
    return [f"-Xpycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else []


def imported(part: Part) -> Iterator[tuple[str, str]]:
    """Top-level modules that the sources name, in functions too, and where."""
    for name, path in part.files.items():
        for node in import_statements(path):
            if isinstance(node, ast.Import):
                yield from ((alias.name.partition(".")[0], name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                yield node.module.partition(".")[0], name


def undeclared(part: Part, declared: Sequence[Requirement]) -> set[tuple[str, str]]:
    """Modules that no declared distribution holds itself, and where they are imported."""
    names = {part.distribution, *(canonicalize_name(one.name) for one in declared)}
    known = sys.stdlib_module_names | INSIDE_VLLM
    return {
        (module, where)
        for module, where in imported(part)
        if module not in known and not _providers().get(module, frozenset((module,))) & names
    }


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_all_of_it_can_be_imported_with_what_is_declared(part: Part) -> None:
    assert failure(part, part.declared(), part.importable) == ""


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_what_is_imported_is_declared_where_it_is_imported(part: Part) -> None:
    assert undeclared(part, part.declared()) == set()


@pytest.mark.parametrize(
    ("part", "without"),
    list(
        zip(
            PARTS,
            (
                "pydantic-settings",
                "cachetools",
                "flyball-engine",
                "matplotlib",
                "torch",
                "grafana-foundation-sdk",
                "rich",
            ),
            strict=True,
        )
    ),
    ids=str,
)
def test_a_declaration_that_is_missing_is_found(part: Part, without: str) -> None:
    declared = part.declared(but=without)
    assert len(declared) == len(part.declared()) - 1
    found = undeclared(part, declared)
    assert found
    # torch is not in this environment: what imports it is only read.
    if without != "torch":
        asking = sorted({where for _, where in found} & set(part.importable))
        assert "is not declared" in failure(part, declared, asking)


def test_every_module_belongs_to_one_part() -> None:
    parted = [name for part in PARTS for name in part.files]
    assert len(parted) == len(set(parted))
    assert set(parted) == {name for distribution in FOLDERS for name in Part(distribution).files}


def test_what_cannot_be_imported_here_needs_what_is_said_of_it() -> None:
    for name, module in NOT_HERE.items():
        part = next(part for part in PARTS if name in part.files)
        assert module in {found for found, where in imported(part) if where == name}
