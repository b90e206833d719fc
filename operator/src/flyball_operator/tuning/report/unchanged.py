"""What is told again and again of the same: made once, as long as what it is made of is the same. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

_Made = TypeVar("_Made")
_Given = ParamSpec("_Given")


class Unchanged(Generic[_Given, _Made]):
    """What a pure function makes of its newest arguments; not made anew while they are the same objects."""

    def __init__(self, make: Callable[_Given, _Made]) -> None:
        self._make = make
        self._last: tuple[tuple[object, ...], dict[str, object], _Made] | None = None

    def __call__(self, *given: _Given.args, **named: _Given.kwargs) -> _Made:
        """As the function has it."""
        last = self._last
        if last is not None and self._same(given, last[0]) and self._same((*named.values(),), (*last[1].values(),)):
            return last[2]
        made = self._make(*given, **named)
        self._last = (given, named, made)
        return made

    @staticmethod
    def _same(given: tuple[object, ...], before: tuple[object, ...]) -> bool:
        return len(given) == len(before) and all(one is other for one, other in zip(given, before, strict=True))


class Equal(Unchanged[_Given, _Made]):
    """The same, where arguments are made anew: while they are equal. For those that are small, or mostly the same."""

    @staticmethod
    def _same(given: tuple[object, ...], before: tuple[object, ...]) -> bool:
        return given == before
