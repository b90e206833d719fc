"""The law: from a step-time model, a demand and objectives to batch limits.

Two limits, two causes. `max_num_active_seqs` (S) is the largest batch whose balanced step keeps the token objectives:
a batch of n decodes must admit n·ρ prefill tokens per step to hold its size (ρ = prefill tokens per decode), so its
mean step is T(n, n·ρ), and that is what a token takes. KV memory caps S. `max_num_scheduled_tokens` (C) bounds one
step: the gap that a long prompt tears into every stream, against the time the prompt itself waits.

Without an admission gate an infeasible load is drained first, with the largest steps: protecting token latency behind
a queue that grows without bound loses every later request, and where gaps are lost anyway, few long ones lose fewer
than many of medium length. Pure; seconds and tokens throughout, all per engine core.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from flyball_engine.contract import Metric
from flyball_engine.model import StepModel
from flyball_operator.governor.spec import Envelope, Objective

#: A batch this close to what it sustains has chance queues, whose hundredth part waits this many times 1 / spare rate.
BUSY: Final = 0.8
TAIL: Final = 3.0
#: Chunks of a saturated engine must at least feed the batch they run beside.
BALANCE: Final = 1.05
#: Share of the KV cache that may be filled, and how many deviations of request length are kept free (1 % preempted).
KV_SHARE: Final = 0.92
KV_DEVIATIONS: Final = 2.33
#: Gap objectives hold for single steps, which scatter about the mean that the model predicts.
GAP_SHARE: Final = 0.85
#: Arrivals of one second scatter by this many deviations.
BURST_DEVIATIONS: Final = 2.0
#: A drain ends when first tokens are predicted within this share of what would be enough otherwise.
DRAINED: Final = 0.5
#: Another C must use the objectives less by this share, else C would wander with every window's noise.
KEEP: Final = 0.15
#: Seconds that stand for a queue that only grows.
_UNBOUNDED: Final = 3600.0
#: Metrics that a queue spoils, whatever a step takes.
_FIRST: Final = (Metric.TIME_TO_FIRST_TOKEN, Metric.END_TO_END_LATENCY)


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


@dataclass(frozen=True, kw_only=True)
class Margins:
    """Share of a threshold the law aims at; trimmed by counts."""

    token: float = 0.85
    first_token: float = 0.7


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one engine core is asked for.

    `arrivals` requests per second; `prompt` tokens of a prompt, `uncached` those that need computing, `output` tokens;
    `ratio` prefill tokens per decode token; `attention` prefill attention per prefill token (mean context of a chunk);
    `decodes` running in a mean step; `running`, `waiting` requests; `kv_tokens` the cache holds, `held` per running
    request.
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

    @property
    def large(self) -> float:
        """Tokens of the prompt that a token is in on average, E[I²]/E[I]: what waits behind prompts, and the tail, see.

        A prefill token's mean position in its prompt is half of that, and that is what `attention` is.
        """
        return max(self.uncached, 2.0 * self.attention)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Seconds expected of each metric under the chosen limits, and requests per second the batch sustains."""

    ttft: float
    tpot: float
    gap: float
    e2e: float
    capacity: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the law wants. `binding` names the objective that decided, empty if none did."""

    seqs: int
    tokens: int
    regime: Regime
    binding: str
    predicted: Prediction


@dataclass(frozen=True)
class _Point:
    """One candidate C: its prediction, drain rate, and use of the objectives (1 = at the margin)."""

    tokens: int
    rate: float
    predicted: Prediction
    token_use: float
    first_use: float

    @property
    def use(self) -> float:
        """Use of the objective nearest to its margin."""
        return max(self.token_use, self.first_use)


@dataclass(frozen=True)
class Situation:
    """All that limits are chosen from.

    `tokens` is the present C, kept unless another is clearly better; `draining` whether the last choice was to drain,
    which ends only once the first-token objectives can be held with room.
    """

    model: StepModel
    demand: Demand
    objectives: tuple[Objective, ...]
    margins: Margins
    envelope: Envelope
    tokens: int
    draining: bool = False

    def step(self, decodes: float, prefill: float) -> float:
        """Seconds of a step of this many decodes and prefill tokens at the mean context.

        A prefill below one token stands for a prefill in that share of steps.
        """
        context = max(0.0, self.demand.attention - prefill / 2)
        if prefill >= 1.0:
            return self.model.seconds(decodes=decodes, prefill_tokens=prefill, context=context)
        idle = self.model.seconds(decodes=decodes)
        one = self.model.seconds(decodes=decodes, prefill_tokens=1.0, context=context)
        return idle + max(0.0, prefill) * (one - idle)

    def balanced_step(self, decodes: float) -> float:
        """Mean step of a batch that admits as fast as it finishes: what one token takes."""
        return self.step(decodes, decodes * self.demand.ratio)

    def capacity(self, seqs: float) -> float:
        """Requests per second that a batch of `seqs` sustains."""
        return seqs / (self.demand.output * self.balanced_step(seqs))

    def decodes(self, seqs: int) -> float:
        """Decodes to plan one step for: a little above the mean, never above the limit."""
        return min(float(seqs), 1.1 * self.demand.decodes + 2.0)


def choose(situation: Situation) -> Choice:
    """The limits for one core. Never outside the envelope."""
    if not situation.objectives:
        return _widest(situation)
    if situation.draining:
        margins = replace(situation.margins, first_token=situation.margins.first_token * DRAINED)
        situation = replace(situation, margins=margins)
    seqs, seqs_binding = _seqs(situation)
    seqs = _relieved(situation, seqs)
    points = [_point(situation, seqs, tokens) for tokens in _grid(situation, seqs)]
    calm = [point for point in points if point.token_use <= 1.0]
    prompt = [point for point in points if point.first_use <= 1.0]
    both = [point for point in calm if point.first_use <= 1.0]
    late = [point for point in calm if point.first_use * situation.margins.first_token <= 1.0]
    regime = Regime.BALANCED if _has_token_objective(situation.objectives) else Regime.THROUGHPUT
    if both:
        best = min(
            both, key=lambda point: (point.use - (KEEP if point.tokens == situation.tokens else 0.0), point.tokens)
        )
    elif late and not situation.draining:
        # The margin is gone, the objective is not: as fast as token objectives allow.
        best = max(late, key=lambda point: point.rate)
    elif prompt:
        best, regime = max(prompt, key=lambda point: point.rate), Regime.TOKEN_BOUND
    else:
        return _drain(situation)
    return Choice(
        seqs=seqs,
        tokens=best.tokens,
        regime=regime,
        binding=_binding(best, situation.objectives, seqs_binding),
        predicted=best.predicted,
    )


def _widest(situation: Situation) -> Choice:
    """Nothing to hold: the upper bounds, as far as memory goes."""
    span = situation.envelope.seqs
    seqs = min(span.most, max(span.least, _kv_seqs(situation.demand)))
    point = _point(situation, seqs, situation.envelope.tokens.most)
    return Choice(seqs=seqs, tokens=point.tokens, regime=Regime.THROUGHPUT, binding="", predicted=point.predicted)


def _has_token_objective(objectives: tuple[Objective, ...]) -> bool:
    return any(objective.metric is not Metric.TIME_TO_FIRST_TOKEN for objective in objectives)


def _seqs(situation: Situation) -> tuple[int, str]:
    """Largest batch whose balanced step keeps every token objective, KV memory and bounds; and what bound it."""
    span = situation.envelope.seqs
    most = min(span.most, max(span.least, _kv_seqs(situation.demand)))
    binding = "" if most == span.most else "KVCache"
    for objective in situation.objectives:
        budget = _token_budget(objective, situation)
        fits = most if budget is None else _largest_batch(situation, span.least, most, budget)
        if fits < most:
            most, binding = fits, objective.name
    return most, binding


def _relieved(situation: Situation, seqs: int) -> int:
    """The batch enlarged until requests wait for a place no longer than their objective allows, as far as memory does.

    No gate stands before the queue: a batch too small for its arrivals would keep every token objective and lose every
    first token. Only as much is given up as the queue needs.
    """
    low, high = seqs, min(situation.envelope.seqs.most, max(seqs, _kv_seqs(situation.demand)))
    budget = _wait_budget(situation, seqs)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _slot_wait(situation, middle) <= budget else (middle + 1, high)
    return low


def _wait_budget(situation: Situation, seqs: int) -> float:
    """Seconds a request may wait for a place: what its objective leaves beside the tokens a batch of `seqs` makes."""
    made = situation.demand.output * situation.balanced_step(seqs)
    left = min(
        (
            objective.seconds * situation.margins.first_token
            - (made if objective.metric is Metric.END_TO_END_LATENCY else 0.0)
            for objective in situation.objectives
            if objective.metric in _FIRST
        ),
        default=math.inf,
    )
    return max(0.0, left)


def _token_budget(objective: Objective, situation: Situation) -> float | None:
    """Seconds a balanced step may take under this objective; None if it does not say."""
    margins = situation.margins
    if objective.metric is Metric.TIME_PER_OUTPUT_TOKEN:
        return objective.seconds * margins.token
    if objective.metric is Metric.INTER_TOKEN_LATENCY:
        return objective.seconds * margins.token * GAP_SHARE
    if objective.metric is Metric.END_TO_END_LATENCY:
        return objective.seconds * margins.first_token / (situation.demand.output + 1.0)
    return None


def _kv_seqs(demand: Demand) -> int:
    """Requests whose KV fits with room for their scatter; no bound if the cache's size is not known."""
    mean = max(demand.held, demand.prompt + demand.output / 2)
    if demand.kv_tokens <= 0 or mean <= 0:
        return 2**31 - 1
    # k requests hold k·mean ± deviation·√k with a deviation of half the mean: solved for √k.
    room, half = KV_SHARE * demand.kv_tokens / mean, KV_DEVIATIONS / 4
    return max(1, int((math.sqrt(room + half**2) - half) ** 2))


