"""How many replicas: from what the load needs at each moment to a number that is not taken back soon.

Two recommendations come in: how many the load `needs`, and how many carry it with `room`. Pods are added for the least
need of the up window, and removed to the most room of the down window. So pods that were added stay for the down
window, and pods that were removed stay away for the up window. Room is more than need, and between the two nothing
moves: that is the hysteresis.

A number is absolute. Pods that are starting are a part of it, so they are not asked for twice.

A window is remembered as the few recommendations that can still decide: of one for pods to stay, those that are more
than all later ones. Of those that were last given in the same sixth of the window one is kept. Pure; seconds, Unix
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from typing import Final

from flyball_operator.tuning.tunables import TUNABLES

#: Parts of a window that are told apart: a recommendation lasts for up to a sixth of the window too long.
SLICES: Final = 6
#: Seconds that a lower recommendation must last before it is said that a window holds pods: noise says nothing.
TOLD_AFTER_SECONDS: Final = 60.0


class ScalingLimit(StrEnum):
    """What decides the number. The values are reasons of the condition ScalingActive."""

    AS_NEEDED = "AsNeeded"
    """ScalingActive: so many replicas as the load needs."""
    AT_MINIMUM = "AtMinimum"
    """ScalingActive: the load needs fewer than minReplicas."""
    AT_MAXIMUM = "AtMaximum"
    """ScalingActive: the load needs more than maxReplicas."""
    STABILIZING = "Stabilizing"
    """ScalingActive: the load needs another number, which must last for the stabilisation window first."""
    GROWTH_LIMITED = "GrowthLimited"
    """ScalingActive: the load needs more than four times the Ready pods; the rest is added once these are Ready."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Fewest and most replicas, and the windows in seconds. As given, those of advice to another autoscaler."""

    least: int = 1
    most: int = 1_000_000
    up_seconds: float = 0.0
    down_seconds: float = field(default_factory=lambda: TUNABLES.fewer_seconds)

    def clip(self, replicas: int) -> int:
        """The nearest number inside."""
        return max(self.least, min(self.most, replicas))


@dataclass(frozen=True)
class Recommended:
    """So many replicas were recommended until then."""

    until: float
    replicas: int


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """The number, what decides it, and the recommendations that can still hold it.

    `up` rises and `down` falls from the oldest to the newest; empty where nothing is known of the window. Then the
    number is what was needed until now. `changed_at`: when the number changed, None if it never did. `short`: the limit
    keeps more pods away.
    """

    replicas: int
    limit: ScalingLimit = ScalingLimit.AS_NEEDED
    up: tuple[Recommended, ...] = ()
    down: tuple[Recommended, ...] = ()
    changed_at: float | None = None
    short: bool = False

    def moved(self, replicas: int, now: float) -> Replicas:
        """With another number, if it is one."""
        return self if replicas == self.replicas else replace(self, replicas=replicas, changed_at=now)

    def forgotten(self) -> Replicas:
        """The same number, with nothing known of the windows: they begin anew."""
        return replace(self, limit=ScalingLimit.AS_NEEDED, up=(), down=(), short=False)

    def resumed(self, bounds: Bounds, now: float) -> Replicas:
        """As an earlier leader left it, whose newest recommendations are dated `now`.

        How long nobody looked is not known. An older recommendation that still counts shows that it was less than the
        window; without one the window begins anew.
        """
        knows_up = any(one.until > now - bounds.up_seconds for one in self.up[:-1])
        knows_down = any(one.until > now - bounds.down_seconds for one in self.down[:-1])
        return replace(self, up=self.up if knows_up else (), down=self.down if knows_down else ())


def decided(before: Replicas, *, needed: int, roomy: int, growth: int, bounds: Bounds, now: float) -> Replicas:
    """The number by what the load needs now, and needs with room.

    `growth`: the load is not believed to need more before more pods are Ready.
    """
    reachable = min(needed, growth)
    known_up = _known(before.up, before.replicas, now, bounds.up_seconds)
    known_down = _known(before.down, before.replicas, now, bounds.down_seconds)
    up = _remember(known_up, reachable, now, bounds.up_seconds, rising=True)
    down = _remember(known_down, max(roomy, reachable), now, bounds.down_seconds, rising=False)
    number = bounds.clip(max(min(before.replicas, down[0].replicas), up[0].replicas))
    after = replace(before, up=up, down=down).moved(number, now)
    lately = max(one.replicas for one in down if one.until > now - TOLD_AFTER_SECONDS)
    limit = _short(number, growth, bounds)
    # Until there is room for a minute. A limit that is another by now is told for what is needed now.
    same = (
        before.limit is limit
        and number == before.replicas
        and (limit is not ScalingLimit.STABILIZING or bounds.up_seconds)
    )
    held = before.short and same and lately > number
    if needed > number or held:
        return replace(after, limit=limit, short=True)
    return replace(after, limit=_enough(number, lately, bounds), short=False)


def _known(window: tuple[Recommended, ...], replicas: int, now: float, seconds: float) -> tuple[Recommended, ...]:
    """The window, or one that begins now with the number there is, where nothing is known of the last one.

    A window that is shorter than the time between two looks has none to know of.
    """
    since = now - max(seconds, 2.0 * TUNABLES.window_seconds)
    return window if window and window[-1].until > since else (Recommended(now, replicas),)


def _remember(
    before: tuple[Recommended, ...], replicas: int, now: float, seconds: float, *, rising: bool
) -> tuple[Recommended, ...]:
    """The window with one more; the first is its least where `rising`, else its most."""
    # A clock that was set back must not make a recommendation last.
    kept = [replace(one, until=min(one.until, now)) for one in before if one.until > now - seconds]
    while kept and (kept[-1].replicas >= replicas if rising else kept[-1].replicas <= replicas):
        kept.pop()
    return (*_merged(kept, max(seconds, 1.0) / SLICES), Recommended(now, replicas))


def _merged(window: Iterable[Recommended], seconds: float) -> Iterator[Recommended]:
    """One for each slice of the clock: it holds as the first, the more cautious, and lasts as long as the last."""
    for _, found in groupby(window, lambda one: one.until // seconds):
        first, *later = found
        yield Recommended(later[-1].until if later else first.until, first.replicas)


def _short(number: int, growth: int, bounds: Bounds) -> ScalingLimit:
    """What keeps more pods away, where the load needs more."""
    if number >= bounds.most:
        return ScalingLimit.AT_MAXIMUM
    return ScalingLimit.STABILIZING if growth > number else ScalingLimit.GROWTH_LIMITED


def _enough(number: int, lately: int, bounds: Bounds) -> ScalingLimit:
    """What keeps pods, where the load needs no more. `lately`: the most that was recommended in the last minute."""
    if lately >= number:
        return ScalingLimit.AT_MINIMUM if lately < bounds.least else ScalingLimit.AS_NEEDED
    return ScalingLimit.AT_MINIMUM if number <= bounds.least else ScalingLimit.STABILIZING
