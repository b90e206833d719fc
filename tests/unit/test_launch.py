"""The launcher where there is no vLLM: its own arguments, refusals, and what it does when it can ask nobody."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from flyball_engine.launch.state import fresh_folder
from flyball_engine.launching import EXIT_REFUSED, launch_command
from flyball_lab.harness.launcher import environment, launch
from support.wrong_inputs.command_lines import LAUNCHER


def test_the_command_keeps_the_users_arguments_verbatim_behind_the_first_separator() -> None:
    command = launch_command(owned=["--port=8000"], user=["--", "--owned=[]", "--x y"])
    assert command == [
        "python3",
        "-m",
        "flyball_engine.launch",
        '--owned=["--port=8000"]',
        "--",
        "--",
        "--owned=[]",
        "--x y",
    ]


@pytest.mark.parametrize(("owned", "complaint"), LAUNCHER)
def test_arguments_of_its_own_that_make_no_sense_are_refused(tmp_path: Path, owned: str, complaint: str) -> None:
    ended = launch(owned, "--", variables=environment(tmp_path))
    assert ended.code == EXIT_REFUSED
    assert complaint in ended.log
    assert ended.termination is not None
    assert complaint in ended.termination


def test_help_explains_the_command(tmp_path: Path) -> None:
    ended = launch("--help", variables=environment(tmp_path))
    assert ended.code == 0
    assert "refused under any" in ended.out
    assert "--owned" in ended.out


def test_where_vllm_cannot_be_asked_the_arguments_go_to_plain_vllm_as_they_are(tmp_path: Path) -> None:
    ended = launch("--check", '--owned=["--port=8000"]', "--", "--dtype", "half", variables=environment(tmp_path))
    assert ended.code == 0
    assert "starting plain vLLM, without Flyball's plugin: vLLM cannot be asked: ImportError" in ended.log
    assert "no FlexibleArgumentParser in vllm" in ended.log
    assert ended.out.rstrip().endswith("-m vllm.entrypoints.openai.api_server --dtype half --port=8000")
    assert "VLLM_PLUGINS=" in ended.out
    assert ended.termination is None


def test_folders_of_processes_that_are_gone_are_removed_those_of_others_stay(tmp_path: Path) -> None:
    gone = tmp_path / "flyball-gone"
    held = tmp_path / "flyball-held"
    foreign = tmp_path / "flyball-of-something-else"
    for folder in (gone, held, foreign):
        folder.mkdir()
    (gone / ".lock").touch()
    with (held / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = Path(fresh_folder(str(tmp_path)))
        assert not gone.exists()
        assert held.is_dir()
        assert foreign.is_dir()
    assert made.is_dir()
    assert os.access(made, os.W_OK)


def test_a_folder_just_made_is_held(tmp_path: Path) -> None:
    first, second = fresh_folder(str(tmp_path)), fresh_folder(str(tmp_path))
    assert Path(first).is_dir()
    assert first != second
