"""A gate that decides once, at arrival, by the queue that it foresees: who is let in waits, however late.

    TTFT = rest of the steps in flight + max(backlog and prompt, wait for a slot + prompt)

Prompts are processed at the rate beside the decodes that run, and slots come free as answers of mean length end. For
first come, first served.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flyball_engine.batching.gate import (
    REFUSALS,
    AdmissionReason,
    Admitted,
    Arrival,
    CoreLoad,
    Gate,
    PrefillWork,
    prompt_work,
)
from flyball_engine.contract import Knob
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.scheduler import Scheduler

#: Requests that must have finished before their mean output is used.
_LEAST_FINISHED: Final = 5


class GateAtArrival(Gate):
    """In place of a simulated core's gate."""

    def __init__(self, core: Core) -> None:
        super().__init__(lambda: [core.load()])
        self._core = core

    def judge(self, arrival: Arrival, now: float) -> Admitted:
        """Whether a prompt may go to the engine; whoever may is served."""
        alone = super().judge(arrival, now)
        if alone.predicted is None or alone.deadline is None:
            return alone
        load = self._core.load()
        ahead, (prompt,) = backlog(self._core.scheduler), self._works(arrival, 1)
        queued = load.first_token(PrefillWork(ahead.tokens + prompt.tokens, ahead.attention + prompt.attention))
        predicted = max(queued, self._wait_for_slot(load) + load.first_token(prompt))
        reason = AdmissionReason.IN_TIME if predicted <= alone.deadline else self._why_late([load], now)
        admitted = reason not in REFUSALS
        return replace(alone, admitted=admitted, reason=reason, predicted=predicted, refusable=False)

    def _wait_for_slot(self, load: CoreLoad) -> float:
        """Seconds until enough running requests ended, a step taking as long as the one in flight."""
        core = self._core
        batch, counts = core.scheduler.batch(), core.ledger.collect()
        limit = core.governed.shown(batch)[Knob.MAX_NUM_ACTIVE_SEQS].effective
        needed, finished = load.waiting + 1 - (limit - load.running), counts.requests["finished"]
        if needed <= 0 or finished < _LEAST_FINISHED or not load.running:
            return 0.0
        # Half of the step in flight is left, in the mean.
        return needed * counts.generated_tokens / finished * 2 * load.in_flight_seconds / load.running


def backlog(scheduler: Scheduler) -> PrefillWork:
    """What is to be processed of the prompts that have begun or wait, less what the prefix cache holds."""
    works = [prompt_work(request.target, request.computed) for request in scheduler.prefilling]
    works += [prompt_work(request.target, scheduler.prefixes.hit(request)) for request in scheduler.waiting]
    return PrefillWork(sum(work.tokens for work in works), sum(work.attention for work in works))
