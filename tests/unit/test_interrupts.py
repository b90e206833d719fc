"""No Ctrl-C is lost: not even where the exception it raises is dropped."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyball_lab.benchmark.__main__ import run
from flyball_lab.benchmark.interrupts import Interrupts, TerminatedError
from flyball_lab.benchmark.load import GeneratorProcess


class SwallowsWhatItRaises:
    """Python prints what a destructor raises, and goes on: as it does in an extension module's callbacks."""

    def __init__(self, which: signal.Signals) -> None:
        self.which = which

    def __del__(self) -> None:
        signal.raise_signal(self.which)


@pytest.fixture(autouse=True)
def as_a_person_started_it() -> Iterator[None]:
    """What runs in a shell's background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("which", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TerminatedError)])
def test_an_interrupt_that_was_swallowed_is_raised_when_asked(
    which: signal.Signals, raised: type[KeyboardInterrupt]
) -> None:
    with Interrupts() as interrupts:
        interrupts.check()
        SwallowsWhatItRaises(which)
        with pytest.raises(KeyboardInterrupt) as told:
            interrupts.check()
    assert told.type is raised


def test_an_interrupt_is_raised_at_once_where_it_can_be() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts():
        signal.raise_signal(signal.SIGINT)


def test_what_was_before_is_back_afterwards() -> None:
    before = [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts():
        assert [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)] != before
    assert [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_interrupt_while_the_command_is_imported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Importing:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "flyball_lab.benchmark.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "flyball_lab.benchmark.main", raising=False)
    monkeypatch.setattr("sys.meta_path", [Importing(), *sys.meta_path])
    assert run() == 130
    assert capsys.readouterr().err == "flyball-bench: interrupted\n"


def test_who_ignores_interrupts_goes_on_ignoring_them() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        interrupts.check()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may come in a weakref's callback
@pytest.mark.parametrize(("which", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TerminatedError)])
def test_an_interrupt_while_the_generator_begins_leaves_no_process(
    which: signal.Signals, raised: type[KeyboardInterrupt], tmp_path: Path
) -> None:
    python, pid = tmp_path / "python", tmp_path / "pid"
    python.write_text(f"#!/bin/sh\necho $$ > {pid}\nkill -{which.name.removeprefix('SIG')} $PPID\nexec sleep 600\n")
    python.chmod(0o755)
    # The signal comes at any moment of the start.
    for _ in range(10):
        with Interrupts() as interrupts, pytest.raises(raised):
            GeneratorProcess.start(str(python), tmp_path / "log", tick=interrupts.check)
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)
