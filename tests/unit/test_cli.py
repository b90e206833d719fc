"""The `flyball` command."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest
import yaml

from flyball_lab.repository import ROOT
from flyball_operator import __version__
from flyball_operator.api.crd import custom_resource_definition, schema_hash
from flyball_operator.cli.completions import commands_of
from flyball_operator.cli.entry import main
from flyball_operator.cli.main import parser


def test_crd_prints_the_definition_for_kubectl_apply(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crd"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == custom_resource_definition()


def test_crd_prints_the_hash_that_the_start_check_compares(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crd", "--hash"]) == 0
    assert capsys.readouterr().out == f"{schema_hash()}\n"


def test_without_a_command_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert "usage: flyball" in capsys.readouterr().err


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"flyball {__version__}\n"


def test_kubectl_finds_the_same_program_as_a_plugin() -> None:
    scripts = tomllib.loads((ROOT / "operator/pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl-flyball"] == scripts["flyball"]


def test_the_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "130  Ctrl-C" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["", *(one.name for one in commands_of(parser()) if one.name != "bench")])
def test_a_help_fits_a_terminal_of_80_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [(("--help",), 0, "usage: flyball-bench"), (("run", "--no-such"), 2, "flyball-bench run: error")],
)
def test_bench_is_the_program_of_that_name(arguments: tuple[str, ...], code: int, said: str) -> None:
    command = [sys.executable, "-m", "flyball_operator.cli", "bench", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == code
    assert said in ended.stdout + ended.stderr


def test_each_command_but_those_with_files_has_json() -> None:
    without = {one.name for one in commands_of(parser()) if not any("--output" in of.flags for of in one.options)}
    assert without == {"bench", "completion", "crd"}
