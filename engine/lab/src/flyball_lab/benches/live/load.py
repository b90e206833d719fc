"""The load that shifts: kinds of requests, phases, and who arrives when. Pure.

Rates are shares of what the engine answers per second when it never idles, which is measured at the start of a run. All
variants of a repetition meet the same arrivals of the same lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from flyball_lab.benches.engine.load import poisson


@dataclass(frozen=True)
class RequestKind:
    """A kind of requests: its least and most tokens of prompt and answer, evenly drawn."""

    name: str
    prompt: tuple[int, int]
    output: tuple[int, int]


@dataclass(frozen=True)
class LoadPhase:
    """So many seconds of so many of each kind: shares of what the engine answers of that kind alone."""

    name: str
    seconds: float
    shares: Mapping[str, float]


@dataclass(frozen=True)
class PlannedRequest:
    """A request: when, in seconds from the start, in which phase, and its lengths in tokens."""

    at: float
    phase: str
    prompt: int
    output: int


CHAT: Final = RequestKind("chat", (64, 192), (24, 40))
LONG: Final = RequestKind("long prompt", (900, 1900), (12, 20))
KINDS: Final = (CHAT, LONG)

#: Beyond capacity is a little of it, and for long enough that a queue lasts into the calm behind it. The tuner sees
#: windows of 15 s: a load that shifts faster than that is past when it is seen.
PHASES: Final = (
    LoadPhase("calm", 20.0, {CHAT.name: 0.4}),
    LoadPhase("long prompts", 30.0, {CHAT.name: 0.3, LONG.name: 0.35}),
    LoadPhase("beyond capacity", 30.0, {CHAT.name: 1.4}),
    LoadPhase("calm again", 20.0, {CHAT.name: 0.4}),
)
#: How long phases are of a first look.
QUICK: Final = 0.25


def phases(*, quick: bool) -> tuple[LoadPhase, ...]:
    """Those of a run."""
    return tuple(replace(phase, seconds=phase.seconds * QUICK) for phase in PHASES) if quick else PHASES


def length(of: Sequence[LoadPhase]) -> float:
    """Seconds of all."""
    return sum(phase.seconds for phase in of)


def starts(of: Sequence[LoadPhase]) -> list[float]:
    """When each begins, in seconds."""
    return [length(of[:number]) for number in range(len(of))]


def arrivals(of: Sequence[LoadPhase], busy: Mapping[str, float], *, seed: int) -> list[PlannedRequest]:
    """Poisson arrivals of each kind; `busy`: requests of a kind per second that the engine answers of it alone."""
    random, found = Random(seed), []
    for start, phase in zip(starts(of), of, strict=True):
        for kind in KINDS:
            if (rate := phase.shares.get(kind.name, 0.0) * busy[kind.name]) <= 0:
                continue
            for at in poisson(random, rate=rate, seconds=phase.seconds):
                prompt, output = random.randint(*kind.prompt), random.randint(*kind.output)
                found.append(PlannedRequest(start + at, phase.name, prompt, output))
    return sorted(found, key=lambda one: one.at)
