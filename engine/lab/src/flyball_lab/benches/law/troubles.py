"""The law with disturbed metrics, a wrong model to begin with, and engines that change under it."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Final

from flyball_engine.contract import Limits
from flyball_engine.figures import percent
from flyball_engine.model import StepModel
from flyball_lab.benches.law.closed_loop import SCRAPE_SECONDS, ClosedLoop
from flyball_lab.benches.law.contenders import AFTERWARDS, RunFigures, outcome, stand_at_arrival
from flyball_lab.benches.law.disturbances import Absurd, absurd, noisy
from flyball_lab.benches.law.scenarios import Case
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.virtual import TimedAct, crash, retune, run, slow_down
from flyball_operator.tuning.estimate.step_time import resume
from flyball_operator.tuning.observe.signals import Observation, Signals

#: Seconds between two decisions, as in the operator.
TICK: Final = 5.0
#: Seconds for which an engine that died is away: less than a preset's start, whose every second is lost to the wait,
#: whatever the law does.
RESTART_SECONDS: Final = 20.0
#: The share of an adversary's figures that are absurd, once there was one that was not.
LIES: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What is wrong; nothing, unless told otherwise.

    `noise`: deviation of each figure's logarithm. `scrape`: seconds between scrapes, of which the share `dropped` is
    lost. `prior`: the model it resumes with takes so many times as long. `slow`, `restart`: half-way.
    """

    name: str
    noise: float = 0.0
    scrape: float = SCRAPE_SECONDS
    dropped: float = 0.0
    prior: float | None = None
    slow: float = 1.0
    restart: bool = False
    absurd: Absurd | None = None

    @property
    def befalls_engines(self) -> bool:
        """Whether limits that never move suffer from it, too."""
        return self.restart or self.slow != 1.0


NONE: Final = Trouble(name="undisturbed")
TROUBLES: Final = (
    *(Trouble(name=f"noise of {percent(noise)}", noise=noise) for noise in (0.05, 0.25)),
    *(Trouble(name=f"a scrape every {seconds:g} s", scrape=seconds) for seconds in (1.0, 15.0, 30.0)),
    Trouble(name="30 % of the scrapes lost", dropped=0.3),
    Trouble(name="resumed with a model 3 times too slow", prior=3.0),
    Trouble(name="resumed with a model 3 times too fast", prior=1 / 3),
    Trouble(name="40 % slower half-way", slow=1.4),
    Trouble(name="the engine restarts half-way", restart=True),
    *(Trouble(name=f"half of the figures: {kind.value}", absurd=kind) for kind in Absurd),
)


class Disturbed(ClosedLoop):
    """A tuner in trouble. `seqs`: S after each decision. `outside`, `raised`: decisions, see `RunFigures`."""

    def __init__(self, case: Case, trouble: Trouble, random: Random, *, gated: bool) -> None:
        model = None
        if trouble.prior is not None:
            wrong, most = _times(case.known, trouble.prior), case.tuning.envelope.tokens.most
            model = resume(wrong, error=0.05, steps=100_000, reach=most)
        super().__init__(case.tuning, tick=TICK, gated=gated, scrape=trouble.scrape, model=model)
        self.seqs: list[int] = []
        self.outside = self.raised = 0
        self._trouble = trouble
        self._random = random
        self._first: Signals | None = None

    def _scrape(self, core: Core) -> None:
        if self._random.random() >= self._trouble.dropped:
            super()._scrape(core)
        elif self._samples and self._samples[0].at < core.now - self._window_seconds:
            # A window is of its length, however few scrapes are in it.
            self._samples.popleft()

    def _observed(self, signals: Signals) -> Observation:
        trouble, random = self._trouble, self._random
        if trouble.absurd is not None and self._first is not None and random.random() < LIES:
            return absurd(trouble.absurd, signals, self._first)
        self._first = self._first or signals
        return noisy(signals, trouble.noise, random) if trouble.noise else signals

    def _decide(self, core: Core) -> None:
        try:
            super()._decide(core)
        except (ArithmeticError, ValueError):
            self.raised += 1
        limits, envelope = self.state.limits, self._tuning.envelope
        seqs, tokens = limits.max_num_active_seqs or 0, limits.max_num_scheduled_tokens or 0
        self.seqs.append(seqs)
        inside = envelope.seqs.least <= seqs <= envelope.seqs.most
        self.outside += not (inside and envelope.tokens.least <= tokens <= envelope.tokens.most)


def play_law(case: Case, trouble: Trouble, seed: int, *, gate: bool) -> RunFigures:
    """One run of the law in trouble."""
    closed_loop = Disturbed(case, trouble, Random(seed), gated=gate)
    until, requests = case.seconds + AFTERWARDS, case.requests(seed)
    events = [*case.events(), *_befalls(case, trouble), *closed_loop.events(until)]
    run(case.core(seed), requests, until=until, events=events)
    mean = statistics.fmean(closed_loop.seqs)
    swing = statistics.pstdev(closed_loop.seqs) / mean if mean else 0.0
    came = outcome(case, requests, closed_loop.changes)
    return replace(came, swing=swing, outside=closed_loop.outside, raised=closed_loop.raised)


def play_fixed(case: Case, limits: Limits, trouble: Trouble, seed: int, *, gate: bool) -> RunFigures:
    """One run of limits that never move, with what befalls the engine."""
    until, requests = case.seconds + AFTERWARDS, case.requests(seed)
    setpoint = case.setpoint(limits, gate=gate)
    again = [retune(case.seconds / 2 + RESTART_SECONDS, setpoint)] if trouble.restart else []
    events = [retune(0.0, setpoint), *case.events(), *_befalls(case, trouble), *again]
    core = case.core(seed)
    if gate:
        stand_at_arrival(core)
    run(core, requests, until=until, events=events)
    return outcome(case, requests, ())


def _befalls(case: Case, trouble: Trouble) -> list[TimedAct]:
    half = case.seconds / 2
    slower = [slow_down(half, trouble.slow)] if trouble.slow != 1.0 else []
    return [*slower, crash(half, start_seconds=RESTART_SECONDS)] if trouble.restart else slower


def _times(model: StepModel, factor: float) -> StepModel:
    """All coefficients but κ, which is tokens."""
    seconds = {name: factor * value for name, value in asdict(model).items() if name != "kappa"}
    return StepModel(kappa=model.kappa, **seconds)
