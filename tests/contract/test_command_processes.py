"""Command lines as processes: how they end, and that they say nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from flyball_lab.repository import ROOT


def test_help_starts_no_operator() -> None:
    asked = python("-m", "flyball_operator", "--help", stdout=subprocess.PIPE)
    assert (asked.returncode, asked.stderr) == (0, b"")
    assert b"environment variables:" in asked.stdout
    refused = python("-m", "flyball_operator", "run", stdout=subprocess.PIPE)
    assert (refused.returncode, refused.stdout) == (2, b"")


@pytest.mark.parametrize(("arguments", "unbuffered"), [("size --names", ""), ("--help", "1")])
def test_a_full_disk_is_one_sentence(arguments: str, unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = python("-m", "flyball_operator.cli", *arguments.split(), stdout=full, unbuffered=unbuffered)
    assert (ended.returncode, ended.stderr) == (2, b"flyball: the output cannot be written: No space left on device\n")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = python("-m", "flyball_operator.cli", "crd", stdout=writing)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_ctrl_c_while_it_loads_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("raise KeyboardInterrupt")
    ended = python("-m", "flyball_operator.cli", "crd", stdout=subprocess.PIPE, before=(tmp_path,))
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"flyball: interrupted\n")


def python(
    *arguments: str, stdout: int | IO[bytes], unbuffered: str = "", before: Sequence[Path] = ()
) -> subprocess.CompletedProcess[bytes]:
    """Run it with its output buffered, as it is where nobody asks otherwise. Modules are found `before` others."""
    folders = [*before, *(ROOT / part / "src" for part in ("operator", "engine", "engine/lab"))]
    sources = os.pathsep.join(map(str, folders))
    variables = os.environ | {"PYTHONPATH": sources, "PYTHONUNBUFFERED": unbuffered}
    return subprocess.run(
        [sys.executable, *arguments], env=variables, stdout=stdout, stderr=subprocess.PIPE, check=False
    )
