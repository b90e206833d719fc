"""`flyball` on a terminal, as a person has it: what is shown there, and what Ctrl-C leaves."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from flyball_lab.harness.waiting import eventually

#: Of each terminal, whatever the variables of this process say.
COLUMNS: Final = 80
_ROWS: Final = 24
_OF_ANOTHER_TERMINAL: Final = {"NO_COLOR", "COLUMNS", "LINES"}
#: Back to the screen from before.
_LEAVES: Final = "\x1b[?1049l"


class Terminal:
    """A command that runs on it, and all that it has shown. What it complains of is not shown."""

    def __init__(self, process: subprocess.Popen[str], outer: int) -> None:
        self._process = process
        self._outer = outer
        self._written = b""

    @property
    def shown(self) -> str:
        """All that was read so far, with its control sequences."""
        return self._written.decode(errors="ignore")

    def expect(self, text: str, *, expecting: str, times: int = 1) -> None:
        """Wait until this was shown so many times. Raises `AssertionError` if the command ends before."""
        eventually(lambda: self._sees(text, times), expecting=expecting)

    def interrupt(self, *, draws: bool = True) -> tuple[int, str]:
        """Ctrl-C. Once the command has ended: its exit code, and its complaints.

        `draws`: it has a screen of its own, and that from before has to come back.
        """
        self._process.send_signal(signal.SIGINT)
        if draws:
            self.expect(_LEAVES, expecting="the screen from before")
        _, complained = self._process.communicate(timeout=60)
        return self._process.returncode, complained

    def _sees(self, text: str, times: int) -> bool:
        if self.shown.count(text) < times:
            self._read()
        return self.shown.count(text) >= times

    def _read(self) -> None:
        """Wait for more."""
        try:
            self._written += os.read(self._outer, 65536)
        except OSError as error:
            # Nobody has the other end any more.
            _, complained = self._process.communicate(timeout=60)
            raise AssertionError(f"flyball ended with {self._process.returncode}: {complained}") from error


def hear_interrupts() -> None:
    """As a process does that a person started. In a shell's background all processes begin with Ctrl-C ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def on_terminal(*arguments: str, **environment: str) -> Iterator[Terminal]:
    """`flyball` with these arguments; `environment`: besides this process's own."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, COLUMNS, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_TERMINAL}
    with subprocess.Popen(
        [sys.executable, "-m", "flyball_operator.cli", *arguments],
        stdin=inner,
        stdout=inner,
        stderr=subprocess.PIPE,
        text=True,
        env=kept | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color"} | environment,
        preexec_fn=hear_interrupts,  # noqa: PLW1509 – takes no lock that a thread of ours may hold
    ) as process:
        os.close(inner)
        try:
            yield Terminal(process, outer)
        finally:
            process.kill()
            os.close(outer)
