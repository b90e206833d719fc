"""Requests without a first token, and lists of them that stay sorted. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

R = TypeVar("R")
#: What is sorted: a pending request comes last in it.
E = TypeVar("E", bound=tuple[Any, ...])


class Pending(Generic[R]):
    """A request without a first token.

    `arrived`, `deadline`: by the engine's clock; the deadline is infinite for work that has none. `tokens` and
    `attention` are still to be processed of its prompt, without what the prefix cache holds. `weight`: what its being
    on time is worth. `of_class`: the class of requests whose share it may have. `begun`: whether it has a slot.
    `on_time`: whether it is in the on-time set. `moved_behind`: whether it ever was given up. `refusable`: whether it
    is refused once it is hopeless, where anybody is.
    """

    __slots__ = (
        "arrived",
        "attention",
        "begun",
        "deadline",
        "moved_behind",
        "number",
        "of_class",
        "on_time",
        "refusable",
        "request",
        "tokens",
        "weight",
    )

    def __init__(
        self,
        request: R,
        *,
        number: int,
        arrived: float,
        deadline: float,
        tokens: float,
        attention: float,
        weight: float,
        of_class: str = "",
    ) -> None:
        self.request = request
        self.of_class = of_class
        self.number = number
        self.arrived = arrived
        self.deadline = deadline
        self.tokens = tokens
        self.attention = attention
        self.weight = weight
        self.begun = False
        self.on_time = math.isfinite(deadline)
        self.moved_behind = False
        self.refusable = False

    def rank(self) -> tuple[bool, float, int]:
        """Sorts as they are served: by deadline those on time, then by arrival."""
        return (not self.on_time, self.deadline if self.on_time else 0.0, self.number)


def exchange(entries: list[E], gone: Sequence[E], come: Sequence[E], *, on_time: bool) -> None:
    """Take some out of a sorted list and put others in, both sorted, too, and many. Who stays is `on_time`, or is not.

    Only the parts are made anew in which they are: a search for each would take several times as long.
    """
    if gone:
        here = _between(entries, gone)
        entries[here] = [entry for entry in entries[here] if entry[-1].on_time is on_time]
    if come:
        here = _between(entries, come)
        entries[here] = sorted([*entries[here], *come])


def _between(entries: Sequence[E], some: Sequence[E]) -> slice:
    """Where in a sorted list the first and the last of some others are, or would be."""
    return slice(bisect_left(entries, some[0]), bisect_right(entries, some[-1]))
