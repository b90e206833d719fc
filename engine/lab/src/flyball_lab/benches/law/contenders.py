"""What meets the scenarios: the law, limits that never move, and other rules that move them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from flyball_engine.contract import Limits, QueueLimits, Setpoint
from flyball_lab.baselines.aimd import Aimd
from flyball_lab.baselines.baseline import Baseline, SearchBounds
from flyball_lab.baselines.binary_search import BinarySearch
from flyball_lab.baselines.gate_at_arrival import GateAtArrival
from flyball_lab.baselines.gradient import Gradient2
from flyball_lab.baselines.loop import Opponent, pressed
from flyball_lab.baselines.random_search import RandomSearch
from flyball_lab.benches.law.closed_loop import ClosedLoop, Constant
from flyball_lab.benches.law.measures import good_each, most_within, recovery, seconds_below
from flyball_lab.benches.law.plays import STEP_MARGIN
from flyball_lab.benches.law.scenarios import Case, Scenario
from flyball_lab.benches.law.setpoints import GATE_MARGIN
from flyball_lab.benches.law.tuned_service import TunedService
from flyball_lab.harness.manifests import Object
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.fleet import cores_of
from flyball_lab.simulator.requests import Fate, Request
from flyball_lab.simulator.virtual import TimedAct, retune, run
from flyball_operator.tuning.spec import Span

#: Seconds after the last arrival in which answers may still come in time.
AFTERWARDS: Final = 60.0
#: Changes are counted in any span of so many seconds.
MINUTE: Final = 60.0
SEQS: Final = (8, 16, 32, 64, 128, 192, 256)
TOKENS: Final = (256, 512, 1024, 2048, 4096, 8192)
#: Behind a gate fixed limits may have what the law has, too: a budget for each step, as shares of a token's objective,
#: and another margin of the gate. C is then at its most; the budget takes its place.
BUDGETS: Final = (STEP_MARGIN, 1.0, 1.5, 2.5)
BUDGETED_SEQS: Final = (16, 64, 128, 256)
GATE_MARGINS: Final = (0.7, GATE_MARGIN, 0.95)
#: A grid for the impatient; limits by hand are in it.
COARSE: Final = ((32, 256), (512, 2048, 8192))
COARSE_BUDGETS: Final = ((STEP_MARGIN, 2.5), (64, 256), (GATE_MARGIN,))
#: vLLM's defaults, by version and front end, and the small C of a person's hand.
BY_HAND: Final = ((256, 2048), (256, 8192), (256, 512))
TICKS: Final = (1.0, 5.0, 15.0)
#: vLLM's own limit of prompt tokens in its queue, by hand: four full steps of vLLM's default.
QUEUED_TOKENS: Final = 8192
#: Those that observe windows, by name: how each starts. The seed is the run's.
BASELINES: Final[Mapping[str, Callable[[SearchBounds, int], Baseline]]] = {
    "AIMD": lambda bounds, _: Aimd.start(bounds),
    "binary search": lambda bounds, _: BinarySearch.start(bounds),
    "Gradient2": lambda bounds, _: Gradient2.start(bounds),
    "random search": lambda bounds, seed: RandomSearch.start(bounds, Random(seed)),
}
#: Those that move S alone, and the C that they have besides vLLM's: who leaves C at 8192 has the tokens spoilt by that.
OF_SEQS: Final = ("AIMD", "binary search", "Gradient2")
STEPS_BY_HAND: Final = (512, 1024)
PPAS: Final = "P-PAS"
CONSTANT: Final = "constant setpoint, learnt model"
#: How often the constant setpoint's model is learnt anew, in seconds.
LEARNT_EVERY: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Fixed limits, or the law at a tick of so many seconds, or a baseline, whose C is `tokens` where it moves S alone.

    `constant`: of the law the model alone. `budget`: share of a token's objective that each step may take behind a
    gate, whose margin is `gate_margin`. `pressed`: P-PAS moves C. `queued_tokens`: vLLM refuses requests while so many
    tokens of prompts are unserved.
    """

    name: str
    limits: tuple[int, int] | None = None
    tick: float | None = None
    constant: bool = False
    baseline: str | None = None
    tokens: int | None = None
    budget: float | None = None
    gate_margin: float = GATE_MARGIN
    pressed: bool = False
    queued_tokens: int | None = None

    @property
    def in_grid(self) -> bool:
        """Whether the oracle may choose it."""
        return self.limits is not None and not self.pressed and self.queued_tokens is None

    @property
    def plain(self) -> bool:
        """Whether it is limits alone, behind the usual gate if any."""
        return self.in_grid and self.budget is None and self.gate_margin == GATE_MARGIN


