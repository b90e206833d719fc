"""What is measured: workloads, settings and the points of a sweep. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from flyball_engine.figures import percent
from flyball_engine.knobs import Count, Delay, Frozen, NotNegative, Positive, StrategyType

#: Lengths of `mixed` spread by this share around their mean, evenly: 0.9 is a factor of 19 from shortest to longest.
MIXED_SPREAD: Final = 0.9
#: Warm-up requests are as many as the clients, but at most so many, with answers of at most so many tokens.
MOST_WARM_UP_REQUESTS: Final = 64
WARM_UP_OUTPUT_TOKENS: Final = 16


class WorkloadName(StrEnum):
    """How lengths of prompts and answers are spread."""

    UNIFORM = "uniform"
    """All prompts have one length, all answers another."""
    MIXED = "mixed"
    """Lengths are drawn evenly from mean × (1 ± spread), prompts and answers apart."""


class PromptMix(Frozen):
    """Random prompts, as the generator's `random` dataset makes them; the same seed gives the same lengths and texts.

    `spread` is the generator's range ratio. `shared_prefix_tokens` come first in every prompt, beside `input_tokens`.
    """

    name: WorkloadName
    input_tokens: Positive
    output_tokens: Positive
    spread: Annotated[float, Field(ge=0, lt=1)]
    shared_prefix_tokens: NotNegative = 0
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0

    def describe(self) -> str:
        """For people."""
        prefix = f"{self.shared_prefix_tokens} shared + " if self.shared_prefix_tokens else ""
        spread = f", ± {percent(self.spread)}" if self.spread else ""
        return f"{self.name.value}: {prefix}{self.input_tokens} tokens in, {self.output_tokens} out{spread}"


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


class Point(Frozen):
    """One measurement to make: so many clients, each sending its next request when the one before has ended."""

    endpoint: str
    model: str
    label: str
    workload: PromptMix
    setting: EngineSetting
    concurrency: Positive
    requests: Positive

    @property
    def key(self) -> str:
        """Identity of everything that is set; a measured point of the same key is not measured again."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def describe(self) -> str:
        """For people."""
        return f"{self.workload.name.value} {self.setting.describe()} at {self.concurrency}"


class Effort(Frozen):
    """How many requests a point has: `per_client` for each client, at least `least`, at most `most`.

    Never fewer than there are clients, or not all of them would be there at once.
    """

    per_client: Positive = 4
    least: Positive = 8
    most: Positive = 512

    def requests(self, concurrency: int) -> int:
        """Requests of a point."""
        return max(concurrency, min(self.most, max(self.least, self.per_client * concurrency)))


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
    concurrencies: Sequence[int],
    effort: Effort,
) -> tuple[Point, ...]:
    """The points in the order they are measured.

    Settings change innermost: what is to be compared is measured close together, so that a machine that gets slower
    on the way does not look like a strategy that is worse.
    """
    return tuple(
        Point(
            **target.model_dump(),
            workload=workload,
            setting=setting,
            concurrency=concurrency,
            requests=effort.requests(concurrency),
        )
        for workload in workloads
        for concurrency in concurrencies
        for setting in settings
    )


def time_left(done: Sequence[tuple[Count, float]], rest: Sequence[Count]) -> float | None:
    """Seconds that the rest will take; None before the first. `done`: concurrency and seconds of each.

    A point takes as long as those of its concurrency did, else as the nearest one.
    """
    if not done:
        return None

    def expected(concurrency: int) -> float:
        nearest = min((abs(other - concurrency) for other, _ in done))
        like = [seconds for other, seconds in done if abs(other - concurrency) == nearest]
        return sum(like) / len(like)

    return sum(expected(concurrency) for concurrency in rest)
