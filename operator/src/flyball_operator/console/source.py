"""What the console shows: services as the informers know them, and what their leader knows beside. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from flyball_operator.api.desire import Desire
from flyball_operator.tuning.insight import Insight

#: Characters of a text that are shown. Status may have more, and an answer has an end.
_LONGEST_TEXT = 1000


class Source(Protocol):
    """All in memory: a page asks nobody."""

    def services(self) -> Iterable[Desire]:
        """All services that are watched."""
        ...

    def insight(self, service_uid: str) -> Insight | None:
        """What the leader knows beyond status; None where another replica leads, or nobody tunes."""
        ...


def found(source: Source, namespace: str, name: str) -> Desire | None:
    """The service of a name."""
    named = (one for one in source.services() if (one.meta.namespace, one.meta.name) == (namespace, name))
    return next(named, None)


def cut(text: str, size: int = _LONGEST_TEXT) -> str:
    """The text in so many characters; what is cut ends with an ellipsis."""
    return text if len(text) <= size else f"{text[: size - 1]}…"
