"""What the law decides on, and what it wants: workload, objectives and model of one engine core. Pure.

Seconds and tokens throughout, all per engine core.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist
from typing import Final

from flyball_engine.contract import DEFAULT_CLASS, Metric
from flyball_engine.model import StepModel
from flyball_operator.tuning.spec import Envelope, LatencyObjective, Span
from flyball_operator.tuning.tunables import TUNABLES

#: No step takes less, in seconds: a shorter one is no measurement, and no prediction.
SHORTEST_STEP: Final = 1e-6


@dataclass(frozen=True, kw_only=True)
class Margins:
    """Share of a threshold that the law aims at: the rest is for what the prediction does not say.

    Margins are constants. Counts of violations come too late to steer by. Where some answers cannot meet an objective
    whatever is done, such counts would lower the margin without end.
    """

    token: float
    first_token: float


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What one engine core is asked for.

    `arrivals` requests per second, of which `waiting` have no slot. `prompt` tokens of a prompt, `uncached` those that
    need computing, `output` tokens. `ratio` prefill tokens per decode. `attention` prefill attention per prefill token
    (mean context of a chunk). `decodes` running in a mean step, each of which reads `context` tokens of KV cache;
    `kv_tokens` the cache holds. `drafted`: tokens that a step processes for a decode, `made`: those that come of it,
    both 1 without speculation. `token_weighted_prompt`: `weighted_prompt` as engines count it, None where they do not.
    `kv_share`: of the tokens that running requests have in the cache the share that takes memory, less than 1 where
    they share prefixes; None where that is not known.
    """

    arrivals: float
    prompt: float
    uncached: float
    output: float
    ratio: float
    attention: float
    decodes: float
    waiting: float
    kv_tokens: float
    drafted: float = 1.0
    made: float = 1.0
    context: float = 0.0
    token_weighted_prompt: float | None = None
    kv_share: float | None = None

    @property
    def fits(self) -> float:
        """Running requests whose KV cache fits; infinite where its size is not known.

        A long answer runs for longer, so what runs at some time is longer than the mean request. What decodes were seen
        to read says how long; half of a mean answer is too little. A prefix that they share is held once: the more of
        them run, the less it is of each. So of few requests rather too little is said to fit.
        """
        held = self.context or self.prompt + self.output / 2
        if self.kv_share is not None:
            held *= self.kv_share
        return self.kv_tokens / held if min(self.kv_tokens, held) > 0.0 else math.inf

    @property
    def weighted_prompt(self) -> float:
        """Computed tokens of the prompt that a prefill token is in on average, E[U²]/E[U].

        What waits behind prompts sees these. Older engines do not count it. There `attention` is that token's mean
        position: half of them, behind what the prefix cache has of the prompt. Long prompts are taken to have as much
        of that as short ones. Where first turns are long and later ones short and cached, this is too little.
        """
        if self.token_weighted_prompt is not None:
            # With nothing cached it is twice the position, and never more.
            return max(self.uncached, min(self.token_weighted_prompt, 2.0 * self.attention))
        return max(self.uncached, 2.0 * (self.attention - (self.prompt - self.uncached)))


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Seconds expected of each metric."""

    ttft: float
    tpot: float
    gap: float
    e2e: float


@dataclass(frozen=True, kw_only=True)
class ControlOutput:
    """What the law wants. `binding` names what bounds batch and steps, empty if nothing does.

    `batch`: decodes of the largest batch that holds its size, `capacity`: the requests per second that it comes to,
    whatever they wait. `given_up`: token objectives that leave prompts no room even on an idle engine. `budget`:
    seconds that a step may take, None where no objective says. `deadlines`: seconds to the first token by class of
    requests, where an objective says.
    """

    seqs: int
    tokens: int
    binding: str
    predicted: Prediction
    batch: float = 0.0
    capacity: float = 0.0
    given_up: tuple[str, ...] = ()
    budget: float | None = None
    deadlines: Mapping[str, float] = field(default_factory=dict)

    @property
    def deadline(self) -> float | None:
        """That of requests without a class."""
        return self.deadlines.get(DEFAULT_CLASS)


@dataclass(frozen=True)
class ControlInput:
    """All that limits are chosen from.

    `stages`: steps of a round, whose prompts are apart, where steps are rounds (`in_rounds`). `prefill_only`: whether
    requests end with their first token.
    """

    model: StepModel
    workload: Workload
    objectives: tuple[LatencyObjective, ...]
    margins: Margins
    envelope: Envelope
    stages: int = 1
    prefill_only: bool = False

    def step(self, decodes: float, prefill: float) -> float:
        """Seconds of a step of this many decodes and prefill tokens at the mean context."""
        # A chunk's attention is its tokens times their mean context, which is the prompts' and no less than its own.
        context = self.workload.attention
        if not self.prefill_only:
            # Else a step has several whole prompts.
            context = max(context, prefill / self.stages / 2)
        seconds = self.model.step_seconds(
            tokens=decodes * self.workload.drafted + prefill,
            decodes=decodes,
            prefills=prefill > 0,
            attention=prefill * context,
            kv_tokens=decodes * self.workload.context,
        )
        # A model of absurd figures may have steps for nothing.
        return max(SHORTEST_STEP, seconds)

    def chunk(self, decodes: float, seconds: float | None) -> float:
        """Most prefill tokens that fit into a step's time and tokens beside some decodes; 0 if none do."""
        room = max(0.0, self.envelope.tokens.most - decodes * self.workload.drafted)
        if seconds is None:
            return room
        each = self.model.largest_chunk(
            seconds=seconds,
            tokens=decodes * self.workload.drafted,
            decodes=decodes,
            kv_tokens=decodes * self.workload.context,
            prompts=self.stages,
            context=self.stages * self.workload.attention,
        )
        return min(room, self.stages * each)

    def balanced_step(self, decodes: float) -> float:
        """Mean step of a batch that admits as fast as it finishes."""
        return self.step(decodes, decodes * self.workload.ratio)

    def token_seconds(self, decodes: float) -> float:
        """What one token takes in such a batch: its step, which makes several with speculation."""
        return self.balanced_step(decodes) / self.workload.made

    def arrivals_of(self, decodes: float) -> float:
        """Requests per second that such a batch sustains."""
        return 0.0 if decodes <= 0.0 else decodes / (self.workload.output * self.token_seconds(decodes))

    @property
    def decoded(self) -> float:
        """Tokens of a mean answer that come in steps of their own, behind the first."""
        return 0.0 if self.prefill_only else self.workload.output

    def decodes(self, seqs: float) -> float:
        """Decodes to plan one step for: the mean, never above the limit."""
        return min(float(seqs), max(1.0, self.workload.decodes))

    @cached_property
    def mean_budget(self) -> tuple[float | None, str]:
        """Seconds a step may take in the mean under all objectives, and the tightest's name; None if none says.

        Computed once: the law asks for it at each of its steps.
        """
        budgets = ((self.token_budget(objective), objective.name) for objective in self.objectives)
        return min(((budget, name) for budget, name in budgets if budget is not None), default=(None, ""))

    def token_budget(self, objective: LatencyObjective) -> float | None:
        """Seconds a step may take in the mean under this objective; None if it does not say.

        An end-to-end objective bounds no step: it leaves the first token the more time, the less the others take.
        """
        if objective.metric is Metric.TIME_PER_OUTPUT_TOKEN:
            return objective.seconds * self.margins.token * self.workload.made
        if objective.metric is Metric.INTER_TOKEN_LATENCY:
            return objective.seconds * self.margins.token * TUNABLES.gap_share
        return None


