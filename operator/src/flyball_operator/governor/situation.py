"""What the law decides on, and what it wants: demand, objectives and model of one engine core. Pure.

Seconds and tokens throughout, all per engine core.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from flyball_engine.model import StepModel
from flyball_operator.governor.spec import Envelope, Objective


class Regime(StrEnum):
    """What the law is after."""

    BALANCED = "Balanced"
    """All objectives can be held: the limits share the slack among them."""
    DRAINING = "Draining"
    """The first-token objectives cannot be held now: the queue is drained as fast as possible."""
    TOKEN_BOUND = "TokenBound"
    """No limits keep the token objectives, but first tokens: the largest rate, small steps would cost both."""
    THROUGHPUT = "Throughput"
    """No token objective: the largest drain rate."""
    SHEDDING = "Shedding"
    """Behind a gate: token objectives are kept, and requests that would come too late are refused."""


@dataclass(frozen=True, kw_only=True)
class Margins:
    """Share of a threshold the law aims at; trimmed by counts."""

    token: float = 0.85
    first_token: float = 0.7


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one engine core is asked for.

    `arrivals` requests per second; `prompt` tokens of a prompt, `uncached` those that need computing, `output` tokens;
    `ratio` prefill tokens per decode; `attention` prefill attention per prefill token (mean context of a chunk);
    `decodes` running in a mean step; `running`, `waiting` requests; `kv_tokens` the cache holds, `held` per running
    request. `drafted`: tokens that a step processes for a decode, `made`: those that come of it, both 1 without
    speculation. `scatter`: deviation of the time of steps alike, as a share of their mean.
    """

    arrivals: float
    prompt: float
    uncached: float
    output: float
    ratio: float
    attention: float
    decodes: float
    running: float
    waiting: float
    kv_tokens: float
    held: float
    drafted: float = 1.0
    made: float = 1.0
    scatter: float = 0.0

    @property
    def large(self) -> float:
        """Tokens of the prompt that a token is in on average, E[I²]/E[I]: what waits behind prompts, and the tail, see.

        A prefill token's mean position in its prompt is half of that, and that is what `attention` is.
        """
        return max(self.uncached, 2.0 * self.attention)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Seconds expected of each metric under the chosen limits, and requests per second the batch sustains.

    `rate`: prompt tokens per second that full steps compute beside the batch.
    """

    ttft: float
    tpot: float
    gap: float
    e2e: float
    capacity: float
    rate: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the law wants. `binding` names the objective that decided, empty if none did.

    Behind a gate: `deadline`, seconds to the first token by which requests are refused, and `budget`, seconds that a
    step may take, None where no objective bounds one.
    """

    seqs: int
    tokens: int
    regime: Regime
    binding: str
    predicted: Prediction
    budget: float | None = None
    deadline: float | None = None


@dataclass(frozen=True)
class Situation:
    """All that limits are chosen from.

    `tokens` is the present C, kept unless another is clearly better; `draining` whether the last choice was to drain,
    which ends only once the first-token objectives can be held with room. `deadline`: the present one, if there is one.
    `stages`: steps of a round, whose prompts are apart, where it is rounds that are told of (see `pipeline`).
    """

    model: StepModel
    demand: Demand
    objectives: tuple[Objective, ...]
    margins: Margins
    envelope: Envelope
    tokens: int
    draining: bool = False
    deadline: float | None = None
    stages: int = 1

    def step(self, decodes: float, prefill: float) -> float:
        """Seconds of a step of this many decodes and prefill tokens at the mean context.

        A prefill below one token stands for a prefill in that share of steps.
        """
        # One token for each step of a round.
        one = float(self.stages)
        if prefill <= 0.0 or prefill >= one:
            return self._seconds(decodes, max(0.0, prefill))
        idle = self._seconds(decodes, 0.0)
        return idle + prefill / one * (self._seconds(decodes, one) - idle)

    def _seconds(self, decodes: float, prefill: float) -> float:
        # A chunk's attention is its tokens times their mean context, which is the prompts' and no less than its own.
        context = max(self.demand.attention, prefill / self.stages / 2)
        return self.model.step_seconds(
            tokens=decodes * self.demand.drafted + prefill,
            decodes=decodes,
            prefills=prefill > 0,
            attention=prefill * context,
        )

    def largest_chunk(self, decodes: float, *, seconds: float) -> float:
        """Most prefill tokens that fit into a step's time beside some decodes; 0 if none do, may be infinite."""
        each = self.model.largest_chunk(
            seconds=seconds,
            tokens=decodes * self.demand.drafted,
            decodes=decodes,
            prompts=self.stages,
            context=self.stages * self.demand.attention,
        )
        return self.stages * each

    def balanced_step(self, decodes: float) -> float:
        """Mean step of a batch that admits as fast as it finishes."""
        return self.step(decodes, decodes * self.demand.ratio)

    def token_seconds(self, decodes: float) -> float:
        """What one token takes in such a batch: its step, which makes several with speculation."""
        return self.balanced_step(decodes) / self.demand.made

    def capacity(self, seqs: float) -> float:
        """Requests per second that a batch of `seqs` sustains."""
        return seqs / (self.demand.output * self.token_seconds(seqs))

    def decodes(self, seqs: int) -> float:
        """Decodes to plan one step for: a little above the mean, never above the limit."""
        return min(float(seqs), 1.1 * self.demand.decodes + 2.0)