def the_law(tick: float) -> Contender:
    """Deciding so often."""
    return Contender(name=f"the law, every {tick:g} s", tick=tick)


def contenders(
    seqs: Sequence[int] = SEQS, tokens: Sequence[int] = TOKENS, ticks: Sequence[float] = TICKS
) -> tuple[Contender, ...]:
    """The law at every tick, the baselines, and a grid of fixed limits."""
    return (
        *map(the_law, ticks),
        *(Contender(name=name, baseline=name) for name in BASELINES),
        *(
            Contender(name=f"{name}, C {step}", baseline=name, tokens=step)
            for name in OF_SEQS
            for step in STEPS_BY_HAND
        ),
        # Both start as vLLM does on a GPU.
        Contender(name=PPAS, limits=(256, 8192), pressed=True),
        Contender(name="queue limit", limits=(256, 2048), queued_tokens=QUEUED_TOKENS),
        *(Contender(name=f"{most}/{step}", limits=(most, step)) for most in seqs for step in tokens),
    )


def gated_contenders(
    budgets: Sequence[float] = BUDGETS,
    seqs: Sequence[int] = BUDGETED_SEQS,
    margins: Sequence[float] = GATE_MARGINS,
) -> tuple[Contender, ...]:
    """What else there is behind a gate: a constant setpoint, and limits with budgets and margins of their own."""
    most = max(TOKENS)
    return (
        Contender(name=CONSTANT, tick=LEARNT_EVERY, constant=True),
        *(
            Contender(
                name=f"{each}/{most}, steps × {budget:g}, gate × {margin:g}",
                limits=(each, most),
                budget=budget,
                gate_margin=margin,
            )
            for each in seqs
            for budget in budgets
            for margin in margins
        ),
    )


@dataclass(frozen=True)
class RunFigures:
    """Requests per second that kept every objective, their share of those let in, and the most changes in any minute.

    `first`: the share of those let in whose first token came in time; `tokens`: of those that got one, the share whose
    other tokens did. `good_each`, `recovery`: see `measures`. `below`: seconds of too low an attainment among all,
    `below_let_in` among those let in. `longest`: seconds of the longest wait for a first token among those let in.
    `infeasible`: requests that no order serves in time, which `kept` leaves out where they are counted.
    Where it was watched: `swing`, the coefficient of variation of S over the decisions; `outside`, decisions whose
    limits were outside of the envelope; `raised`, decisions that ended in an exception.
    """

    goodput: float
    kept: float
    changes: int
    first: float = 1.0
    tokens: float = 1.0
    below: int = 0
    below_let_in: int = 0
    recovery: int = 0
    longest: float = 0.0
    infeasible: int = 0
    good_each: tuple[int, ...] = ()
    swing: float = 0.0
    outside: int = 0
    raised: int = 0


