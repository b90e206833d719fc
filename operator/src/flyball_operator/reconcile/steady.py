"""Services at which there is nothing to look: nothing of them was written since a look found nothing left to do.

A look reads eight times from the API server. The tuner's status writes, what the reconciler wrote itself, and each
resync would call for one. Here a look is held against the versions that watches and lists have shown since. A resync
lists every kind of object that a service has, so what a watch missed is looked at after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cachetools import LRUCache

from flyball_operator.api.desire import Desire
from flyball_operator.api.objects import number_of
from flyball_operator.api.service_key import Key
from flyball_operator.kube.cache import Cache
from flyball_operator.reconcile.plan.intents import Plan
from flyball_operator.reconcile.plan.snapshot import Snapshot
from flyball_operator.reconcile.plan.steady import considered, good_until, is_steady, versions

_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Look:
    """The service as a look left it, and versions by UID: of what was `read`, and of what was `known` before.

    `until`: when it is too old, None for never.
    """

    uid: str
    version: int
    considered: str
    read: Mapping[str, int]
    known: Mapping[str, int]
    until: datetime | None


class SteadyServices:
    """What the last look at each service left."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._looks: LRUCache[Key, _Look] = LRUCache(_REMEMBERED)

    def known(self, key: Key) -> Mapping[str, int]:
        """Versions of what is known of a service: to be asked for before it is read, and given to `note` after."""
        return dict(self._cache.versions.of(key))

    def note(self, key: Key, snapshot: Snapshot, plan: Plan, left: Desire, known: Mapping[str, int]) -> None:
        """Remember a look that ended. `left`: the service as it left it."""
        read = versions(snapshot)
        # A server whose versions are no numbers does not say what is newer.
        ordered = all([_version(left), *(version for uid, version in read.items() if uid != left.meta.uid)])
        if ordered and is_steady(snapshot, plan, left):
            unread = {uid: version for uid, version in known.items() if uid not in read}
            self._looks[key] = _Look(
                left.meta.uid, _version(left), considered(left), read, unread, good_until(snapshot, plan)
            )
        else:
            self._looks.pop(key, None)

    def has(self, key: Key, now: datetime) -> bool:
        """Whether another look would see what the last one saw."""
        look = self._looks.get(key)
        if look is None or (look.until is not None and now >= look.until):
            return False
        shown = self._cache.versions.of(key)
        # A watch may be behind what was read, so an older version is none to look at. What is missing is: it is gone.
        if not look.read.keys() <= shown.keys() or any(
            version > look.read.get(uid, look.known.get(uid, -1)) for uid, version in shown.items()
        ):
            return False
        desire = self._cache.services.get(look.uid)
        return desire is not None and (_version(desire) <= look.version or considered(desire) == look.considered)


def _version(desire: Desire) -> int:
    return number_of(desire.meta.resource_version)
