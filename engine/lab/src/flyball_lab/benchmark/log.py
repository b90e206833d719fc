"""What the load generator's process says: kept in a file as far as there is room, and its last words in memory.

A process that writes to a file itself fails with a full disk, and with it the point that it measures. One that writes
to a pipe does not: who reads the pipe drops what has no room.
"""

from __future__ import annotations

import os
import threading
from io import RawIOBase
from pathlib import Path
from typing import IO, Final

from flyball_lab.benchmark.errors import FileError, why
from flyball_lab.benchmark.writing import write_all

#: The last words that are remembered.
_REMEMBERED_BYTES: Final = 16 * 2**10
#: What was said last comes in about at once when a process has ended.
_LAST_WORDS_SECONDS: Final = 2.0


class Log:
    """Reads a pipe to its end, in a thread, as the process must never wait for whoever reads it."""

    def __init__(self, path: Path) -> None:
        """A file of its own, emptied; raises FileError."""
        self._path = path
        try:
            self._file: RawIOBase = path.open("wb", buffering=0)
        except OSError as error:
            raise FileError(f"--out: {path}: {why(error)}; accepted: a folder that can be written to") from error
        self._said = bytearray()
        self._lost: str | None = None
        self._thread: threading.Thread | None = None

    def follow(self, pipe: IO[bytes]) -> None:
        """Keep what comes out of a process from now on; closes the pipe at its end."""
        self._thread = threading.Thread(target=self._keep, args=(pipe,), name="generator-log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The process has ended."""
        self._wait()
        self._file.close()

    def last(self) -> str:
        """The last line that says something, and where the others are."""
        self._wait()
        lines = [line for line in self._said.decode(errors="replace").splitlines() if line.strip()]
        line = lines[-1].strip()[-500:] if lines else "it said nothing"
        where = f"all of it in {self._path}" if self._lost is None else f"{self._path}: {self._lost}"
        return f"{line} ({where})"

    def _wait(self) -> None:
        # No longer: a process may have left children behind that hold the pipe.
        if self._thread is not None:
            self._thread.join(_LAST_WORDS_SECONDS)

    def _keep(self, pipe: IO[bytes]) -> None:
        with pipe:
            while said := os.read(pipe.fileno(), 1 << 16):
                self._said += said
                del self._said[:-_REMEMBERED_BYTES]
                if self._lost is None:
                    self._lost = self._written(said)

    def _written(self, said: bytes) -> str | None:
        """None, or why it was not."""
        try:
            write_all(self._file, said)
        except (OSError, ValueError) as error:  # ValueError: closed meanwhile
            return why(error)
        return None
