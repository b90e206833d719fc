"""The law: what an engine core shall do, from a step-time model, a workload and objectives.

One policy, whether late requests wait or are refused. Who has its first token in time is decided in the engine, which
orders its prompts by what can still be on time, or refuses what cannot. The law says what steps may take:

- `max_num_active_seqs` (S): the largest batch whose decodes keep the token objectives beside a least chunk of a prompt.
  KV memory does not bound it: the engine itself admits what fits.
- The step budget: what a step may take so that the predicted mean time per token is kept. Gaps are single steps. With
  long prompts a step may take longer than the mean, where not every step carries a prompt (`step_budget`).
- `max_num_scheduled_tokens` (C): the largest step that this budget allows beside the mean batch, as an outer bound.
  Where requests end with their first token, it is what makes first tokens earliest (`prefill_step`).
- The deadline: the first-token objective, or what an end-to-end objective leaves.

Pure; seconds and tokens throughout, all per engine core.
"""

from __future__ import annotations

import math
from dataclasses import replace

from flyball_engine.contract import LEAST_CHUNK, Metric
from flyball_operator.api.v1alpha1 import DEADLINES
from flyball_operator.tuning.control_input import ControlInput, ControlOutput, margins
from flyball_operator.tuning.predict import largest, predict, prefill_step, sustained
from flyball_operator.tuning.spec import LatencyObjective, of_class
from flyball_operator.tuning.tunables import TUNABLES


def choose(inputs: ControlInput) -> ControlOutput:
    """What one core shall do. Never outside the envelope."""
    held = _feasible(inputs)
    if len(held) < len(inputs.objectives):
        # Drafts must not narrow a budget until it leaves prompts no room, and the objective is given up for good.
        unnarrowed = replace(inputs, margins=replace(inputs.margins, token=margins().token))
        inputs, held = max((inputs, held), (unnarrowed, _feasible(unnarrowed)), key=lambda found: len(found[1]))
    given_up = tuple(objective.name for objective in inputs.objectives if objective not in held)
    feasible = replace(inputs, objectives=held) if given_up else inputs
    mean, binding = feasible.mean_budget
    if inputs.prefill_only:
        binding = _tightest_deadline(feasible)
    seqs = _seqs(feasible, mean)
    budget, batch = step_budget(feasible, seqs), sustained(feasible, seqs)
    predicted = predict(feasible, seqs, budget)
    return ControlOutput(
        seqs=seqs,
        tokens=_tokens(feasible, seqs, budget),
        binding=given_up[0] if given_up else binding,
        given_up=given_up,
        predicted=predicted,
        batch=batch,
        capacity=feasible.arrivals_of(batch),
        budget=budget,
        deadlines=_deadlines(inputs, predicted.tpot),
    )


def _seqs(inputs: ControlInput, mean: float | None) -> int:
    """The largest batch that keeps the mean time of a token beside a least chunk."""
    span = inputs.envelope.seqs
    if mean is None:
        return span.most
    return max(span.least, int(largest(span.most, lambda decodes: inputs.step(decodes, LEAST_CHUNK) <= mean)))


def _tokens(inputs: ControlInput, seqs: int, budget: float | None) -> int:
    """Tokens of the largest step that a budget allows beside the mean batch.

    Never less than the whole batch needs beside a least chunk, whichever step of a round it is in.
    """
    if inputs.prefill_only:
        return inputs.envelope.tokens.clip(prefill_step(inputs))
    if budget is None:
        return inputs.envelope.tokens.most
    decodes, drafted = inputs.decodes(seqs), inputs.workload.drafted
    room = inputs.stages * seqs * drafted + LEAST_CHUNK
    return inputs.envelope.tokens.clip(max(room, decodes * drafted + inputs.chunk(decodes, budget)))


def _tightest_deadline(inputs: ControlInput) -> str:
    """Name of the objective that says first by when a first token must be there; empty where none does."""
    asking = [objective for objective in inputs.objectives if objective.metric in DEADLINES]
    return min(asking, key=lambda objective: objective.seconds).name if asking else ""


