"""Objects of one kind as watch events and lists tell of them: nothing older over newer, and no ghosts after a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

_MAX_ENTRIES: Final = 200_000


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """An object in a namespace, in a version."""

    namespace: str
    version: int
    value: T

    def within(self, namespace: str | None) -> bool:
        """Whether a list of this namespace tells of it."""
        return namespace is None or namespace == self.namespace


class Store(Generic[T]):
    """Objects of one kind by UID. An older version never replaces a newer one.

    `changes`: how often something of them may have changed.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._entries: dict[str, Entry[T]] = {}
        self._listed: dict[str | None, int] = {}

    def put(self, uid: str, namespace: str, version: int, value: T) -> None:
        """Keep this version, unless a newer one is kept, or a later list shows that the object is gone."""
        before = self._entries.get(uid)
        listed = max(self._listed.get(namespace, 0), self._listed.get(None, 0))
        if version < (before.version if before is not None else listed):
            return
        if before is None and len(self._entries) >= _MAX_ENTRIES:
            raise MemoryError(f"more than {_MAX_ENTRIES} objects of one kind")
        self._entries[uid] = Entry(namespace, version, value)
        self.changes += 1

    def drop(self, uid: str) -> None:
        """Forget the object."""
        if self._entries.pop(uid, None) is not None:
            self.changes += 1

    def replace(self, namespace: str | None, listed: Iterable[tuple[str, str, int, T]], version: int) -> list[T]:
        """Make this list everything there is in a namespace, but for what came after it.

        Each item is a UID, a namespace, a version and a value. Returns what was not known or has gone.
        """
        fresh = {uid: Entry(where, own, value) for uid, where, own, value in listed}
        missed = [entry.value for uid, entry in fresh.items() if uid not in self._entries]
        for uid, entry in self._entries.items():
            if uid in fresh:
                # What is known in the same version stays the same object: whoever has it need not look again.
                fresh[uid] = max(entry, fresh[uid], key=lambda candidate: candidate.version)
            elif entry.version > version or not entry.within(namespace):
                fresh[uid] = entry
            else:
                missed.append(entry.value)
        self._entries = fresh
        self.changes += 1
        self._listed[namespace] = version
        return missed

    def forget(self, namespace: str | None) -> None:
        """Drop everything of a namespace."""
        self._entries = {uid: entry for uid, entry in self._entries.items() if not entry.within(namespace)}
        self.changes += 1

    def __iter__(self) -> Iterator[T]:
        return (entry.value for entry in self._entries.values())

    def entries(self) -> Iterator[tuple[str, Entry[T]]]:
        """All there are, by UID."""
        return iter(self._entries.items())

    def entry(self, uid: str) -> Entry[T] | None:
        """The object of this UID and its version."""
        return self._entries.get(uid)

    def get(self, uid: str) -> T | None:
        """The object of this UID."""
        entry = self._entries.get(uid)
        return entry.value if entry is not None else None
