"""The plant: how long a step takes, with what the tuner's model lacks.

    T = slow-down · (model + d·K + r·R) · scatter + stall + compilation

`model` is that of `flyball_engine.model` with true coefficients, β being the cost of a sequence alone. K are the KV
tokens that decodes read. R is the context that each chunk of a prompt reads anew, in no model. Where CUDA graphs were
captured, a step takes as long as the graph that it is padded to: stairs, in no model either. Kernels may be compiled
when a step that has no graph is met first. Scatter is lognormal with mean 1, independent from step to step; a stall
comes now and then.

A stretch of steps in which nothing joins or leaves differs from step to step only in K, which grows by the same amount,
so that its step times are an arithmetic series. It is summed in closed form, the scatter as one normal number of the
sum's variance. Short stretches are stepped, so are those that end at a stall, and those in which an inter-token
threshold lies among the step times: there every step counts for itself.

Reaches no clock; randomness is a parameter.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import NormalDist
from typing import Final

from flyball_engine.batching.step_statistics import Step
from flyball_engine.model import StepModel

#: Shorter stretches are stepped: cheap enough, and a sum of fewer lognormal numbers is not quite normal.
LEAST_JUMP: Final = 16
#: Standard deviations by which a jump stays clear of a moment that must not be passed.
_CLEARANCE: Final = 6.0
_NORMAL: Final = NormalDist()
_NEVER: Final = 2**62
#: Steps of as many tokens, but for such multiples, use the same kernels.
COMPILED_TOKENS: Final = 128


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Expected seconds of a step. `kv_token` seconds per KV token read, `reread` per token of context read anew.

    `graphs`: tokens of the steps that CUDA graphs were captured for, rising; a step is padded to the next of them, and
    not at all beyond the last.
    """

    model: StepModel
    kv_token: float = 0.0
    reread: float = 0.0
    graphs: tuple[int, ...] = ()

    def seconds(self, step: Step, *, reread_tokens: int = 0) -> float:
        """Of one step; `reread_tokens` is the sum of the contexts before its chunks of prompts."""
        modelled = self.model.step_seconds(
            tokens=self._padded(step.tokens),
            decodes=step.decodes,
            prefills=step.prefill_tokens > 0,
            attention=step.prefill_attention,
        )
        return modelled + self.kv_token * step.kv_tokens + self.reread * reread_tokens

    def captured(self, tokens: int) -> bool:
        """Whether there is a graph for a step of so many tokens."""
        return bool(self.graphs) and tokens <= self.graphs[-1]

    def _padded(self, tokens: int) -> int:
        return self.graphs[bisect_left(self.graphs, tokens)] if self.captured(tokens) else tokens


@dataclass(frozen=True, kw_only=True)
class Disturbances:
    """`scatter`: standard deviation of log T. `stall_chance` per step, `stall_seconds` added by one.

    `compile_seconds`: added to the first step of each size for which no graph was captured, in units of
    `COMPILED_TOKENS`.
    """

    scatter: float = 0.05
    stall_chance: float = 0.002
    stall_seconds: float = 0.020
    compile_seconds: float = 0.0


#: What a plant has unless told otherwise.
USUAL: Final = Disturbances()
#: A plant whose steps take exactly their expected times.
CALM: Final = Disturbances(scatter=0.0, stall_chance=0.0)


@dataclass(kw_only=True)
class Stretch:
    """Steps of one composition that were made: sums over T and T², the longest, and how many kept each threshold.

    `slope` seconds: by how much each step was expected to take longer than the one before.
    """

    slope: float
    steps: int = 0
    seconds: float = 0.0
    seconds_squared: float = 0.0
    longest: float = 0.0
    within: list[int] = field(default_factory=list)

    def each(self) -> Iterator[float]:
        """Seconds of each step: its expected share of the stretch."""
        middle = self.seconds / self.steps
        for number in range(self.steps):
            yield middle + self.slope * (number - (self.steps - 1) / 2)


