"""The law: from a step-time model, a demand and objectives to batch limits.

Two limits, two causes. `max_num_active_seqs` (S) is the largest batch whose balanced step keeps the token objectives:
a batch of n decodes must admit n·ρ prefill tokens per step to hold its size (ρ = prefill tokens per decode), so its
mean step is T(n, n·ρ), and that is what a token takes. KV memory caps S. `max_num_scheduled_tokens` (C) bounds one
step: the gap that a long prompt tears into every stream, against the time the prompt itself waits. Where full steps
keep the token objectives of a larger batch, too, S is that: what comes next may be fed by less.

Without an admission gate an infeasible load is drained first, with the largest steps: protecting token latency behind
a queue that grows without bound loses every later request, and where gaps are lost anyway, few long ones lose fewer
than many of medium length. `shed` has what is chosen behind a gate. Pure; seconds and tokens throughout, all per
engine core.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from flyball_engine.contract import Metric
from flyball_operator.governor.queueing import place_wait, prompt_wait
from flyball_operator.governor.situation import Choice, Demand, Margins, Prediction, Regime, Situation
from flyball_operator.governor.spec import Objective

#: Chunks of a saturated engine must at least feed the batch they run beside.
BALANCE: Final = 1.05
#: Share of the KV cache that may be filled, and how many deviations of request length are kept free (1 % preempted).
KV_SHARE: Final = 0.92
KV_DEVIATIONS: Final = 2.33
#: Gap objectives hold for single steps, which scatter about the mean that the model predicts.
GAP_SHARE: Final = 0.85
#: Arrivals of one second scatter by this many deviations.
BURST_DEVIATIONS: Final = 2.0
#: A drain ends when the queue takes this share of what an empty one leaves of the first-token objectives.
DRAINED: Final = 0.5
#: Draining spoils the tokens of all that run: it must compute prompts so much faster than what keeps them, this being
#: the share of its rate that is as good. Prompts in long prefill are hardly faster in larger steps.
AS_FAST: Final = 0.75
#: Share of what first tokens leave that a wait for a place may take: the rest is the prompts' before it, and a drain's.
FOR_PLACES: Final = 0.7
#: Another C must use the objectives less by this share, else C would wander with every window's noise.
KEEP: Final = 0.15
#: Candidates for C: quarter octaves in multiples of 8.
_SIZES: Final = frozenset(int(2 ** (quarter / 4)) // 8 * 8 for quarter in range(80))
#: Metrics that a queue spoils, whatever a step takes.
_FIRST: Final = (Metric.TIME_TO_FIRST_TOKEN, Metric.END_TO_END_LATENCY)


@dataclass(frozen=True)
class Point:
    """One candidate C: its prediction, drain rate, and use of the objectives (1 = at the margin).

    `idle_use`: what `first_use` would be with an empty queue; told only where the law is draining.
    """

    tokens: int
    rate: float
    predicted: Prediction
    token_use: float
    first_use: float
    idle_use: float

    @property
    def use(self) -> float:
        """Use of the objective nearest to its margin."""
        return max(self.token_use, self.first_use)

    def in_time(self, most: float, *, draining: bool) -> bool:
        """Whether first-token objectives are used to `most`; a drain goes on until the queue takes little of that.

        Little of what an empty queue leaves: long prompts use much of their objective on an idle engine, too.
        """
        queue = self.first_use - self.idle_use
        return self.first_use <= most and (not draining or queue <= DRAINED * (most - self.idle_use))


def choose(situation: Situation) -> Choice:
    """The limits for one core. Never outside the envelope."""
    if not situation.objectives:
        return _widest(situation)
    seqs, seqs_binding = calm_seqs(situation)
    seqs = _relieved(situation, seqs)
    points = _points(situation, seqs)
    # Use is 1 at the margin, and at the threshold itself:
    brink, draining = 1.0 / situation.margins.first_token, situation.draining
    calm = [point for point in points if point.token_use <= 1.0]
    prompt = [point for point in points if point.in_time(1.0, draining=draining)]
    both = [point for point in calm if point in prompt]
    # A queue that is only foretold spoils nothing yet: draining it would.
    foretold = situation.demand.waiting < 1.0 and not draining
    late = [point for point in calm if foretold or point.in_time(brink, draining=draining)]
    regime = Regime.BALANCED if has_token_objective(situation.objectives) else Regime.THROUGHPUT
    if both:
        best = min(
            both, key=lambda point: (point.use - (KEEP if point.tokens == situation.tokens else 0.0), point.tokens)
        )
    elif late:
        # The margin is gone, the objective is not: as fast as token objectives allow.
        best = max(late, key=lambda point: point.rate)
    elif points[-1].token_use > 1.0 and (as_fast := [one for one in calm if one.rate >= AS_FAST * points[-1].rate]):
        best, regime = max(as_fast, key=lambda point: point.rate), Regime.DRAINING
    elif prompt:
        best, regime = max(prompt, key=lambda point: point.rate), Regime.TOKEN_BOUND
    else:
        return _drain(situation)
    drains = regime in (Regime.DRAINING, Regime.TOKEN_BOUND)
    return Choice(
        seqs=seqs if drains else _unspoiled(situation, seqs, best.tokens),
        tokens=best.tokens,
        regime=regime,
        binding=_binding(best, situation.objectives, seqs_binding),
        predicted=best.predicted,
    )


def grid_points(situation: Situation) -> list[Point]:
    """What comes of each candidate for C beside the batch that keeps the token objectives."""
    return _points(situation, calm_seqs(situation)[0])


def _points(situation: Situation, seqs: int) -> list[Point]:
    batch = _Batch.of(situation, seqs)
    return [_point(situation, batch, tokens) for tokens in _grid(situation, batch, seqs)]


def _widest(situation: Situation) -> Choice:
    """Nothing to hold: the upper bounds, as far as memory goes."""
    span = situation.envelope.seqs
    seqs = min(span.most, max(span.least, kv_seqs(situation.demand)))
    point = point_at(situation, seqs, situation.envelope.tokens.most)
    return Choice(seqs=seqs, tokens=point.tokens, regime=Regime.THROUGHPUT, binding="", predicted=point.predicted)


def has_token_objective(objectives: tuple[Objective, ...]) -> bool:
    """Whether some objective is about more than the first token."""
    return any(objective.metric is not Metric.TIME_TO_FIRST_TOKEN for objective in objectives)


def calm_seqs(situation: Situation) -> tuple[int, str]:
    """Largest batch whose balanced step keeps every token objective, KV memory and bounds; and what bound it."""
    span = situation.envelope.seqs
    most = min(span.most, max(span.least, kv_seqs(situation.demand)))
    binding = "" if most == span.most else "KVCache"
    for objective in situation.objectives:
        budget = token_budget(objective, situation)
        fits = most if budget is None else _largest_batch(situation, span.least, most, budget)
        if fits < most:
            most, binding = fits, objective.name
    return most, binding


def _unspoiled(situation: Situation, seqs: int, tokens: int) -> int:
    """The batch enlarged as far as it keeps the token objectives even if all its steps are full; `seqs` at least.

    A batch that must be fed by long prompts is small; once others come, requests would wait for a place behind it until
    that is seen. Full steps bound what a token takes, whatever comes. Half of them is left for prompts.
    """
    budget = min((b for o in situation.objectives if (b := token_budget(o, situation)) is not None), default=None)
    drafted = situation.demand.drafted
    # Each step of a round has room for the whole batch: those that joined in one stay together.
    fits = int(tokens / (max(2, situation.stages) * drafted))
    most = min(situation.envelope.seqs.most, kv_seqs(situation.demand), fits)
    if budget is None:
        return seqs
    low, high = seqs, max(seqs, most)
    while low < high:
        middle = (low + high + 1) // 2
        kept = situation.step(middle, tokens - middle * drafted) <= budget
        low, high = (middle, high) if kept else (low, middle - 1)
    return low


def _relieved(situation: Situation, seqs: int) -> int:
    """The batch enlarged until requests wait for a place for a part of what their objective allows, as memory does.

    No gate stands before the queue: a batch too small for its arrivals would keep every token objective and lose every
    first token. Only as much is given up as the queue needs.
    """
    low, high = seqs, min(situation.envelope.seqs.most, max(seqs, kv_seqs(situation.demand)))
    budget = FOR_PLACES * _wait_budget(situation, seqs)
    while low < high:
        middle = (low + high) // 2
        wait = place_wait(situation, middle, waiting=situation.demand.waiting)
        low, high = (low, middle) if wait <= budget else (middle + 1, high)
    return low


def _wait_budget(situation: Situation, seqs: int) -> float:
    """Seconds a request may wait for a place: what its objective leaves beside the tokens a batch of `seqs` makes."""
    made = situation.demand.output * situation.token_seconds(seqs)
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


def token_budget(objective: Objective, situation: Situation) -> float | None:
    """Seconds a balanced step may take under this objective; None if it does not say."""
    margins, made = situation.margins, situation.demand.made
    if objective.metric is Metric.TIME_PER_OUTPUT_TOKEN:
        return objective.seconds * margins.token * made
    if objective.metric is Metric.INTER_TOKEN_LATENCY:
        return objective.seconds * margins.token * GAP_SHARE
    if objective.metric is Metric.END_TO_END_LATENCY:
        return objective.seconds * margins.first_token / (situation.demand.output + 1.0) * made
    return None


def kv_seqs(demand: Demand) -> int:
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


def _grid(situation: Situation, batch: _Batch, seqs: int) -> list[int]:
    """Candidates for C: `_SIZES`, the present one, the ends, never below what feeds the batch.

    Nor below what has room for a batch of `seqs` in each step of a round, which the engine sees to.
    """
    span, decodes = situation.envelope.tokens, batch.decodes
    # The mean batch, not the larger one a step is planned for: a few decodes more are many tokens of long prompts.
    drafted = situation.demand.drafted
    fed = min(situation.demand.decodes, decodes) * (drafted + situation.demand.ratio)
    room = situation.stages * seqs * drafted if situation.stages > 1 else 0.0
    floor = max(BALANCE * fed, decodes * drafted + 64, room)
    least = min(span.most, max(span.least, math.ceil(floor)))
    sizes = _SIZES | {situation.tokens, int(batch.harmless)}
    return sorted({least, span.most, *(size for size in sizes if least < size < span.most)})


def _harmless(situation: Situation, decodes: float) -> float:
    """Tokens of the largest step that keeps what a token takes in the mean even if all steps are full; 0 if none does.

    Smaller steps save no token, whatever comes: up to there C is the first tokens' alone. Gaps are single steps, which
    scatter: there slack is worth something.
    """
    budgets = [
        token_budget(objective, situation) for objective in situation.objectives if objective.metric not in _FIRST
    ]
    if not budgets or any(objective.metric is Metric.INTER_TOKEN_LATENCY for objective in situation.objectives):
        return 0.0
    seconds = min(budget for budget in budgets if budget is not None)
    tokens, chunk = decodes * situation.demand.drafted, situation.largest_chunk(decodes, seconds=seconds)
    return min(tokens + chunk, float(situation.envelope.tokens.most)) if chunk >= 1.0 else 0.0


@dataclass(frozen=True)
class _Batch:
    """What is the same for each C beside a batch of `seqs`.

    `decodes` of a step; `harmless`: tokens of the largest step that spoils none; `capacity` in requests per second;
    `place_wait`: seconds that a request waits for a place, `calm_place_wait`: with an empty queue.
    """

    decodes: float
    harmless: float
    capacity: float
    place_wait: float
    calm_place_wait: float

    @classmethod
    def of(cls, situation: Situation, seqs: int) -> _Batch:
        """In this situation."""
        decodes = situation.decodes(seqs)
        return cls(
            decodes=decodes,
            harmless=_harmless(situation, decodes),
            capacity=situation.capacity(seqs),
            place_wait=place_wait(situation, seqs, waiting=situation.demand.waiting),
            calm_place_wait=place_wait(situation, seqs, waiting=0.0),
        )


def point_at(situation: Situation, seqs: int, tokens: int) -> Point:
    """What comes of these limits."""
    return _point(situation, _Batch.of(situation, seqs), tokens)


def _point(situation: Situation, batch: _Batch, tokens: int) -> Point:
    demand = situation.demand
    decodes = min(batch.decodes, (tokens - 1.0) / demand.drafted)
    chunk = tokens - decodes * demand.drafted
    full, idle = situation.step(decodes, chunk), situation.step(decodes, 0.0)

    def predicted(waiting: float, place_wait: float) -> Prediction:
        return _predict(
            demand, chunk=chunk, full=full, idle=idle, waiting=waiting, place_wait=place_wait, capacity=batch.capacity
        )

    expected = predicted(demand.waiting, batch.place_wait)
    first_use = _most_use(situation, expected, first=True)
    calm = predicted(0.0, batch.calm_place_wait) if situation.draining and demand.waiting > 0 else expected
    return Point(
        tokens=tokens,
        rate=chunk / full,
        predicted=expected,
        token_use=_most_use(situation, expected, first=False) if tokens > batch.harmless else 0.0,
        first_use=first_use,
        idle_use=first_use if calm is expected else _most_use(situation, calm, first=True),
    )


def _most_use(situation: Situation, predicted: Prediction, *, first: bool) -> float:
    """Use of the objective nearest to its margin, among those that a queue spoils (`first`) or among the others."""
    uses = (
        use(objective, predicted, situation.margins)
        for objective in situation.objectives
        if (objective.metric in _FIRST) is first
    )
    return max(uses, default=0.0)


def _predict(
    demand: Demand, *, chunk: float, full: float, idle: float, waiting: float, place_wait: float, capacity: float
) -> Prediction:
    """What comes of full steps of `chunk` prefill tokens taking `full` seconds among steps of decodes taking `idle`.

    `waiting` requests are before those that come, which wait for a place for `place_wait` seconds.
    """
    rate, backlog = chunk / full, waiting * demand.uncached
    wait = max((backlog + 1.5 * demand.large) / rate + prompt_wait(demand, rate), place_wait)
    ttft = full / 2 + wait
    # Share of a request's steps that carry prefill: all of the backlog, a burst, and what arrives meanwhile.
    burst = BURST_DEVIATIONS * math.sqrt(demand.arrivals) * demand.uncached
    fed = backlog + burst + demand.arrivals * demand.uncached * full
    share = min(1.0, fed / (chunk * max(1.0, demand.output / demand.made / 2)))
    tpot = (share * full + (1.0 - share) * idle) / demand.made
    return Prediction(ttft=ttft, tpot=tpot, gap=full, e2e=ttft + demand.output * tpot, capacity=capacity, rate=rate)


def use(objective: Objective, predicted: Prediction, margins: Margins) -> float:
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
    return use(objective, choice.predicted, situation.margins)


def _binding(point: Point, objectives: tuple[Objective, ...], seqs_binding: str) -> str:
    """The objective nearest to its threshold; what bound the batch if no objective is near."""
    if not objectives or (seqs_binding and point.use < 0.5):
        return seqs_binding
    return max(objectives, key=lambda objective: use(objective, point.predicted, Margins())).name
