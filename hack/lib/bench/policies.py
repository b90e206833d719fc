"""What meets the scenarios: the law, limits that never move, and other rules that move them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from bench.closed_loop import Brain
from bench.fleet import cores_of
from bench.measures import good_each, most_within, recovery, seconds_below
from bench.rivals.aimd import Aimd
from bench.rivals.binary_search import BinarySearch
from bench.rivals.gradient import Gradient2
from bench.rivals.loop import Opponent, pressed
from bench.rivals.random_search import RandomSearch
from bench.rivals.rival import Bounds, Rival
from bench.scenarios import Case, Scenario
from flyball_engine.contract import Limits, QueueLimits, Setpoint
from flyball_engine.simulator.core import Core
from flyball_engine.simulator.requests import Fate, Request
from flyball_engine.simulator.virtual import Event, retune, run

#: Seconds after the last arrival in which answers may still come in time.
AFTERWARDS: Final = 60.0
#: Changes are counted in any span of so many seconds.
MINUTE: Final = 60.0
SEQS: Final = (8, 16, 32, 64, 128, 192, 256)
TOKENS: Final = (256, 512, 1024, 2048, 4096, 8192)
#: A grid for the impatient; limits by hand are in it.
COARSE: Final = ((32, 256), (512, 2048, 8192))
#: vLLM's defaults, by version and front end, and the small C of a person's hand.
BY_HAND: Final = ((256, 2048), (256, 8192), (256, 512))
TICKS: Final = (1.0, 5.0, 15.0)
#: vLLM's own limit of prompt tokens in its queue, by hand: four full steps of vLLM's default.
QUEUED_TOKENS: Final = 8192
#: Those that observe windows, by name: how each starts. The seed is the run's.
RIVALS: Final[Mapping[str, Callable[[Bounds, int], Rival]]] = {
    "AIMD": lambda bounds, _: Aimd.start(bounds),
    "binary search": lambda bounds, _: BinarySearch.start(bounds),
    "Gradient2": lambda bounds, _: Gradient2.start(bounds),
    "random search": lambda bounds, seed: RandomSearch.start(bounds, Random(seed)),
}
PPAS: Final = "P-PAS"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Fixed limits, or the law at a tick of so many seconds, or a rival.

    `pressed`: P-PAS moves C. `queued_tokens`: vLLM refuses requests while so many tokens of prompts are unserved.
    """

    name: str
    limits: tuple[int, int] | None = None
    tick: float | None = None
    rival: str | None = None
    pressed: bool = False
    queued_tokens: int | None = None

    @property
    def in_grid(self) -> bool:
        """Whether the oracle may choose it."""
        return self.limits is not None and not self.pressed and self.queued_tokens is None


def the_law(tick: float) -> Policy:
    """Deciding so often."""
    return Policy(name=f"the law, every {tick:g} s", tick=tick)


def policies(
    seqs: Sequence[int] = SEQS, tokens: Sequence[int] = TOKENS, ticks: Sequence[float] = TICKS
) -> tuple[Policy, ...]:
    """The law at every tick, the rivals, and a grid of fixed limits."""
    return (
        *map(the_law, ticks),
        *(Policy(name=name, rival=name) for name in RIVALS),
        # Both start as vLLM does on a GPU.
        Policy(name=PPAS, limits=(256, 8192), pressed=True),
        Policy(name="queue limit", limits=(256, 2048), queued_tokens=QUEUED_TOKENS),
        *(Policy(name=f"{most}/{step}", limits=(most, step)) for most in seqs for step in tokens),
    )


@dataclass(frozen=True)
class Outcome:
    """Requests per second that kept every objective, their share of those let in, and the most changes in any minute.

    `first`: the share of those let in whose first token came in time; `tokens`: of those that got one, the share whose
    other tokens did. `good_each`, `recovery`: see `measures`. `below`: seconds of too low an attainment among all,
    `below_let_in` among those let in.
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
    good_each: tuple[int, ...] = ()
    swing: float = 0.0
    outside: int = 0
    raised: int = 0


def play(case: Case, policy: Policy, seed: int, *, gate: bool) -> Outcome:
    """One run."""
    until, requests = case.seconds + AFTERWARDS, case.requests(seed)
    core = case.core(seed)
    changes: Sequence[float] = ()
    if policy.limits is not None:
        run(core, requests, until=until, events=[*_fixed(case, policy, core, gate=gate), *case.events()])
    elif policy.tick is not None:
        pods = case.pods if isinstance(case, Scenario) else 1
        brain = Brain(case.tuning, tick=policy.tick, gated=gate, cores=pods)
        run(core, requests, until=until, events=[*case.events(), *brain.events(until)])
        changes = brain.changes
    elif policy.rival is not None:
        opponent = Opponent(_rival(case, policy.rival, seed), requests, told=lambda one: case.setpoint(one, gate=gate))
        run(core, requests, until=until, events=[*case.events(), *opponent.events(until)])
        changes = opponent.changes
    return outcome(case, requests, changes)


def outcome(case: Case, requests: Sequence[Request], changes: Sequence[float]) -> Outcome:
    """What came of a run."""
    good = sum(map(case.good, requests))
    let_in = [request for request in requests if request.fate is not Fate.SHED]
    answered = [request for request in let_in if request.first_token is not None]
    return Outcome(
        goodput=good / case.seconds,
        kept=good / max(1, len(let_in)),
        changes=most_within(changes, MINUTE),
        first=_share(let_in, case.first_in_time),
        tokens=_share(answered, case.tokens_in_time),
        below=seconds_below(requests, case.good, case.seconds),
        below_let_in=seconds_below(let_in, case.good, case.seconds),
        recovery=recovery(requests, case.good, case.relieved),
        good_each=good_each(requests, case.good, case.seconds),
    )


def _share(requests: Sequence[Request], kept: Callable[[Request], bool]) -> float:
    return sum(map(kept, requests)) / len(requests) if requests else 1.0


def _rival(case: Case, name: str, seed: int) -> Rival:
    envelope = case.tuning.envelope
    return RIVALS[name](Bounds(envelope.seqs, envelope.tokens, case.tpot), seed)


def _fixed(case: Case, policy: Policy, core: Core, *, gate: bool) -> list[Event]:
    """Limits that hold from the start, and what else the policy has put into the engine."""
    assert policy.limits is not None
    seqs, tokens = policy.limits
    setpoint: Setpoint = case.setpoint(Limits(max_num_active_seqs=seqs, max_num_scheduled_tokens=tokens), gate=gate)
    if policy.queued_tokens is not None:
        queue = QueueLimits(max_num_queued_tokens=policy.queued_tokens)
        setpoint = setpoint.model_copy(update={"queue": queue})
    if policy.pressed:
        for one in cores_of(core):
            pressed(one)
    return [retune(0.0, setpoint)]
