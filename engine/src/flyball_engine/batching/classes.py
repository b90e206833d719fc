"""Which class a request is of, and what that means for its first token.

Pure: imports only the standard library and the contract.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
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


_NONE: Final[dict[bytes, str]] = {}


class RequestClassifier:
    """Reads a request's class from its HTTP headers. `unknown` counts those that name one that nobody configured."""

    def __init__(self) -> None:
        self.unknown = 0
        self._header = b""
        self._names = _NONE

    def follow(self, classes: Classes | None) -> None:
        """The classes from now on."""
        self._names = _NONE if classes is None else {one.value.encode(): one.name for one in classes.classes}
        self._header = b"" if classes is None else classes.header.encode()

    def name(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The class that the headers name, as ASGI has them; the default one where they name none, or an unknown."""
        if not self._names:
            return DEFAULT_CLASS
        header = next((value for name, value in headers if name == self._header), None)
        if header is None:
            return DEFAULT_CLASS
        found = self._names.get(header.strip())
        if found is None:
            self.unknown += 1
            return DEFAULT_CLASS
        return found