def _feasible(inputs: ControlInput) -> tuple[LatencyObjective, ...]:
    """The objectives but for those of tokens that leave a prompt too little of each step, even on an idle engine.

    The engine would keep to such a budget, and serve no first token in time.
    """
    first = inputs.margins.first_token * min(
        (o.seconds for o in inputs.objectives if o.metric in DEADLINES), default=math.inf
    )

    def leaves_room(objective: LatencyObjective) -> bool:
        budget = inputs.token_budget(objective)
        if budget is None:
            return True
        chunk = inputs.chunk(1.0, budget)
        return chunk >= 1.0 and inputs.workload.uncached * budget <= first * chunk

    return tuple(filter(leaves_room, inputs.objectives))


def _deadlines(inputs: ControlInput, token: float) -> dict[str, float]:
    """The earliest that the objectives of each class leave for a first token, in their order.

    Of an end-to-end objective that is what a mean answer leaves, each of whose tokens takes so many seconds.
    """
    answer = inputs.decoded * token

    def left(objective: LatencyObjective) -> float:
        taken = answer if objective.metric is Metric.END_TO_END_LATENCY else 0.0
        return max(TUNABLES.least_first_share * objective.seconds, objective.seconds - taken)

    asking = [objective for objective in inputs.objectives if objective.metric in DEADLINES]
    names = dict.fromkeys(objective.of_class for objective in asking)
    return {name: min(map(left, of_class(asking, name))) for name in names}


def step_budget(inputs: ControlInput, seqs: int) -> float | None:
    """Seconds that a step may take beside a batch of up to `seqs`; None if no objective says.

    A time per output token is a mean over an answer. If a share of the steps only decode, and are short, the others may
    take longer than that mean. Then a long prompt takes fewer steps, and each step's own cost is paid less often. That
    is worth something where one prompt takes much of the first-token objective. So there the budget is a larger B at
    which the predicted time per token is kept,

        T = 1 / (φ/B + (1 − φ)/d)

    with d the time of a step that only decodes, and φ the share of time in steps of B seconds. At full load φ is 1, and
    B the mean itself. A burst is no mean: a short answer must bear all of the prompts that the gate lets in at once.
    Gaps are single steps, and bound B itself.
    """
    mean, _ = inputs.mean_budget
    if mean is None:
        return None
    first = min((o.seconds for o in inputs.objectives if o.metric in DEADLINES), default=math.inf)
    first *= inputs.margins.first_token
    chunk = inputs.chunk(inputs.decodes(seqs), mean)
    if chunk < 1.0 or inputs.workload.uncached * mean < TUNABLES.long_prompt * first * chunk:
        return mean
    gaps = [
        budget
        for objective in inputs.objectives
        if objective.metric is Metric.INTER_TOKEN_LATENCY and (budget := inputs.token_budget(objective)) is not None
    ]
    seconds = min(TUNABLES.long_step * mean, *gaps, math.inf)
    return seconds if seconds > mean and _kept(inputs, seqs, seconds, mean, burst=first) else mean


def _kept(inputs: ControlInput, seqs: int, seconds: float, mean: float, *, burst: float) -> bool:
    """Whether the mean is kept with steps of so many seconds, by the present load and in a `burst`."""
    workload = inputs.workload
    decodes = inputs.decodes(seqs)
    chunk = min(inputs.chunk(decodes, seconds), workload.weighted_prompt)
    if chunk < 1.0:
        return False
    full, idle = inputs.step(decodes, chunk), inputs.step(decodes, 0.0)
    busy = workload.arrivals * workload.uncached / chunk * full
    if busy >= 1.0 or idle >= mean:
        return full <= mean
    token = 1.0 / (busy / full + (1.0 - busy) / idle)
    # Tokens of the shortest answer that may be held up by a burst: the rest of it makes up for it.
    bears = burst * (1.0 - idle / full) / (mean - idle)
    return token <= mean and bears <= TUNABLES.short_answer * workload.output / workload.made
