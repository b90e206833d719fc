"""Runs a coroutine to its end without an event loop; each turn that it gives the loop can be looked at."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def to_its_end(made: Coroutine[Any, Any, _T], *, at_turn: Callable[[], None] = lambda: None) -> _T:
    """What it returns. `at_turn` is called whenever it lets others go on, and once at its end."""
    while True:
        try:
            made.send(None)
        except StopIteration as ended:
            at_turn()
            value: _T = ended.value
            return value
        at_turn()