_NORMAL: Final = NormalDist()


def margins() -> Margins:
    """The shares of the objectives that are aimed at."""
    return Margins(token=TUNABLES.token_margin, first_token=TUNABLES.first_token_margin)


def scattered(margins: Margins, objectives: tuple[LatencyObjective, ...], workload: Workload) -> Margins:
    """The margins, narrowed for speculation: so that all but the allowed share of answers keep their token time.

    A request's time per token is a mean over its steps, so that of few steps it scatters nearly as each of them does.
    The tokens that a step makes are between one and all drafts; their mean bounds their variance (Bhatia and Davis,
    2000).
    """
    drafts = max(0.0, (workload.made - 1.0) * (workload.drafted - workload.made)) / workload.made**2
    if not drafts:
        return margins
    scatter = math.sqrt(drafts / max(1.0, workload.output / workload.made))
    token = margins.token
    for objective in objectives:
        if objective.metric is Metric.TIME_PER_OUTPUT_TOKEN:
            deviations = -_NORMAL.inv_cdf(min(0.5, objective.allowed))
            token = min(token, 1.0 / (1.0 + deviations * scatter))
    return replace(margins, token=token)


def in_rounds(inputs: ControlInput, stages: int) -> ControlInput:
    """The same inputs, told of rounds of so many steps: with pipeline parallelism the law thinks in rounds.

    With d stages there are d steps in flight, each with other requests, a d-th part of those that run. A request's next
    token is made once its step has passed all stages, while d steps end. Such a round is a step of an engine without
    stages, whose fixed costs are d times as large: T'(tok, n) = d·T(tok / d, n / d). So what the law says of steps
    holds of rounds. Time, decodes and tokens of a round are d times those of a step. `max_num_active_seqs` counts
    requests in all steps in flight, so it is the same.
    """
    if stages == 1:
        return inputs
    tokens, model = inputs.envelope.tokens, inputs.model
    # A token, a decode and attention cost the same. What each step costs comes as often as there are steps.
    model = replace(model, t0=stages * model.t0, h=stages * model.h, kappa=stages * model.kappa)
    return replace(
        inputs,
        model=model,
        workload=replace(inputs.workload, decodes=stages * inputs.workload.decodes),
        envelope=replace(inputs.envelope, tokens=Span(stages * tokens.least, stages * tokens.most)),
        stages=stages,
    )


def in_steps(output: ControlOutput, stages: int) -> ControlOutput:
    """What was chosen of rounds of so many steps, told of the steps that an engine is held to."""
    if stages == 1:
        return output
    budget = None if output.budget is None else output.budget / stages
    return replace(output, tokens=output.tokens // stages, budget=budget)
