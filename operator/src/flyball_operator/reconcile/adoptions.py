"""How far the services of this release have come with this operator's pod template, and whose turn it is.

Remembered per process: a leader looks at every service before the first of them may adopt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime

from flyball_operator.api.service_key import Key
from flyball_operator.reconcile.plan.adoption import NEVER, OFF, AdoptionPolicy, Standing, Turn, turn


class Adoptions:
    """Gives turns. `known`: all services this release looks after, None while that is not known."""

    def __init__(self, policy: AdoptionPolicy = OFF, known: Callable[[], Collection[Key] | None] = tuple) -> None:
        self._policy = policy
        self._known = known
        self._standings: dict[Key, Standing] = {}
        self._all_seen = False

    def turn(self, key: Key, now: datetime) -> Turn:
        """Whether the service may adopt now. Its standing must be noted before anything else is awaited."""
        if self._policy.max_concurrent == 0:
            return NEVER
        if {Standing.ADOPTING, Standing.FAILED} & set(self._standings.values()):
            self._forget_others()
        others = {str(other): standing for other, standing in self._standings.items() if other != key}
        found = turn(self._policy, others, all_seen=self._see_all(key), now=now)
        return replace(found, least_age=self._policy.least_age)

    def note(self, key: Key, standing: Standing) -> Collection[Key]:
        """Keep where the service stands. Returns services to look at now: those whose turn has come by it."""
        before = self._standings.get(key)
        self._standings[key] = standing
        gave_turn = before in (Standing.ADOPTING, Standing.FAILED) and standing is not before
        return self._following() if gave_turn and standing is not Standing.FAILED else ()

    def forget(self, key: Key) -> Collection[Key]:
        """The service is gone. Returns services to look at now."""
        before = self._standings.pop(key, None)
        return self._following() if before in (Standing.ADOPTING, Standing.FAILED) else ()

    def counts(self) -> Mapping[str, int]:
        """Services by where they stand."""
        found = Counter(self._standings.values())
        return {one.name.lower(): found[one] for one in Standing}

    def _forget_others(self) -> None:
        """What nobody looks at any more, such as services of a namespace that was given away, has no turn."""
        if (known := self._known()) is not None:
            self._standings = {key: self._standings[key] for key in known if key in self._standings}

    def _following(self) -> Collection[Key]:
        outdated = (key for key, standing in self._standings.items() if standing is Standing.OUTDATED)
        return sorted(outdated)[: self._policy.max_concurrent]

    def _see_all(self, key: Key) -> bool:
        # Once is enough: a service that comes later is looked at because it came.
        if not self._all_seen and (known := self._known()) is not None:
            self._all_seen = all(other == key or other in self._standings for other in known)
        return self._all_seen
