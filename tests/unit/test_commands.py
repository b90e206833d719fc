"""Command lines in Python: what they do not take, and what they say."""

from __future__ import annotations

import io
import os
import socket
import sys
import tomllib
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TextIO

import pytest

from flyball_engine.contract import Env
from flyball_lab.benches.main import run
from flyball_lab.harness.ports import free_port
from flyball_lab.padded.main import main as padded
from flyball_lab.repository import ROOT
from flyball_lab.simulator.main import main as simulator
from flyball_operator.app import arguments as operator
from flyball_operator.app.settings import Settings
from flyball_operator.cli.entry import main as flyball
from flyball_operator.cli.output import written
from flyball_operator.cli.prometheus_options import PROMETHEUS_VARIABLE
from support.wrong_inputs.command_lines import BENCH, FLYBALL, OPERATOR, PADDED, SIMULATOR


@pytest.mark.parametrize(("arguments", "says"), [pytest.param(*case, id=case[0] or "nothing") for case in SIMULATOR])
def test_the_simulated_engine_names_what_it_accepts(
    arguments: str, says: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    expect_refused(lambda: simulator(arguments.split()), says, capsys)


@pytest.mark.parametrize(("arguments", "says"), [pytest.param(*case, id=case[0] or "nothing") for case in PADDED])
def test_the_padded_engine_names_what_it_accepts(
    arguments: str, says: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    expect_refused(lambda: padded(arguments.split()), says, capsys)


@pytest.mark.parametrize(("arguments", "says"), [pytest.param(*case, id=case[0] or "nothing") for case in FLYBALL])
def test_flyball_names_what_it_accepts(
    arguments: str, says: Sequence[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # That of the local cluster, where the shell was told of it.
    monkeypatch.delenv(PROMETHEUS_VARIABLE, raising=False)
    expect_refused(lambda: flyball(arguments.split()), says, capsys)


@pytest.mark.parametrize(("arguments", "says"), [pytest.param(*case, id=case[0]) for case in OPERATOR])
def test_the_operator_takes_no_arguments(
    arguments: str, says: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    expect_refused(lambda: operator.check(arguments.split()), says, capsys)


@pytest.mark.parametrize(("arguments", "says"), [pytest.param(*case, id=case[0] or "nothing") for case in BENCH])
def test_the_benchmarks_name_what_they_accept(
    arguments: str, says: Sequence[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", *arguments.split()])
    expect_refused(lambda: sys.exit(run()), says, capsys)


def expect_refused(command: Callable[[], object], says: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert [words for words in says if words not in said] == [], said


class TestPorts:
    """An engine of our own needs two, and says at once which of them it cannot have."""

    def test_one_that_is_taken_is_named(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as held:
            taken = held.getsockname()[1]
            monkeypatch.setenv(Env.CONTROL_PORT, str(free_port()))
            says = [f"--port {taken}: Address already in use", "accepted: a free port"]
            expect_refused(lambda: simulator(["serve", f"--port={taken}"]), says, capsys)
            monkeypatch.setenv(Env.CONTROL_PORT, str(taken))
            says = [f"{Env.CONTROL_PORT} {taken}: Address already in use", "accepted: a free port"]
            expect_refused(lambda: simulator(["serve", f"--port={free_port()}"]), says, capsys)

    @pytest.mark.parametrize("text", ["abc", "-1", "65536", "²"])
    def test_a_control_port_that_is_none_is_named(
        self, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        monkeypatch.setenv(Env.CONTROL_PORT, text)
        says = [f"{Env.CONTROL_PORT} is {text!r}", "accepted: a whole number from 1 to 65535"]
        expect_refused(lambda: simulator(["serve"]), says, capsys)
        for name in ("config.json", "tokenizer.json"):
            (tmp_path / name).touch()
        expect_refused(lambda: padded(["serve", f"--model={tmp_path}"]), says, capsys)


def test_ctrl_c_ends_the_padded_engine_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flyball_lab.padded.main._loaded", interrupted)
    with pytest.raises(SystemExit, match="130"):
        padded(["serve", "--model=."])


def test_a_short_run_of_the_simulated_engine_reports(capsys: pytest.CaptureFixture[str]) -> None:
    simulator(["run", "--seconds", "5", "--rate", "2", "--active", "8", "--threshold", "0"])
    assert "goodput" in capsys.readouterr().out


def test_the_operator_says_what_it_is_and_what_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        operator.check(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert "The operator process of Flyball" in said
    for name, field in Settings.model_fields.items():
        assert f"FLYBALL_{name.upper()}" in said
        assert (field.description or "undescribed").split()[0] in said
    assert "FLYBALL_METRICS_PORT (8080)" in said
    assert "FLYBALL_SIGNING_KEY_FILE\n" in said


NO_ROOM = "flyball: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("arguments", ["crd", "size --names", "--help", "diff --help"])
def test_a_full_disk_is_one_sentence(
    arguments: str, unbuffered: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with buffered("/dev/full", unbuffered=unbuffered) as full:
        monkeypatch.setattr("sys.stdout", full)
        code = flyball(arguments.split())
        # As the interpreter does when it ends.
        full.flush()
    assert code == 2, "1 says of diff that something changes, of pause that nothing was changed"
    assert capsys.readouterr().err == NO_ROOM


@pytest.mark.parametrize("arguments", ["crd", "size --names"])
def test_a_reader_that_has_seen_enough_is_no_error(
    arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with buffered(writing, unbuffered=False) as gone:
        monkeypatch.setattr("sys.stdout", gone)
        code = flyball(arguments.split())
        gone.flush()
    assert (code, capsys.readouterr().err) == (141, "")


def test_ctrl_c_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert written(interrupted) == 130
    assert capsys.readouterr().err == "flyball: interrupted\n"


@pytest.mark.parametrize("distribution", ["operator", "engine/lab"])
def test_the_declared_commands_are_there(distribution: str) -> None:
    scripts = tomllib.loads((ROOT / distribution / "pyproject.toml").read_text())["project"]["scripts"]
    commands = {"operator": ["flyball", "kubectl-flyball"], "engine/lab": ["flyball-bench"]}
    assert list(scripts) == commands[distribution]
    for target in scripts.values():
        module, _, function = target.partition(":")
        assert callable(getattr(import_module(module), function))


def buffered(file: str | int, *, unbuffered: bool) -> TextIO:
    """Standard output as the interpreter opens it, with PYTHONUNBUFFERED or without."""
    raw = io.FileIO(file, "w")
    return io.TextIOWrapper(raw if unbuffered else io.BufferedWriter(raw), write_through=unbuffered)
