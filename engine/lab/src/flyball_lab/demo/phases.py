"""What the demo does, as data: the loads, in what order and for how long.

Rates are shares of what this machine's engine carries, which the demo measures first: a load that is heavy for one is
light for another. Lengths suit the small model of the local cluster: a full step of 2048 tokens stops every stream for
a good part of a second. Requests are rather few and large: clients and API server share a processor, and must not be
what is overloaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from flyball_engine.figures import significant
from flyball_operator.api.v1alpha1 import Mode

#: Requests that never let the engine idle, to see how many it answers per second: no more than it has slots for.
AT_ONCE = 96
#: Seed of prompts and arrival times; the same in both modes of a phase, so that both meet the same requests.
SEED = 20_26


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Requests of one kind, arriving at `rate` per second, whatever the engine does (open loop).

    Times between arrivals are gamma-distributed with the shape `burstiness`: 1 is a Poisson process, below it requests
    come in bursts. At an infinite rate `number` of them come: all at once, or the next when one of `at_a_time` is
    answered. Prompts have `prompt_tokens` give or take the share `spread`; every answer has `output_tokens`.
    """

    name: str
    rate: float
    prompt_tokens: int
    output_tokens: int
    spread: float = 0.3
    burstiness: float = 1.0
    number: int = AT_ONCE
    at_a_time: int | None = None

    def count(self, seconds: float) -> int:
        """Requests that arrive in `seconds`."""
        return self.number if math.isinf(self.rate) else max(1, round(self.rate * seconds))

    def __str__(self) -> str:
        bursts = ", in bursts" if self.burstiness < 1 else ""
        at_once = f"{self.number} at once" if self.at_a_time is None else f"{self.number}, {self.at_a_time} at a time"
        rate = at_once if math.isinf(self.rate) else f"{self.rate:g}/s{bursts}"
        return f"{self.name}: {rate}, {self.prompt_tokens} in, {self.output_tokens} out"


@dataclass(frozen=True, kw_only=True)
class DemoPhase:
    """One load, put on the engine once per mode. `share` of a run's time is what its requests arrive in."""

    name: str
    title: str
    streams: tuple[Stream, ...]
    share: float = 1.0


def share(carried: float, part: float) -> float:
    """A rate: so much of what the engine carries, with two digits."""
    return significant(part * carried, 2)


def phases(carried: float) -> tuple[DemoPhase, ...]:
    """The loads for an engine that answers so many of `BUSY`'s requests per second."""
    return (
        DemoPhase(
            name="light",
            title="light chat",
            streams=(Stream(name="chat", rate=share(carried, 0.2), prompt_tokens=240, output_tokens=24),),
        ),
        DemoPhase(
            name="heavy",
            title="heavy chat",
            streams=(
                Stream(name="chat", rate=share(carried, 0.6), prompt_tokens=480, output_tokens=24, burstiness=0.2),
            ),
        ),
        DemoPhase(
            name="long",
            title="long prompts",
            streams=(
                Stream(name="chat", rate=share(carried, 0.2), prompt_tokens=240, output_tokens=24),
                Stream(name="long", rate=share(carried, 0.06), prompt_tokens=2400, output_tokens=16, spread=0.4),
            ),
        ),
        DemoPhase(
            name="overload",
            title="overload",
            streams=(Stream(name="documents", rate=share(carried, 0.75), prompt_tokens=1200, output_tokens=16),),
            # With tuning off all of them wait, and the run lasts until the last one is served.
            share=0.7,
        ),
    )


#: What a request takes that has the engine to itself.
ALONE = DemoPhase(
    name="alone",
    title="a long prompt alone",
    streams=(
        Stream(name="long", rate=math.inf, prompt_tokens=2000, output_tokens=2, spread=0.0, number=8, at_a_time=1),
    ),
)
#: And one that has few beside it.
FEW = DemoPhase(
    name="few",
    title="a few chats",
    streams=(Stream(name="chat", rate=math.inf, prompt_tokens=480, output_tokens=24, number=24, at_a_time=4),),
)
#: What it carries is told by a batch that is always full, with nothing that holds it back.
BUSY = DemoPhase(
    name="busy",
    title="what the engine carries",
    streams=(Stream(name="chat", rate=math.inf, prompt_tokens=480, output_tokens=24),),
)


@dataclass(frozen=True, kw_only=True)
class DemoRun:
    """A phase in one mode, of one round. `name` is unique within a demo."""

    phase: DemoPhase
    mode: Mode
    round: int
    seconds: float

    @property
    def name(self) -> str:
        """Name that load pod, log and results know this run by."""
        return f"{self.phase.name}-{self.mode.value.lower()}-{self.round}"

    @property
    def seed(self) -> int:
        """The same for both modes of a phase and round."""
        return SEED + self.round


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long it all takes."""

    warm_up_seconds: float
    run_seconds: float
    rounds: int


NORMAL = Length(warm_up_seconds=40, run_seconds=36, rounds=1)
QUICK = Length(warm_up_seconds=25, run_seconds=18, rounds=1)


def calibration() -> tuple[DemoRun, DemoRun, DemoRun]:
    """What comes first: the runs that show what the engine does, alone, with few beside, and never idle."""
    alone, few, busy = (DemoRun(phase=phase, mode=Mode.DISABLED, round=0, seconds=0.0) for phase in (ALONE, FEW, BUSY))
    return alone, few, busy


def warm_up(length: Length, *, carried: float) -> DemoRun:
    """Every kind of step, so that the step-time model is learnt before all is compared; `carried`: see `phases`."""
    streams = (
        Stream(name="chat", rate=share(carried, 0.25), prompt_tokens=240, output_tokens=24),
        Stream(name="long", rate=share(carried, 0.03), prompt_tokens=2000, output_tokens=16, spread=0.4),
    )
    phase = DemoPhase(name="warm-up", title="warm-up", streams=streams)
    return DemoRun(phase=phase, mode=Mode.AUTO, round=0, seconds=length.warm_up_seconds)


def schedule(length: Length, *, carried: float) -> Iterator[DemoRun]:
    """The measured runs: each phase in both modes, which take turns at going first; `carried`: see `phases`."""
    for number in range(1, length.rounds + 1):
        for place, phase in enumerate(phases(carried), start=number):
            for mode in (Mode.DISABLED, Mode.AUTO) if place % 2 else (Mode.AUTO, Mode.DISABLED):
                yield DemoRun(phase=phase, mode=mode, round=number, seconds=phase.share * length.run_seconds)
