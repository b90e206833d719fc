"""What is measured: workloads, settings and the points of a sweep. Pure.

In a closed loop so many clients each send their next request when the one before has ended. In an open loop requests
arrive at a rate, whatever the engine does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from flyball_engine.figures import percent
from flyball_engine.knobs import Delay, Frozen, NotNegative, Positive, StrategyType

#: Lengths of `mixed` spread by this share around their mean, evenly: 0.9 is a factor of 19 from shortest to longest.
MIXED_SPREAD: Final = 0.9
#: Warm-up requests are as many as the clients, but at most so many, with answers of at most so many tokens.
MOST_WARM_UP_REQUESTS: Final = 64
WARM_UP_OUTPUT_TOKENS: Final = 16
#: An open loop is warmed up by so many clients at most.
OPEN_WARM_UP_REQUESTS: Final = 8
#: What the horizontal axis of a chart is, in a closed and in an open loop.
CLIENTS_AXIS, RATE_AXIS = "requests at once (clients)", "request rate, requests/s"

#: Of arrivals: requests per second, and the shape of the gamma distribution of the times between them.
Rate = Annotated[float, Field(gt=0)]
Burstiness = Annotated[float, Field(gt=0)]


class WorkloadName(StrEnum):
    """How lengths of prompts and answers are spread."""

    UNIFORM = "uniform"
    """All prompts have one length, all answers another."""
    MIXED = "mixed"
    """Lengths are drawn evenly from mean × (1 ± spread), prompts and answers apart."""


class PromptMix(Frozen):
    """Random prompts, as the generator's `random` dataset makes them; the same seed gives the same lengths and texts.

    `spread` is the generator's range ratio. `shared_prefix_tokens` come first in every prompt, beside `input_tokens`.
    `burstiness` is that of the arrivals of an open loop: 1 is Poisson, below it requests come in bursts. A closed loop
    has none.
    """

    name: WorkloadName
    input_tokens: Positive
    output_tokens: Positive
    spread: Annotated[float, Field(ge=0, lt=1)]
    shared_prefix_tokens: NotNegative = 0
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    burstiness: Burstiness | None = None

    @property
    def open_loop(self) -> bool:
        """Requests arrive at a rate."""
        return self.burstiness is not None

    def describe(self) -> str:
        """For people."""
        prefix = f"{self.shared_prefix_tokens} shared + " if self.shared_prefix_tokens else ""
        spread = f", ± {percent(self.spread)}" if self.spread else ""
        loop = "" if self.burstiness is None else f"; open loop, {arrivals(self.burstiness)}"
        return f"{self.name.value}: {prefix}{self.input_tokens} tokens in, {self.output_tokens} out{spread}{loop}"


class OtherWorkload(Frozen):
    """What another load generator sent; `data` as its configuration says. `arrivals` of an open loop, else empty."""

    tool: str
    data: str
    arrivals: str

    @property
    def open_loop(self) -> bool:
        """Requests arrive at a rate."""
        return bool(self.arrivals)

    def describe(self) -> str:
        """For people."""
        return f"{self.tool}: {self.data}" + (f"; open loop, {self.arrivals}" if self.arrivals else "")


Workload = PromptMix | OtherWorkload


class EngineSetting(Frozen):
    """What the engine is told before a point; all absent leaves it as it is.

    `batch_size`: requests that run together at most under every strategy; absent, as many as there are clients.
    `max_delay_seconds`: of Dynamic.
    """

    strategy: StrategyType | None = None
    batch_size: Positive | None = None
    max_delay_seconds: Delay | None = None

    def describe(self) -> str:
        """For people."""
        name = self.strategy.value if self.strategy else "as configured"
        return f"{name}, batch {self.batch_size}" if self.batch_size else name


class MeasuredPoint(Frozen):
    """A load on an endpoint: `concurrency` clients, or requests that arrive at `rate` per second."""

    endpoint: str
    model: str
    label: str
    workload: Workload
    setting: EngineSetting
    concurrency: Positive | None = None
    rate: Rate | None = None
    requests: Positive

    @model_validator(mode="after")
    def _one_load(self) -> Self:
        if (self.rate is not None) != self.workload.open_loop or (self.concurrency is None) != self.workload.open_loop:
            raise ValueError("an open loop has a rate and its workload a burstiness, a closed loop a concurrency alone")
        return self

    @property
    def load(self) -> float:
        """Clients, or requests per second: what a sweep varies."""
        return self.concurrency or self.rate or 0.0

    @property
    def key(self) -> str:
        """Identity of everything that is set; a measured point of the same key is not measured again."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def describe_load(self) -> str:
        """For people: `16` clients, or `4/s`."""
        return load_text(self.load, open_loop=self.workload.open_loop)


