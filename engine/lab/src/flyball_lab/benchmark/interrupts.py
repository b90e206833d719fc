"""Ctrl-C and SIGTERM, of which none is lost.

Python raises KeyboardInterrupt wherever it happens to be. Inside a callback of an extension module (pydantic asking
whether something is a subclass, say) that exception is printed and dropped, and the run would go on. So a signal is
kept as well, and whoever waits asks.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_back() -> Iterator[None]:
    """Signals wait until the block ends, so that what it makes has an owner first. Only for the main thread."""
    heard: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        heard.append(number)

    # Not by a mask of signals, which a process that is begun in the block would inherit.
    listening = [which for which in SIGNALS if signal.getsignal(which) is not signal.SIG_IGN]
    before = {which: signal.signal(which, note) for which in listening}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
        for number in heard:
            signal.raise_signal(number)


class TerminatedError(KeyboardInterrupt):
    """SIGTERM."""


class Interrupts:
    """While entered, a signal raises, and `check` raises again until the exception gets through."""

    def __init__(self) -> None:
        self._heard: KeyboardInterrupt | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # Whoever ignores Ctrl-C (what a shell starts in its background does) goes on ignoring it.
        heard = [which for which in SIGNALS if signal.getsignal(which) is not signal.SIG_IGN]
        self._before = {which: signal.signal(which, self._hear) for which in heard}
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)

    def check(self) -> None:
        """Raise KeyboardInterrupt (TerminatedError for SIGTERM) if a signal was heard."""
        if self._heard is not None:
            raise self._heard

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._heard = TerminatedError() if number == signal.SIGTERM else KeyboardInterrupt()
        raise self._heard
