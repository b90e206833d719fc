"""A baseline around a simulated engine, in virtual time: it sees each window as it was, and retunes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flyball_engine.batching.outcomes import MET
from flyball_engine.batching.setpoint_enforcer import RequestedLimits, RunningBatch
from flyball_engine.batching.step_statistics import step_sums
from flyball_engine.batching.step_token_budgeter import Queue
from flyball_engine.contract import Limits, Setpoint
from flyball_lab.baselines import ppas
from flyball_lab.baselines.baseline import WINDOW_SECONDS, Baseline, Window
from flyball_lab.quantiles import quantile
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.fleet import cores_of
from flyball_lab.simulator.kv import BLOCK_TOKENS
from flyball_lab.simulator.requests import Fate, Request
from flyball_lab.simulator.virtual import TimedAct
from flyball_operator.tuning.observe.signals import Cells, PackedSteps, Sums


class Opponent:
    """Observes a core at every window and sends what the baseline wants, by `told`; `changes` counts.

    `requests`: all that will arrive, in order.
    """

    def __init__(self, baseline: Baseline, requests: Sequence[Request], *, told: Callable[[Limits], Setpoint]) -> None:
        self.baseline = baseline
        self.changes: list[float] = []
        self._requests = requests
        self._told = told
        self._arrived = 0
        self._open: list[Request] = []
        self._cells: Cells = {}
        self._good = 0
        self._ended = self._ended_tokens = 0
        self._generation = 0

    def events(self, seconds: float) -> list[TimedAct]:
        """All it will do in a run of so many seconds."""
        windows = range(1, int(seconds / WINDOW_SECONDS) + 1)
        return [TimedAct(0.0, self._push), *(TimedAct(number * WINDOW_SECONDS, self._decide) for number in windows)]

    def _decide(self, core: Core) -> None:
        before = self.baseline.limits
        self.baseline = self.baseline.after(self._window(core))
        if self.baseline.limits != before:
            self.changes.append(core.now)
            self._push(core)

    def _push(self, core: Core) -> None:
        self._generation += 1
        setpoint = self._told(self.baseline.limits).model_copy(update={"generation": self._generation})
        core.follow(setpoint)
        core.apply(setpoint)

    def _window(self, core: Core) -> Window:
        ended = self._take_ended(core.now)
        steps, seconds, decodes = self._take_steps(core)
        per_token = [
            (one.ended - one.first_token) / (one.output - 1)
            for one in ended
            if one.first_token is not None and one.output > 1
        ]
        good = sum(count for (_, how), count in core.ledger.collect().all_objectives.items() if how == MET)
        fresh, self._good = good - self._good, good
        # Limits are each engine's, so the queue is a mean engine's, too.
        engines, scheduler = len(cores_of(core)), core.scheduler
        self._ended += len(ended)
        self._ended_tokens += sum(one.prompt + one.output for one in ended)
        return Window(
            seconds=WINDOW_SECONDS,
            token=seconds / decodes if decodes else None,
            token_p99=quantile(per_token, 0.99) if per_token else None,
            batch=decodes / steps if decodes else None,
            running=len(scheduler.running) / engines,
            waiting=len(scheduler.waiting) / engines,
            good=fresh,
            kv_tokens=scheduler.capacity * BLOCK_TOKENS,
            request_tokens=self._ended_tokens / self._ended if self._ended else None,
        )

    def _take_ended(self, now: float) -> list[Request]:
        """The requests that were answered since it was asked last."""
        while self._arrived < len(self._requests) and self._requests[self._arrived].arrival <= now:
            self._open.append(self._requests[self._arrived])
            self._arrived += 1
        ended = [request for request in self._open if request.fate is Fate.FINISHED]
        self._open = [request for request in self._open if request.fate is Fate.OPEN]
        return ended

    def _take_steps(self, core: Core) -> tuple[float, float, float]:
        """Steps that had decodes since it was asked last, their seconds times their decodes, and their decodes."""
        cells = PackedSteps.of(step_sums(core.statistics.sums)).cells()
        fresh = [sums.minus(self._cells.get(key, Sums())) for key, sums in cells.items()]
        self._cells = cells
        made = [sums for sums in fresh if sums.decodes > 0]
        # Within a cell, which is a doubling of tokens, steps count alike.
        weighted = sum(sums.seconds / sums.steps * sums.decodes for sums in made)
        return sum(sums.steps for sums in made), weighted, sum(sums.decodes for sums in made)


def pressed(core: Core) -> None:
    """From now on P-PAS is asked before each step of this core: it has what it says, where that is less."""
    governed, scheduler = core.governed, core.scheduler
    held = governed.limits

    def limits(batch: RunningBatch, queue: Callable[[], Queue]) -> RequestedLimits:
        most = held(batch, queue)
        prefills = batch.size - batch.decodes + len(scheduler.waiting)
        least = min(most.tokens, ppas.tokens(prefills=prefills, decodes=batch.decodes))
        return RequestedLimits(active=most.active, tokens=least, threshold=most.threshold, depth=most.depth)

    governed.limits = limits  # type: ignore[method-assign] # the rule is the scheduler's own