class Point(MeasuredPoint):
    """A measurement to make."""

    workload: PromptMix

    def describe(self) -> str:
        """For people."""
        return f"{self.workload.name.value} {self.setting.describe()} at {self.describe_load()}"


class Effort(Frozen):
    """How many requests a point has: `per_client` for each client, at least `least`, at most `most`.

    Never fewer than there are clients, or not all of them would be there at once. In an open loop, what arrives in
    `seconds`.
    """

    per_client: Positive = 4
    least: Positive = 8
    most: Positive = 512
    seconds: Rate = 60.0

    def requests(self, concurrency: int) -> int:
        """Requests of a point with so many clients."""
        return max(concurrency, min(self.most, max(self.least, self.per_client * concurrency)))

    def arrivals(self, rate: float) -> int:
        """Requests of a point at this rate."""
        return max(1, round(rate * self.seconds))


class MeasuredEngine(Frozen):
    """What is measured, and what the run is called."""

    endpoint: str
    model: str
    label: str = ""


def settings_of(
    strategies: Sequence[StrategyType], *, batch_size: int | None, max_delay_seconds: float
) -> tuple[EngineSetting, ...]:
    """A setting for each strategy; without strategies the engine is left as it is."""
    if not strategies:
        return (EngineSetting(),)
    return tuple(
        EngineSetting(
            strategy=strategy,
            batch_size=batch_size,
            max_delay_seconds=max_delay_seconds if strategy is StrategyType.DYNAMIC else None,
        )
        for strategy in strategies
    )


def sweep(
    target: MeasuredEngine,
    *,
    workloads: Sequence[PromptMix],
    settings: Sequence[EngineSetting],
    concurrencies: Sequence[int] = (),
    rates: Sequence[float] = (),
    burstiness: float = 1.0,
    effort: Effort,
) -> tuple[Point, ...]:
    """The points in the order they are measured: of each workload the closed loop, then the open one.

    Settings change innermost: what is to be compared is measured close together, so that a machine that gets slower
    on the way does not look like a strategy that is worse.
    """
    closed = [{"concurrency": clients, "requests": effort.requests(clients)} for clients in concurrencies]
    arriving = [{"rate": rate, "requests": effort.arrivals(rate)} for rate in rates]
    return tuple(
        Point.model_validate({**target.model_dump(), "workload": workload, "setting": setting, **load})
        for mix in workloads
        for workload, loads in ((mix, closed), (mix.model_copy(update={"burstiness": burstiness}), arriving))
        for load in loads
        for setting in settings
    )


def time_left(done: Sequence[tuple[Point, float]], rest: Sequence[Point]) -> float | None:
    """Seconds that the rest will take; None before the first. `done`: seconds of each.

    A point takes as long as those of its loop and load did, else as the nearest one.
    """
    if not done:
        return None

    def expected(point: Point) -> float:
        def distance(other: Point) -> tuple[bool, float]:
            return other.workload.open_loop != point.workload.open_loop, abs(other.load - point.load)

        nearest = min(distance(other) for other, _ in done)
        like = [seconds for other, seconds in done if distance(other) == nearest]
        return sum(like) / len(like)

    return sum(map(expected, rest))


def arrivals(burstiness: float) -> str:
    """For people: how requests of an open loop arrive."""
    return "Poisson arrivals" if burstiness == 1 else f"burstiness {burstiness:g}"


def load_text(load: float, *, open_loop: bool) -> str:
    """For people: `16` clients, or `4/s`."""
    return f"{load:g}/s" if open_loop else f"{load:g}"