def play(
    case: Case,
    contender: Contender,
    seed: int,
    *,
    gate: bool,
    service: Callable[[Object], TunedService] = TunedService,
) -> RunFigures:
    """One run. `service` makes what the law drives of a manifest."""
    until, requests = case.seconds + AFTERWARDS, case.requests(seed)
    core = case.core(seed)
    if gate and contender.tick is None:
        stand_at_arrival(core)
    changes: Sequence[float] = ()
    if contender.limits is not None:
        run(core, requests, until=until, events=[*_fixed(case, contender, core, gate=gate), *case.events()])
    elif contender.tick is not None:
        pods = case.pods if isinstance(case, Scenario) else 1
        closed_loop = (Constant if contender.constant else ClosedLoop)(
            case.tuning, tick=contender.tick, gated=gate, cores=pods, service=service
        )
        run(core, requests, until=until, events=[*case.events(), *closed_loop.events(until)])
        changes = closed_loop.changes
    elif contender.baseline is not None:
        baseline = _baseline(case, contender.baseline, seed, tokens=contender.tokens)
        opponent = Opponent(baseline, requests, told=lambda one: case.setpoint(one, gate=gate))
        run(core, requests, until=until, events=[*case.events(), *opponent.events(until)])
        changes = opponent.changes
    return outcome(case, requests, changes)


def stand_at_arrival(core: Core) -> None:
    """Whoever serves first come, first served has the gate that is best there: one that foresees the queue."""
    for one in cores_of(core):
        one.stand_behind(GateAtArrival)


def outcome(case: Case, requests: Sequence[Request], changes: Sequence[float]) -> RunFigures:
    """What came of a run."""
    good = sum(map(case.good, requests))
    let_in = [request for request in requests if request.fate is not Fate.SHED]
    answered = [request for request in let_in if request.first_token is not None]
    return RunFigures(
        goodput=good / case.seconds,
        kept=good / max(1, len(let_in)),
        changes=most_within(changes, MINUTE),
        first=_share(let_in, case.first_in_time),
        tokens=_share(answered, case.tokens_in_time),
        below=seconds_below(requests, case.good, case.seconds),
        below_let_in=seconds_below(let_in, case.good, case.seconds),
        recovery=recovery(requests, case.good, case.relieved),
        longest=max((_waited(case, request) for request in let_in), default=0.0),
        good_each=good_each(requests, case.good, case.seconds),
    )


def _waited(case: Case, request: Request) -> float:
    """Seconds to its first token, or to the end of the run."""
    until = case.seconds + AFTERWARDS if request.fate is Fate.OPEN else request.ended
    return (until if request.first_token is None else request.first_token) - request.arrival


def _share(requests: Sequence[Request], kept: Callable[[Request], bool]) -> float:
    return sum(map(kept, requests)) / len(requests) if requests else 1.0


def _baseline(case: Case, name: str, seed: int, *, tokens: int | None) -> Baseline:
    envelope = case.tuning.envelope
    steps = envelope.tokens if tokens is None else Span(envelope.tokens.least, tokens)
    return BASELINES[name](SearchBounds(envelope.seqs, steps, case.token), seed)


def _spans(case: Case) -> tuple[Span, Span]:
    return case.tuning.envelope.seqs, case.tuning.envelope.tokens


def _fixed(case: Case, contender: Contender, core: Core, *, gate: bool) -> list[TimedAct]:
    """Limits that hold from the start, and what else the contender has put into the engine."""
    assert contender.limits is not None
    # No engine has more than it was started with.
    seqs, tokens = (min(limit, span.most) for limit, span in zip(contender.limits, _spans(case), strict=True))
    limits = Limits(max_num_active_seqs=seqs, max_num_scheduled_tokens=tokens)
    setpoint: Setpoint = case.setpoint(limits, gate=gate, budget=contender.budget, margin=contender.gate_margin)
    if contender.queued_tokens is not None:
        queue = QueueLimits(max_num_queued_tokens=contender.queued_tokens)
        setpoint = setpoint.model_copy(update={"queue": queue})
    if contender.pressed:
        for one in cores_of(core):
            pressed(one)
    return [retune(0.0, setpoint)]
