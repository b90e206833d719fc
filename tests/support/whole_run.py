"""What the processes of one run share: the machine, which some tests need for themselves, and what is made once."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


def run_folder(own: Path) -> Path:
    """The folder of the whole run, by a process's own: where several share it, each has one below."""
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def made_once(run: Path, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first process of a run fills, and all find."""
    folder = run / name
    with _locked(run / f"{name}.lock", fcntl.LOCK_EX):
        if not folder.exists():
            unfinished = run / f"{name}.unfinished"
            unfinished.mkdir(exist_ok=True)
            make(unfinished)
            unfinished.rename(folder)
    return folder


class Machine:
    """Shared by all tests of a run, whichever process they are in, but for those that need it alone.

    Each holds it once at a time, and whoever holds it waits for nobody: there is no deadlock. Who waits has the turn,
    so that others do not come before: who needs it alone does not wait for ever.
    """

    def __init__(self, run: Path) -> None:
        self._turn, self._machine = run / "turn.lock", run / "machine.lock"

    @contextmanager
    def held(self, *, alone: bool) -> Iterator[None]:
        """Wait until it can be had, and have it."""
        with ExitStack() as stack:
            with _locked(self._turn, fcntl.LOCK_EX):
                stack.enter_context(_locked(self._machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
            yield


@contextmanager
def _locked(file: Path, how: int) -> Iterator[None]:
    """The lock on a file; the kernel takes it from a process that ends, however it does."""
    with file.open("w") as held:
        fcntl.flock(held, how)
        try:
            yield
        finally:
            fcntl.flock(held, fcntl.LOCK_UN)
