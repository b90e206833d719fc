"""The folder of the state files: held by who made it, and removed by somebody whatever its end."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flyball_engine.contract import Env
from flyball_engine.vllm import state_dir
from flyball_engine.vllm.state_dir import ensure_state_dir, fresh_folder
from flyball_lab.harness.launcher import SOURCE


def test_folders_of_processes_that_are_gone_are_removed_those_of_others_stay(tmp_path: Path) -> None:
    gone = tmp_path / "flyball-gone"
    held = tmp_path / "flyball-held"
    foreign = tmp_path / "flyball-of-something-else"
    for folder in (gone, held, foreign):
        folder.mkdir()
    (gone / ".lock").touch()
    with (held / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = fresh_folder(str(tmp_path))
        assert not gone.exists()
        assert held.is_dir()
        assert foreign.is_dir()
    assert made.is_dir()
    assert os.access(made, os.W_OK)


def test_a_folder_just_made_is_held(tmp_path: Path) -> None:
    first, second = fresh_folder(str(tmp_path)), fresh_folder(str(tmp_path))
    assert first.is_dir()
    assert first != second


def test_the_folder_of_an_engine_without_the_launcher_goes_with_it_or_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = (
        "import sys, os; from flyball_engine.vllm import state_dir; state_dir._SHARED_MEMORY = sys.argv[1];"
        " state_dir.ensure_state_dir(); eval(sys.argv[2])"
    )
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)}
    for end, code in (("None", 0), ("os.kill(os.getpid(), 9)", -signal.SIGKILL)):
        ended = subprocess.run([sys.executable, "-c", make, tmp_path, end], env=variables, check=False)
        assert ended.returncode == code
        assert len(list(tmp_path.iterdir())) == (1 if code else 0)
    monkeypatch.setattr(state_dir, "_SHARED_MEMORY", str(tmp_path))
    environment: dict[str, str] = {}
    made = ensure_state_dir(environment)
    assert list(tmp_path.iterdir()) == [made]
    assert environment == {Env.STATE_DIR: str(made)}
    assert ensure_state_dir(environment) == made
