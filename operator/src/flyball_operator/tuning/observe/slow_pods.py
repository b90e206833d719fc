"""Pods that are slower than their siblings, seen by the bias that each engine corrects its predictions with.

All pods predict by one model, so a bias that stands out says something of the pod: a throttled device, a noisy
neighbour. Nothing is done about it, since the bias itself corrects each step; it is for people. Pure; seconds of one
clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Literal, NamedTuple

from flyball_operator.tuning.tunables import TUNABLES


class PodEvent(NamedTuple):
    """An event about a service."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class SlowPod:
    """A pod that is `factor` times as slow as its siblings since a time; `confirmed`: for long enough to be named."""

    since: float
    factor: float
    confirmed: bool = False


def begun(known: Iterable[tuple[str, float]], now: float) -> dict[str, SlowPod]:
    """At the start of a leader: the pods that status names, and their factors."""
    return {name: SlowPod(now - TUNABLES.compared_seconds, factor, confirmed=True) for name, factor in known}


def watched(before: Mapping[str, SlowPod], biases: Mapping[str, float], now: float) -> dict[str, SlowPod]:
    """The pods that stand out, by name; `biases`: what steps take over what the model says, of each pod that tells."""
    found: dict[str, SlowPod] = {}
    usual = median_low(biases.values() or [1.0])
    least = TUNABLES.slower if len(biases) > 2 else TUNABLES.slower**2
    for name, bias in biases.items():
        slow, factor = before.get(name), bias / usual
        if factor < (least * (1.0 - TUNABLES.alike) if slow is not None and slow.confirmed else least):
            continue
        slow = slow or SlowPod(now, factor)
        alike = abs(factor / slow.factor - 1.0) <= TUNABLES.alike
        shown = slow.factor if slow.confirmed and alike else factor
        found[name] = replace(slow, factor=shown, confirmed=now - slow.since >= TUNABLES.compared_seconds)
    return found


def events(before: Mapping[str, float], after: Mapping[str, float], there: Collection[str]) -> list[PodEvent]:
    """What is to be told of pods that are named now or no longer, as long as they are `there`."""
    slow = [(name, factor) for name, factor in after.items() if name not in before]
    message = "steps take {:.1f} times as long as on its siblings"
    return [
        *(PodEvent("Warning", "PodSlow", f"{name}: {message.format(factor)}") for name, factor in slow),
        *(
            PodEvent("Normal", "PodNoLongerSlow", f"{name}: is as fast as its siblings again")
            for name in before
            if name in there and name not in after
        ),
    ]


def factors(slow: Mapping[str, SlowPod]) -> dict[str, float]:
    """The factors of the pods that are to be named, the slowest first."""
    slowest = sorted(slow.items(), key=lambda item: -item[1].factor)
    return {name: round(one.factor, 1) for name, one in slowest if one.confirmed}
