"""What `hack/release` asks of Python, and what it refuses before it builds anything."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from flyball_lab.tools import release
from flyball_operator import __version__

HAVE_VERSIONS = [
    "README.md",
    "charts/flyball/Chart.yaml",
    "charts/flyball/values.yaml",
    "engine/lab/pyproject.toml",
    "engine/lab/src/flyball_lab/__init__.py",
    "engine/pyproject.toml",
    "engine/src/flyball_engine/__init__.py",
    "operator/pyproject.toml",
    "operator/src/flyball_operator/__init__.py",
]


def test_versions_agree_everywhere() -> None:
    written = release.written(ROOT)
    assert release.disagreements(ROOT, __version__) == []
    assert {
        "charts/flyball/Chart.yaml: appVersion",
        "charts/flyball/Chart.yaml: version",
        "engine/lab/pyproject.toml: flyball-operator",
        "engine/pyproject.toml: version",
        "engine/src/flyball_engine/__init__.py: __version__",
        "operator/pyproject.toml: flyball-engine",
        "operator/src/flyball_operator/__init__.py: __version__",
    } <= written.keys()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout's files that have versions, in a repository of their own."""
    root = tmp_path / "checkout"
    for name in HAVE_VERSIONS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for folder in ("docs", "crds"):
        (root / folder).mkdir()
    return root


@pytest.mark.parametrize(
    ("file", "old", "new", "place"),
    [
        ("charts/flyball/Chart.yaml", "version: 0", "version: 9", "version"),
        ("charts/flyball/Chart.yaml", 'appVersion: "0', 'appVersion: "9', "appVersion"),
        ("operator/pyproject.toml", "flyball-lab==0", "flyball-lab==9", "flyball-lab"),
        ("engine/pyproject.toml", 'version = "0', 'version = "9', "version"),
        ("engine/src/flyball_engine/__init__.py", '= "0', '= "9', "__version__"),
        ("README.md", "# Flyball", "pip install flyball-operator==9.0.0", ""),
        ("README.md", "# Flyball", "oci://registry/flyball/operator:9.0.0", ""),
    ],
)
def test_a_place_that_says_another_version_is_named(checkout: Path, file: str, old: str, new: str, place: str) -> None:
    path = checkout / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    (other,) = release.disagreements(checkout, __version__)
    assert re.match(rf"{file}:( {place}|1) says 9", other)


@pytest.mark.parametrize("version", ["0.1.0", "1.2.3", "10.20.30-rc.1", "1.0.0-alpha"])
def test_versions_of_releases(version: str) -> None:
    assert release.is_version(version)


@pytest.mark.parametrize("version", ["", "1", "1.2", "v1.2.3", "01.2.3", "1.2.3+build", "1.2.3-", "1.2.3-01", "1.2.3 "])
def test_what_is_no_version_of_a_release(version: str) -> None:
    assert not release.is_version(version)


def made_by(run: str) -> release.Json:
    """A bill of materials as the scanner writes it in one run."""
    tools = {"components": [{"name": "syft", "version": "[not provided]"}]}
    return {"serialNumber": f"urn:uuid:{run}", "metadata": {"timestamp": run, "tools": tools}, "components": ["a"]}


def test_a_bill_of_materials_keeps_nothing_of_the_run() -> None:
    first, second = (
        release.settled(made_by(run), subject="sha256:1", seconds=0, scanner="v1") for run in ("one", "two")
    )
    assert first == second
    tools = {"components": [{"name": "syft", "version": "v1"}]}
    assert first["metadata"] == {"timestamp": "1970-01-01T00:00:00Z", "tools": tools}
    assert first["components"] == ["a"]
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", first["serialNumber"])
    other = release.settled(made_by("one"), subject="sha256:2", seconds=0, scanner="v1")
    assert other["serialNumber"] != first["serialNumber"]


