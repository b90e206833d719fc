"""Command lines in Python: what they do not take, and what they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from bench.main import run
from flyball_engine.padded.main import main as padded
from flyball_engine.simulator.main import main as simulator
from flyball_operator.cli import main as flyball
from support.wrong_inputs.command_lines import BENCH, FLYBALL, PADDED, SIMULATOR


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
def test_flyball_names_what_it_accepts(arguments: str, says: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    expect_refused(lambda: flyball(arguments.split()), says, capsys)


@pytest.mark.parametrize(("arguments", "says"), [pytest.param(*case, id=case[0] or "nothing") for case in BENCH])
def test_the_benchmarks_name_what_they_accept(
    arguments: str, says: Sequence[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", *arguments.split()])
    expect_refused(run, says, capsys)


def expect_refused(command: Callable[[], object], says: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert [words for words in says if words not in said] == [], said


def test_a_short_run_of_the_simulated_engine_reports(capsys: pytest.CaptureFixture[str]) -> None:
    simulator(["run", "--seconds", "5", "--rate", "2", "--active", "8", "--threshold", "0"])
    assert "goodput" in capsys.readouterr().out
