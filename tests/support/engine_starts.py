"""Engines that scenarios will need, started beside each other: a start takes most of a minute, and one processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flyball_lab.harness.waiting import eventually
from support.cluster import Object, items


class EngineStarts:
    """What asks for each, in the order in which they are needed. To ask again changes nothing."""

    def __init__(self, namespace: str, asking: Mapping[str, Callable[[], object]]) -> None:
        self._namespace = namespace
        self._asking = asking
        self._left = list(asking)

    def ask(self, name: str) -> None:
        """Ask for one, for who is about to wait for it."""
        if name in self._left:
            self._left.remove(name)
        self._asking[name]()

    def ask_next(self) -> None:
        """Ask for one that nobody has asked for yet, beside another that is waited for."""
        if self._left:
            self.ask(self._left[0])

    def expect_none(self) -> None:
        """Wait until no engine starts or ends, for who measures one under load."""
        eventually(lambda: all(map(_serves, self._pods())), expecting="no engine that starts or ends", within=600)

    def _pods(self) -> list[Object]:
        return items("pods", namespace=self._namespace)


def _serves(pod: Object) -> bool:
    statuses = pod["status"].get("containerStatuses") or []
    return "deletionTimestamp" not in pod["metadata"] and bool(statuses) and all(one["ready"] for one in statuses)