def test_the_provenance_names_outputs_inputs_and_tools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flyball-1.2.3.tgz").write_text("chart")
    arguments = f"provenance {tmp_path} --source {ROOT} --version 1.2.3 --commit abc --platform linux/amd64"
    given = ["--image", "flyball/operator=sha256:1", "--base", "base:1=sha256:2", "--tool", "buildah=1.28"]
    assert release.main([*arguments.split(), *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [subject["name"] for subject in found["subject"]] == ["flyball-1.2.3.tgz", "image flyball/operator"]
    definition = found["predicate"]["buildDefinition"]
    inputs = {one["name"]: one["digest"] for one in definition["resolvedDependencies"]}
    assert inputs["source"] == {"gitCommit": "abc"}
    assert inputs["base:1"] == {"sha256": "2"}
    assert inputs.keys() == {"source", "base:1", "requirements/operator.txt", "requirements/build.txt"}
    assert found["predicate"]["runDetails"]["builder"]["version"] == {"buildah": "1.28"}


@pytest.mark.parametrize("name", ["operator", "engine"])
def test_what_is_installed_in_an_image_is_pinned_by_hash(name: str) -> None:
    installs = re.findall(
        r"pip (?:install|wheel) .*?(?=&&|\n[A-Z]|\Z)", (ROOT / name / "Dockerfile").read_text(), re.DOTALL
    )
    assert installs
    assert [one for one in installs if "--require-hashes" not in one and "--no-index" not in one] == []


def released(root: Path, *arguments: str, cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(cache), "FLYBALL_CACHE": str(cache), **variables}
    return subprocess.run(
        [root / "hack/release", *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def repository(checkout: Path) -> Path:
    """The checkout with `hack/release`, all of it committed."""
    shutil.copytree(ROOT / "hack", checkout / "hack")
    shutil.copytree(ROOT / "engine/lab/src/flyball_lab/tools", checkout / "engine/lab/src/flyball_lab/tools")
    as_somebody = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (["init", "-q"], ["add", "."], [*as_somebody, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", checkout, *command], check=True)
    return checkout


def test_a_tree_with_changes_is_refused(repository: Path, tmp_path: Path) -> None:
    (repository / "new").write_text("not committed")
    ended = released(repository, __version__, "--out", str(tmp_path / "out"), cache=tmp_path / "cache")
    assert ended.returncode == 1
    assert "the tree has changes that no commit has" in ended.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("base", ["python:3.11-slim", "python:3.11-slim@sha256:12", "python@sha1:" + "0" * 40])
def test_a_base_that_can_change_is_refused(repository: Path, tmp_path: Path, base: str) -> None:
    ended = released(
        repository, __version__, "--out", str(tmp_path / "out"), cache=tmp_path / "cache", FLYBALL_BASE=base
    )
    assert ended.returncode == 1
    assert f"FLYBALL_BASE is '{base}'" in ended.stderr


def test_an_interrupt_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "FLYBALL_CACHE": str(tmp_path / "cache"),
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
    }
    ask = (
        f'source "{repository}/hack/lib/env.sh"; _venv() {{ echo "$FLYBALL_CACHE/venv/$1-$2/bin/python"; }}; build_venv'
    )
    asked = subprocess.run(["bash", "-c", ask], env=environment, capture_output=True, text=True, check=True)
    building = tmp_path / "building"
    tool(tmp_path / "bin/dpkg-query", "echo ii")
    tool(Path(asked.stdout.strip()), f'touch "{building}"; exec sleep 100')
    out = tmp_path / "releases/out"
    # Whoever runs us in the background ignores interrupts, and that is inherited.
    command = ["env", "--default-signal=INT", str(repository / "hack/release"), __version__, "--out", str(out)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, process_group=0) as ours:
        eventually(building.exists, expecting="a build began")
        os.killpg(ours.pid, signal.SIGINT)
        _, said = ours.communicate(timeout=60)
    assert ours.returncode == 130, said
    assert "hack/release: interrupted" in said
    assert list(out.parent.iterdir()) == []


def tool(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_release_that_was_changed_is_not_pushed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "flyball-1.2.3.tgz").write_text("another chart")
    (folder / "SHA256SUMS").write_text("0" * 64 + "  flyball-1.2.3.tgz\n")
    ended = released(ROOT, "push", str(folder), "registry.example/project", cache=tmp_path / "cache")
    assert ended.returncode == 1
    assert "nothing was pushed" in ended.stderr
