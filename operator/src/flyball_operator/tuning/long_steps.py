"""The time that a step may take where not every step carries a prompt.

A time per output token is a mean over an answer. If a share of the steps only decode, and are short, the others may
take longer than that mean; then a long prompt takes fewer steps, and what each step costs besides its tokens is paid
less often. That is worth something where one prompt takes much of the first-token objective. So there the budget is
a larger B at which the predicted time per token is kept,

    T = 1 / (φ/B + (1 − φ)/d)

with d the time of a step that only decodes, and φ the share of time in steps of B seconds. At full load φ is 1, and B
the mean itself. A burst is no mean: a short answer must bear all of the prompts that the gate lets in at once. Gaps are
single steps, and bound B itself. Pure.
"""

from __future__ import annotations

import math

from flyball_engine.contract import Metric
from flyball_operator.api.v1alpha1 import DEADLINES
from flyball_operator.tuning.control_input import ControlInput
from flyball_operator.tuning.tunables import TUNABLES


def step_budget(inputs: ControlInput, seqs: int) -> float | None:
    """Seconds that a step may take beside a batch of up to `seqs`; None if no objective says."""
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
    chunk = min(inputs.chunk(decodes, seconds), workload.large)
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
