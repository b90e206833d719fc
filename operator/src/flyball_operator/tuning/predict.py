"""What limits and a load come to: the seconds of each metric, and what is carried. Pure, per engine core.

A batch of n decodes that holds its size admits n·ρ prefill tokens in each step (ρ = prefill tokens per decode). So its
mean step is T(n, n·ρ), and that is what a token takes. First tokens wait behind other prompts (M/G/1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from flyball_engine.contract import Metric
from flyball_operator.tuning.control_input import ControlInput, Margins, Prediction
from flyball_operator.tuning.spec import LatencyObjective
from flyball_operator.tuning.tunables import TUNABLES

#: Seconds that stand for a queue that only grows.
UNBOUNDED: Final = 3600.0
#: Sizes of a step that are tried between one and its double, where first tokens choose among them: each is a fifth
#: larger than the one before, and limits are moved by a tenth at least.
_SIZES_PER_DOUBLING: Final = 4
#: A range is searched to a thousandth of what is found, as limits stay up to a tenth; and halved so often at most.
_FINE: Final = 1e-3
_HALVINGS: Final = 20


def predict(inputs: ControlInput, seqs: float, budget: float | None, *, tail: float = 0.0) -> Prediction:
    """What comes of a batch of at most `seqs` whose steps may take `budget` seconds.

    `tail`: so many times the mean queue of prompts stand before a request, besides those that wait now.
    """
    decodes = 0.0 if inputs.prefill_only else inputs.decodes(seqs)
    chunk = prefill_step(inputs) if inputs.prefill_only else max(1.0, inputs.chunk(decodes, budget))
    full = inputs.step(decodes, chunk)
    ttft = _first_token(inputs, chunk, full, tail=tail)
    tpot = 0.0 if inputs.prefill_only else inputs.token_seconds(decodes)
    if budget is not None:
        # A batch that does not get its prompts in this time shrinks: its steps are held all the same.
        tpot = min(tpot, budget / inputs.workload.made)
    return Prediction(ttft=ttft, tpot=tpot, gap=full, e2e=ttft + inputs.decoded * tpot)


def _first_token(inputs: ControlInput, chunk: float, full: float, *, tail: float) -> float:
    """Seconds to a first token where steps take `chunk` prompt tokens in `full` seconds."""
    workload, rate = inputs.workload, chunk / full
    load = workload.arrivals * workload.uncached / rate
    wait = load / (2 * (1 - load)) * workload.weighted_prompt / rate if load < 1 else UNBOUNDED
    ahead = workload.waiting * workload.uncached + 1.5 * workload.weighted_prompt
    return full / 2 + ahead / rate + (1.0 + tail) * wait


def prefill_step(inputs: ControlInput) -> float:
    """Prompt tokens of the steps with which first tokens come earliest, where an engine only processes prompts.

    Several prompts share a step, and all have their first token at its end. So in a larger step the first of them waits
    for the last. Smaller steps pay their own cost more often, which counts the more the longer the queue is: with Q
    tokens waiting, a step's own cost a and c for each token, √(Q·a/c) tokens are best. Never less than a prompt: its
    parts would pay that cost, too, and nobody would be served sooner. Nor less than a token for each sequence that may
    run, which an engine asks for. Where no size keeps up with the load, it is the largest.
    """
    most = max(1.0, float(inputs.envelope.tokens.most))
    each_step = max(1.0, inputs.workload.weighted_prompt, float(inputs.envelope.seqs.most))
    least = min(most, max(float(inputs.envelope.tokens.least), inputs.stages * each_step))
    doublings = math.ceil(_SIZES_PER_DOUBLING * math.log2(most / least))
    sizes = [min(most, least * 2.0 ** (step / _SIZES_PER_DOUBLING)) for step in range(doublings + 1)]
    tail = TUNABLES.tail
    earliest, chunk = min((_first_token(inputs, size, inputs.step(0.0, size), tail=tail), size) for size in sizes)
    return chunk if earliest < UNBOUNDED else most


def sustained(inputs: ControlInput, seqs: float) -> float:
    """Decodes of the largest batch, of at most `seqs`, that memory and the mean time of a token let hold its size."""
    workload, mean = inputs.workload, inputs.mean_budget[0]
    most = min(seqs, workload.fits, inputs.envelope.tokens.most / (workload.drafted + workload.ratio))
    return most if mean is None else largest(most, lambda decodes: inputs.balanced_step(decodes) <= mean)


def steady(inputs: ControlInput, decodes: float) -> ControlInput:
    """The same mix with nobody waiting, at the rate of arrivals that keeps so many decodes running."""
    workload = replace(inputs.workload, arrivals=inputs.arrivals_of(decodes), waiting=0.0, decodes=decodes)
    # Not `replace`, which takes three times as long: the law is asked of steady loads several times a window.
    return ControlInput(
        inputs.model, workload, inputs.objectives, inputs.margins, inputs.envelope, inputs.stages, inputs.prefill_only
    )


def use(objective: LatencyObjective, predicted: Prediction, margins: Margins) -> float:
    """Predicted share of what the objective allows; 1 is at the margin."""
    seconds, margin = {
        Metric.TIME_TO_FIRST_TOKEN: (predicted.ttft, margins.first_token),
        Metric.END_TO_END_LATENCY: (predicted.e2e, margins.first_token),
        Metric.TIME_PER_OUTPUT_TOKEN: (predicted.tpot, margins.token),
        Metric.INTER_TOKEN_LATENCY: (predicted.gap, margins.token * TUNABLES.gap_share),
    }[objective.metric]
    return seconds / (objective.seconds * margin)


def largest(most: float, holds: Callable[[float], bool]) -> float:
    """A number up to `most` that something holds for, and for all below it, but for none a thousandth larger.

    0 if for none.
    """
    if holds(most):
        return most
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        if high - low <= _FINE * low:
            break
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
