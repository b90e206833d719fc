"""`flyball completion`: what shells complete. bash is asked itself."""

from __future__ import annotations

import argparse
import shlex
import subprocess
from pathlib import Path

import pytest

from flyball_operator.cli.completions import SHELLS, commands_of
from flyball_operator.cli.entry import main
from flyball_operator.cli.main import parser

COMMANDS = {command.name: command for command in commands_of(parser())}


def completed(line: str, capsys: pytest.CaptureFixture[str], cwd: Path) -> list[str]:
    """What bash offers at the end of a line; the last word is completed, empty after a space."""
    assert main(["completion", "bash"]) == 0
    words = " ".join(map(shlex.quote, [*line.split(), *([""] if line.endswith(" ") else [])]))
    asked = f'COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _flyball; printf "%s\\n" "${{COMPREPLY[@]}}"'
    script = f"set -u\n{capsys.readouterr().out}\n{asked}\n"
    done = subprocess.run(["bash", "--norc"], input=script, capture_output=True, text=True, cwd=cwd, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert set(COMMANDS) <= set(completed("flyball ", capsys, tmp_path))
    assert completed("flyball sup", capsys, tmp_path) == ["support-bundle"]


def test_bash_completes_options_of_a_command_and_no_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert completed("flyball top --so", capsys, tmp_path) == ["--sort"]
    assert completed("flyball pause chat --r", capsys, tmp_path) == ["--reason"]
    assert completed("flyball doctor --so", capsys, tmp_path) == []


def test_bash_completes_values(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert completed("flyball top --sort l", capsys, tmp_path) == ["load"]
    assert completed("flyball why chat -o ", capsys, tmp_path) == ["text", "json"]
    assert completed("flyball completion ", capsys, tmp_path)[:3] == ["bash", "zsh", "fish"]
    assert completed("flyball why -n ", capsys, tmp_path) == []


def test_bash_completes_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").touch()
    assert completed("flyball diff -f ch", capsys, tmp_path) == ["chat.yaml"]
    assert completed("flyball size ch", capsys, tmp_path) == ["chat.yaml"]


def test_bash_knows_the_plugin_of_kubectl_by_its_name_too() -> None:
    script = f"{SHELLS['bash'](list(COMMANDS.values()))}\ncomplete -p flyball kubectl-flyball\n"
    done = subprocess.run(["bash", "--norc"], input=script, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["complete -F _flyball flyball", "complete -F _flyball kubectl-flyball"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in COMMANDS.values():
        assert command.name in script
        for option in command.options:
            for flag in option.flags:
                shown = flag if shell != "fish" else f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                assert shown in script


def test_what_shells_read_as_marks_is_quoted() -> None:
    odd = argparse.ArgumentParser(prog="flyball")
    below = odd.add_subparsers().add_parser("it's", help="what's [this]: $(date)")
    below.add_argument("--one", choices=["a", "b"], help="it's [one]: `date` $x")
    commands = commands_of(odd)
    assert r"it'\''s" not in SHELLS["fish"](commands)
    assert r"it\'s [one]: `date` $x" in SHELLS["fish"](commands)
    assert r"""[it'"'"'s \[one\]\: `date` $x]:ONE:(a b)""" in SHELLS["zsh"](commands)


def test_another_shell_is_refused_with_what_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["completion", "tcsh"])
    assert end.value.code == 2
    assert "bash" in capsys.readouterr().err
