"""What the scripts in hack/ make of wrong input, where that starts nothing: no cluster, no build, no engine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

HACK = Path(__file__).parents[2] / "hack"


@dataclass(frozen=True)
class Machine:
    """A user's shell: a cache of its own, and tools in front of the real ones that only note how they are called."""

    folder: Path

    @property
    def calls(self) -> str:
        noted = self.folder / "calls"
        return noted.read_text() if noted.exists() else ""

    def tool(self, name: str, script: str = "") -> None:
        tool = self.folder / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f'#!/bin/sh\necho "{name} $*" >>"{self.folder}/calls"\n{script}\n')
        tool.chmod(0o755)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        ours = {"HOME": str(self.folder), "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        plain: Mapping[str, str] = {key: value for key, value in os.environ.items() if not key.startswith("FLYBALL_")}
        return subprocess.run(
            [HACK / command[0], *command[1:]],
            env={**plain, **ours, "FLYBALL_CACHE": f"{self.folder}/cache", **variables},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_removing_the_demo_from_a_cluster_that_is_not_named_touches_none(machine: Machine) -> None:
    machine.tool("kubectl")
    machine.tool("helm")
    ended = machine.run("demo", "--down", FLYBALL_CLUSTER="external")
    assert ended.returncode == 1
    assert "FLYBALL_CONTEXT" in ended.stderr
    assert machine.calls == ""


def test_removing_the_demo_from_a_context_there_is_none_of_touches_none(machine: Machine) -> None:
    machine.tool("kubectl", 'case "$1" in config) exit 1 ;; esac')
    machine.tool("helm")
    ended = machine.run("demo", "--down", FLYBALL_CLUSTER="external", FLYBALL_CONTEXT="nowhere")
    assert ended.returncode == 1
    assert "there is no context 'nowhere'" in ended.stderr
    assert "delete" not in machine.calls
    assert "helm" not in machine.calls
