"""Which class a request is of, and what that means for its first token.

Pure: imports only the standard library and the contract.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from flyball_engine.contract import DEFAULT_CLASS, Classes, OnTime


class Terms(NamedTuple):
    """What the order holds of a class: seconds to the first token, infinite for batch work, and its weight."""

    seconds: float = math.inf
    weight: float = 1.0


def terms(on_time: OnTime, classes: Classes | None, name: str) -> Terms:
    """The terms of the class of this name: the default one's where there is none."""
    found = None if classes is None else classes.named(name)
    weight = 1.0 if found is None else found.weight
    deadline = on_time.first_token_deadline_seconds if found is None else found.first_token_deadline_seconds
    return Terms(math.inf if deadline is None else on_time.margin * deadline, weight)


def prefill_shares(classes: Classes | None) -> dict[str, float]:
    """The share of the prefill that each class keeps for itself, where it keeps one."""
    return {} if classes is None else {one.name: one.prefill_share for one in classes.classes if one.prefill_share > 0}


#: The header whose priority vLLM takes in place of the body's.
_PRIORITY_HEADER: Final = b"x-vllm-priority"


class RequestClassifier:
    """Reads a request's class from its HTTP headers, or its priority.

    `unknown` counts those that name one that nobody configured.
    """

    def __init__(self) -> None:
        self.unknown = 0
        self._header = b""
        self._values: dict[bytes, str] = {}
        self._priorities: dict[int, str] = {}

    def follow(self, classes: Classes | None) -> None:
        """The classes from now on."""
        found = () if classes is None else classes.classes
        self._values = {one.value.encode(): one.name for one in found}
        self._priorities = {one.priority: one.name for one in found if one.priority is not None}
        self._header = b"" if classes is None else classes.header.encode()

    def name(self, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """The class that the headers name, as ASGI has them; None where the priority in the request's body decides.

        It is the default one where they name none, or an unknown. A class goes before a priority.
        """
        if not self._values:
            return DEFAULT_CLASS
        value = _said(headers, self._header)
        if value is not None:
            return self._known(self._values.get(value.strip()))
        if not self._priorities:
            return DEFAULT_CLASS
        priority = _number(_said(headers, _PRIORITY_HEADER))
        return None if priority is None else self.of_priority(priority)

    def of_priority(self, priority: int) -> str:
        """The class that a priority names: the default one where it is 0, unknown, or names no class of any."""
        if not priority or not self._priorities:
            return DEFAULT_CLASS
        return self._known(self._priorities.get(priority))

    def _known(self, found: str | None) -> str:
        if found is None:
            self.unknown += 1
            return DEFAULT_CLASS
        return found


def _said(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    return next((value for header, value in headers if header == name), None)


def _number(value: bytes | None) -> int | None:
    """As vLLM reads it; None where it would go by the body."""
    try:
        return None if value is None else int(value)
    except ValueError:
        return None