class Plant:
    """Draws the times of steps. `slow_down` multiplies them from now on (a throttled GPU, a noisy neighbour)."""

    def __init__(self, step_times: StepTimes, random: Random, disturbances: Disturbances = USUAL) -> None:
        self.step_times = step_times
        self.slow_down = 1.0
        self._random = random
        self._disturbances = disturbances
        # The logarithm's mean at which the scatter's own mean is 1.
        self._centre = -(disturbances.scatter**2) / 2
        self._calm = self._draw_calm()
        self._scatter = self._draw_scatter()
        self._compiled: set[int] = set()

    def step(self, step: Step, *, reread_tokens: int = 0) -> float:
        """Seconds of the next step."""
        compiling = self._compiling(step)
        self._compiled.add(step.tokens // COMPILED_TOKENS)
        return compiling + self._use(self.slow_down * self.step_times.seconds(step, reread_tokens=reread_tokens))

    def stretch(
        self, first: Step, *, growth: float, most: int, seconds: float, thresholds: Sequence[float] = ()
    ) -> Stretch:
        """As many steps like `first` as end within `seconds`, at most `most`; each reads `growth` KV tokens more."""
        base = self.slow_down * self.step_times.seconds(first)
        slope = self.slow_down * self.step_times.kv_token * growth
        made = Stretch(slope=slope, within=[0] * len(thresholds))
        if self._compiling(first):
            if self._compiling(first) + self._peek(base) > seconds:
                return made
            _add(made, self.step(first), thresholds)
        while made.steps < most:
            start = base + slope * made.steps
            steps = self._jump_length(start, slope, min(most - made.steps, self._calm), seconds - made.seconds)
            if steps >= LEAST_JUMP and not self._straddles(start, start + slope * (steps - 1), thresholds):
                self._jump(made, start, slope, steps, thresholds)
                continue
            if made.seconds + self._peek(start) > seconds:
                break
            _add(made, self._use(start), thresholds)
        return made

    def _compiling(self, step: Step) -> float:
        """Seconds that the kernels of such a step are still to be compiled."""
        if self.step_times.captured(step.tokens) or step.tokens // COMPILED_TOKENS in self._compiled:
            return 0.0
        return self._disturbances.compile_seconds

    def _peek(self, expected: float) -> float:
        """Seconds of the next step, which remains the next one."""
        return expected * self._scatter + (0.0 if self._calm else self._disturbances.stall_seconds)

    def _use(self, expected: float) -> float:
        seconds = self._peek(expected)
        self._calm = self._calm - 1 if self._calm else self._draw_calm()
        self._scatter = self._draw_scatter()
        return seconds

    def _draw_scatter(self) -> float:
        sigma = self._disturbances.scatter
        return math.exp(self._random.gauss(self._centre, sigma)) if sigma else 1.0

    def _draw_calm(self) -> int:
        """Steps before the next stalled one."""
        chance = self._disturbances.stall_chance
        return int(math.log(1.0 - self._random.random()) / math.log1p(-chance)) if chance else _NEVER

    def _jump_length(self, start: float, slope: float, most: int, seconds: float) -> int:
        """Steps that surely end within `seconds`: the root of their sum, less what scatter may add to it."""
        if most < LEAST_JUMP or seconds < LEAST_JUMP * start:
            return 0
        steps = min(float(most), _steps_within(start, slope, seconds))
        sigma = self._disturbances.scatter
        if sigma:
            spare = _CLEARANCE * sigma * (start + slope * steps) * math.sqrt(steps)
            steps = min(steps, _steps_within(start, slope, max(0.0, seconds - spare)))
        return int(steps)

    def _straddles(self, least: float, most: float, thresholds: Sequence[float]) -> bool:
        reach = math.exp(_CLEARANCE * self._disturbances.scatter)
        return any(least / reach <= threshold <= most * reach for threshold in thresholds)

    def _jump(self, made: Stretch, start: float, slope: float, steps: int, thresholds: Sequence[float]) -> None:
        """Adds `steps` steps at once."""
        mean = start + slope * (steps - 1) / 2
        total = steps * mean
        squares = steps * mean**2 + slope**2 * steps * (steps**2 - 1) / 12
        longest = start + slope * (steps - 1)
        sigma = self._disturbances.scatter
        if sigma:
            spread = math.expm1(sigma**2)
            excess = math.sqrt(spread * squares) * self._random.gauss(0.0, 1.0)
            total += excess
            squares = squares * (1.0 + spread) + 2.0 * mean * excess
            # The largest of so many independent ones, as if all had the expectation of the last: a little too long.
            rank = (1.0 - self._random.random()) ** (1.0 / steps)
            longest *= math.exp(self._centre + sigma * _NORMAL.inv_cdf(min(rank, 1.0 - 1e-12)))
        made.steps += steps
        made.seconds += total
        made.seconds_squared += squares
        made.longest = max(made.longest, longest)
        self._calm -= steps
        for index, threshold in enumerate(thresholds):
            if start <= threshold:
                made.within[index] += steps


def _add(made: Stretch, seconds: float, thresholds: Sequence[float]) -> None:
    made.steps += 1
    made.seconds += seconds
    made.seconds_squared += seconds * seconds
    made.longest = max(made.longest, seconds)
    for index, threshold in enumerate(thresholds):
        if seconds <= threshold:
            made.within[index] += 1


def _steps_within(start: float, slope: float, seconds: float) -> float:
    """The largest k with k·start + slope·k·(k − 1)/2 <= seconds."""
    linear = start - slope / 2
    if slope <= 0.0:
        return math.floor(seconds / start)
    return math.floor((math.sqrt(linear * linear + 2.0 * slope * seconds) - linear) / slope)