def _largest_batch(situation: Situation, least: int, most: int, budget: float) -> int:
    """Largest batch whose balanced step is within the budget, by bisection; `least` if none is."""
    low, high = least, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if situation.balanced_step(middle) <= budget else (low, middle - 1)
    return low


def _grid(situation: Situation, seqs: int) -> list[int]:
    """Candidates for C: quarter octaves in multiples of 8, the ends, never below what feeds the batch."""
    span, decodes = situation.envelope.tokens, situation.decodes(seqs)
    floor = max(BALANCE * decodes * (1.0 + situation.demand.ratio), decodes + 64)
    least = min(span.most, max(span.least, math.ceil(floor)))
    steps = (int(2 ** (quarter / 4)) // 8 * 8 for quarter in range(80))
    present = {situation.tokens} if least < situation.tokens < span.most else set()
    return sorted({least, span.most, *present, *(size for size in steps if least < size < span.most)})


def _point(situation: Situation, seqs: int, tokens: int) -> _Point:
    decodes = min(situation.decodes(seqs), tokens - 1.0)
    chunk = tokens - decodes
    full = situation.step(decodes, chunk)
    predicted = _predict(situation, seqs, chunk=chunk, full=full, idle=situation.step(decodes, 0.0))
    uses = [(objective, _use(objective, predicted, situation.margins)) for objective in situation.objectives]
    return _Point(
        tokens=tokens,
        rate=chunk / full,
        predicted=predicted,
        token_use=max((use for objective, use in uses if objective.metric not in _FIRST), default=0.0),
        first_use=max((use for objective, use in uses if objective.metric in _FIRST), default=0.0),
    )


def _predict(situation: Situation, seqs: int, *, chunk: float, full: float, idle: float) -> Prediction:
    """What comes of full steps of `chunk` prefill tokens taking `full` seconds among steps of decodes taking `idle`."""
    demand, rate = situation.demand, chunk / full
    backlog = demand.waiting * demand.uncached
    wait = max((backlog + 1.5 * demand.large) / rate + _queueing(demand, rate), _slot_wait(situation, seqs))
    ttft = full / 2 + wait
    # Share of a request's steps that carry prefill: all of the backlog, a burst, and what arrives meanwhile.
    burst = BURST_DEVIATIONS * math.sqrt(demand.arrivals) * demand.uncached
    fed = backlog + burst + demand.arrivals * demand.uncached * full
    share = min(1.0, fed / (chunk * max(1.0, demand.output / 2)))
    tpot = share * full + (1.0 - share) * idle
    return Prediction(
        ttft=ttft, tpot=tpot, gap=full, e2e=ttft + demand.output * tpot, capacity=situation.capacity(seqs)
    )


def _queueing(demand: Demand, rate: float) -> float:
    """Mean wait behind other prompts (M/G/1); very long once prompts arrive faster than they are computed."""
    load = demand.arrivals * demand.uncached / rate
    return load / (2 * (1 - load)) * demand.large / rate if load < 1 else _UNBOUNDED


def _slot_wait(situation: Situation, seqs: int) -> float:
    """Wait for a free place: the queue before it, and the tail of chance queues where the batch is nearly full.

    The tail of the wait falls with the spare rate (P(W > t) ~ exp(-spare·t)), so one in a hundred waits some 3 / spare.
    """
    demand, sustained = situation.demand, situation.capacity(seqs)
    if demand.arrivals >= sustained:
        return _UNBOUNDED
    queue = demand.waiting / sustained if demand.running >= 0.9 * seqs else 0.0
    return queue + (TAIL / (sustained - demand.arrivals) if demand.arrivals > BUSY * sustained else 0.0)


def _use(objective: Objective, predicted: Prediction, margins: Margins) -> float:
    """Predicted share of what the objective allows; 1 is at the margin."""
    if objective.metric is Metric.TIME_TO_FIRST_TOKEN:
        return predicted.ttft / (objective.seconds * margins.first_token)
    if objective.metric is Metric.END_TO_END_LATENCY:
        return predicted.e2e / (objective.seconds * margins.first_token)
    if objective.metric is Metric.TIME_PER_OUTPUT_TOKEN:
        return predicted.tpot / (objective.seconds * margins.token)
    return predicted.gap / (objective.seconds * margins.token * GAP_SHARE)


def _drain(situation: Situation) -> Choice:
    """The largest batch that memory allows and the largest steps: nothing computes prompts faster."""
    waiting = tuple(objective for objective in situation.objectives if objective.metric in _FIRST)
    widest = _widest(situation)
    return replace(
        widest, regime=Regime.DRAINING, binding=max(waiting, key=lambda o: _use_of(widest, o, situation)).name
    )


def _use_of(choice: Choice, objective: Objective, situation: Situation) -> float:
    return _use(objective, choice.predicted, situation.margins)


def _binding(point: _Point, objectives: tuple[Objective, ...], seqs_binding: str) -> str:
    """The objective nearest to its threshold; what bound the batch if no objective is near."""
    if not objectives or (seqs_binding and point.use < 0.5):
        return seqs_binding
    return max(objectives, key=lambda objective: _use(objective, point.predicted, Margins())).name
