"""The CPU engine image and the manifests that use its model say the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from flyball_lab.harness import cpu_image, launcher
from flyball_lab.repository import ROOT

(DTYPE,) = (each for each in cpu_image.arguments() if each.startswith("--dtype="))


@pytest.mark.parametrize("manifest", ["engine/lab/src/flyball_lab/demo/chat.yaml", "docs/examples/cpu.yaml"])
def test_an_engine_on_a_cpu_computes_in_the_numbers_of_the_image(manifest: str) -> None:
    arguments = yaml.safe_load((ROOT / manifest).read_text())["spec"]["engine"]["args"]
    assert DTYPE in arguments


def test_every_processor_has_these_numbers() -> None:
    assert DTYPE == "--dtype=float32"


def test_what_hides_avx512_is_where_engines_are_told_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    *_, hides = launcher.environment(tmp_path)["PYTHONPATH"].split(os.pathsep)
    assert Path(hides, "sitecustomize.py").is_file()


def test_commands_without_compilers_are_those_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        place.mkdir()
        for command in ("lscpu", "gcc", "x86_64-linux-gnu-g++-12", "cc", "ld.bfd", "clang", "acc", "gcc-ranlib"):
            (place / command).touch()
    monkeypatch.setenv("PATH", f"{first}:{tmp_path / 'none'}:{second}")
    found = Path(cpu_image.without_compilers(tmp_path / "found"))
    assert {command.name for command in found.iterdir()} == {"lscpu", "acc", "gcc-ranlib"}
    assert (found / "lscpu").readlink() == first / "lscpu"
