"""`flyball` on a terminal, as a person has it: what is shown there, and what Ctrl-C leaves."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flyball_lab.harness.waiting import eventually
from support.exercises import hear_interrupts

#: Back to the screen from before.
LEAVES = "\x1b[?1049l"


@dataclass
class Terminal:
    """A command that runs on it, and all that it has shown."""

    process: subprocess.Popen[str]
    shown: str = ""
    _outer: int = -1

    def expect(self, text: str, *, expecting: str) -> None:
        """Wait until this is shown."""
        eventually(lambda: self._sees(text), expecting=expecting)

    def interrupt(self) -> tuple[int, str]:
        """Ctrl-C. Once the screen from before is back and the command has ended: its exit code, and its complaints."""
        self.process.send_signal(signal.SIGINT)
        self.expect(LEAVES, expecting="the screen from before")
        _, complained = self.process.communicate(timeout=60)
        return self.process.returncode, complained

    def _sees(self, text: str) -> bool:
        self.shown += os.read(self._outer, 65536).decode(errors="ignore")
        return text in self.shown


@contextmanager
def on_terminal(*arguments: str, **environment: str) -> Iterator[Terminal]:
    """`flyball` with these arguments; `environment`: besides this process's own."""
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "flyball_operator.cli", *arguments],
        stdout=inner,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"} | environment,
        preexec_fn=hear_interrupts,  # noqa: PLW1509 – no thread of ours runs yet
    )
    os.close(inner)
    try:
        yield Terminal(process, _outer=outer)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(outer)
