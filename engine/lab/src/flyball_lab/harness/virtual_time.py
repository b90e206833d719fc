"""An event loop whose time passes only when everybody waits: hours in milliseconds, the same at every run."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    """Instead of waiting, moves the loop's clock on."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits for ever")
        self.loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop with a clock of its own."""

    def __init__(self) -> None:
        self.now = 1000.0
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Virtual seconds."""
        return self.now


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time. No threads, no sockets."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def in_virtual_time(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs in virtual time."""

    @wraps(scenario)
    def told(*args: Any, **kwargs: Any) -> None:
        run(scenario(*args, **kwargs))

    return told


def now() -> float:
    """Virtual seconds, within a scenario."""
    return asyncio.get_running_loop().time()
