"""What the law is measured on: presets, loads, objectives, and what befalls the engines on the way."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from random import Random
from typing import Final

from flyball_engine.contract import Limits, Metric, Setpoint
from flyball_engine.model import StepModel
from flyball_lab.benches.law.plays import first_in_time, known_model, tokens_in_time, whole_in_time
from flyball_lab.benches.law.setpoints import GATE_MARGIN, fixed, gated
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.core_config import Speculation
from flyball_lab.simulator.fleet import fleet
from flyball_lab.simulator.lengths import SHAPES
from flyball_lab.simulator.presets import PRESETS, EnginePreset
from flyball_lab.simulator.requests import Request
from flyball_lab.simulator.virtual import TimedAct, build, slow_down
from flyball_lab.simulator.workload import ArrivalPhase, workload
from flyball_operator.api.v1alpha1 import Mode
from flyball_operator.tuning.spec import Envelope, LatencyObjective, Span, TuningSpec

#: Shares of requests that a load balancer by sessions or prefixes gives four engines.
UNEVEN: Final = (0.4, 0.3, 0.2, 0.1)
#: The first requests find an engine that knows nothing; they count.
PHASE_SECONDS: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Case(ABC):
    """A preset and objectives in seconds, infinite where there is none; its load is a subclass's.

    `context`: tokens that a decode reads in the mean; `answer`: tokens of one in the mean.
    """

    name: str
    preset: str
    ttft: float = inf
    tpot: float = inf
    e2e: float = inf
    context: int = 1200
    answer: int = 211

    @property
    @abstractmethod
    def seconds(self) -> float:
        """Of arrivals."""

    @property
    def identity(self) -> str:
        """What results are kept under."""
        return self.name

    @abstractmethod
    def requests(self, seed: int) -> list[Request]:
        """The same for every policy."""

    def core(self, seed: int) -> Core:
        """The engine."""
        return build(self.hardware, seed=seed)

    def events(self) -> list[TimedAct]:
        """What befalls the engine."""
        return []

    @property
    def hardware(self) -> EnginePreset:
        """The preset itself."""
        return PRESETS[self.preset]

    @property
    def known(self) -> StepModel:
        """The plant's coefficients but for what no model knows."""
        return known_model(self.hardware, self.context)

    @property
    def tuning(self) -> TuningSpec:
        """What the law may use, and must hold: 99 % of the requests, for each objective."""
        sizes = self.hardware.sizes
        envelope = Envelope(Span(4, sizes.max_num_seqs), Span(128, sizes.max_num_batched_tokens), self.drafts)
        objectives = (
            LatencyObjective("first-token", Metric.TIME_TO_FIRST_TOKEN, self.ttft, 0.01),
            LatencyObjective("per-token", Metric.TIME_PER_OUTPUT_TOKEN, self.tpot, 0.01),
            LatencyObjective("end-to-end", Metric.END_TO_END_LATENCY, self.e2e, 0.01),
        )
        return TuningSpec(Mode.AUTO, envelope, tuple(one for one in objectives if one.seconds < inf))

    @property
    def drafts(self) -> int:
        """Tokens that the law may have drafted for a decode; 0 where it does not choose."""
        return 0

    @property
    def token(self) -> float:
        """Seconds that a token may take in the mean: as asked, or what is left of a whole answer of mean length."""
        return min(self.tpot, self.e2e / self.answer)

    def setpoint(
        self, limits: Limits, *, gate: bool, budget: float | None = None, margin: float = GATE_MARGIN
    ) -> Setpoint:
        """Limits of another's choice, with a gate that knows the plant's coefficients.

        `budget`: the share of a token's time that each step behind the gate may take; absent, any time.
        """
        if not gate:
            return fixed(limits, self.tuning)
        seconds = inf if budget is None else budget * self.token
        return gated(limits, self.tuning, self.known, budget=seconds, margin=margin)

    @property
    def relieved(self) -> tuple[float, ...]:
        """When more requests come than afterwards, and an overload may have ended."""
        return ()

    def first_in_time(self, request: Request) -> bool:
        """Whether its first token came in time."""
        return first_in_time(request, self.ttft)

    def tokens_in_time(self, request: Request) -> bool:
        """Whether the others did, in the mean."""
        return tokens_in_time(request, self.tpot)

    def good(self, request: Request) -> bool:
        """Whether it kept all objectives."""
        kept = self.first_in_time(request) and self.tokens_in_time(request)
        return kept and (self.e2e == inf or whole_in_time(request, self.e2e))


@dataclass(frozen=True, kw_only=True)
class Scenario(Case):
    """Phases of requests per second.

    `beside`: requests that come all the while, too. `variation`, `burst`, `patience`, `sizes`: as of `ArrivalPhase`.
    `slow` slows the plant down half-way. `pods` engines take turns, or have `shares` of the requests; one of them is
    `slow_pod` times as slow from the start. `speculation`: drafts of each engine, as deep as the law says if
    `live_depth`. `warm_up`: seconds in which steps
    take `cold` times as long, from the start.
    """

    phases: tuple[tuple[float, str], ...]
    beside: tuple[float, str] | None = None
    variation: float = 1.0
    burst: int = 1
    patience: float = inf
    sizes: tuple[int, ...] = ()
    slow: float = 1.0
    pods: int = 1
    slow_pod: float = 1.0
    shares: tuple[float, ...] = ()
    speculation: Speculation | None = None
    live_depth: bool = False
    warm_up: float = 0.0
    cold: float = 1.0

    @property
    def seconds(self) -> float:
        """Of arrivals."""
        return PHASE_SECONDS * len(self.phases)

    @property
    def drafts(self) -> int:
        """All that its engines may have."""
        return self.speculation.drafts if self.speculation is not None and self.live_depth else 0

    @property
    def relieved(self) -> tuple[float, ...]:
        """Ends of phases after which fewer come."""
        rates = [rate for rate, _ in self.phases]
        return tuple(PHASE_SECONDS * (i + 1) for i, (one, then) in enumerate(pairwise(rates)) if then < one)

    def requests(self, seed: int) -> list[Request]:
        """Of all phases."""
        more = () if self.beside is None else (self.beside,)
        groups = [[self._phase(*one) for one in (phase, *more)] for phase in self.phases]
        return workload(groups, Random(seed))

    def _phase(self, rate: float, shape: str) -> ArrivalPhase:
        return ArrivalPhase(
            seconds=PHASE_SECONDS,
            rate=rate,
            shape=SHAPES[shape],
            variation=self.variation,
            burst=self.burst,
            patience=self.patience,
            sizes=self.sizes,
        )

    def core(self, seed: int) -> Core:
        """One engine, or several that look like one."""
        if self.pods == 1:
            return build(self.hardware, seed=seed, speculation=self.speculation)
        seeds = [10 * seed + number for number in range(self.pods)]
        cores = [build(self.hardware, seed=one, speculation=self.speculation) for one in seeds]
        cores[0].plant.slow_down = self.slow_pod
        return fleet(cores, self.shares)

    def events(self) -> list[TimedAct]:
        """A slow-down half-way, and a slow start."""
        halfway = [] if self.slow == 1.0 else [slow_down(self.seconds / 2, self.slow)]
        return halfway if not self.warm_up else [slow_down(0.0, self.cold), slow_down(self.warm_up, 1.0), *halfway]


@dataclass(frozen=True, kw_only=True)
class RecordedCase(Case):
    """Requests as they were recorded, two or more: arrival in seconds, tokens of prompt and answer."""

    rows: tuple[tuple[float, int, int], ...] = field(repr=False, compare=False)

    @property
    def seconds(self) -> float:
        """To the last arrival, and one mean gap."""
        last = self.rows[-1][0]
        return last * len(self.rows) / (len(self.rows) - 1)

    @property
    def identity(self) -> str:
        """Other rows under the same name are another load."""
        return f"{self.name} {zlib.crc32(repr(self.rows).encode()):08x}"

    def requests(self, seed: int) -> list[Request]:  # noqa: ARG002 – the seed is the plant's alone
        """The same in every run."""
        return [Request(at, prompt, output) for at, prompt, output in self.rows]


def _steady(rate: float, shape: str, phases: int = 3) -> tuple[tuple[float, str], ...]:
    return ((rate, shape),) * phases


def _steps(*rates: float) -> tuple[tuple[float, str], ...]:
    return tuple((rate, "conversation") for rate in rates)


#: Chats that become more, two minutes each.
GROWING: Final = _steps(8, 8, 12, 12, 16, 16, 19, 19)
_H100: Final = Scenario(name="", preset="h100-8b", phases=(), ttft=0.5, tpot=0.030)
_A100: Final = Scenario(name="", preset="a100-8b", phases=(), ttft=1.0, tpot=0.050)
#: Rates are shares of what the engine carries at its best, found by `hack/bench engine --part gate`.
SCENARIOS: Final = (
    replace(_H100, name="h100 chat", phases=_steady(12, "conversation")),
    replace(_H100, name="h100 load steps", phases=_steps(8, 20, 26, 12, 22, 8)),
    replace(_H100, name="h100 load steps, its fit alone", preset="h100-8b-fit", phases=_steps(8, 20, 26, 12, 22, 8)),
    replace(_H100, name="h100 code in bursts", phases=_steady(8, "code"), burst=6),
    replace(_H100, name="h100 retrieval", phases=_steady(0.45, "retrieval"), ttft=4.0, tpot=0.060, context=25_000),
    replace(
        _H100,
        name="h100 retrieval among chats",
        phases=_steady(7, "conversation"),
        beside=(0.15, "retrieval"),
        ttft=2.0,
        tpot=0.040,
    ),
    replace(_H100, name="h100 mix shift", phases=(*_steady(11, "conversation", 2), *_steady(8, "code", 2))),
    replace(_H100, name="h100 40 % slower half-way", phases=_steady(9, "conversation", 4), slow=1.4),
    replace(_H100, name="h100 chats in swarms", phases=_steady(11, "conversation"), variation=3.0),
    replace(_H100, name="h100 clients give up", phases=_steps(12, 26, 26, 12), patience=2.0),
    replace(_A100, name="a100 chat", phases=_steady(4.5, "conversation")),
    replace(_A100, name="a100 code", phases=_steady(3, "code")),
    replace(_A100, name="a100 long chats", phases=_steady(0.5, "long-chat"), ttft=3.0, tpot=0.060, context=10_000),
    replace(_A100, name="4 × a100, one slow", phases=_steady(16, "conversation"), pods=4, slow_pod=1.4),
    Scenario(name="b200 chat", preset="b200-8b", phases=_steady(24, "conversation"), ttft=0.5, tpot=0.020),
    replace(_H100, name="h100 whole answers", phases=GROWING, ttft=inf, tpot=inf, e2e=5.0),
    replace(_H100, name="h100 three objectives", phases=GROWING, ttft=1.0, tpot=0.050, e2e=5.0),
    replace(_H100, name="h100 long prompts, light load", phases=_steady(1.8, "long-prompt"), context=6700, answer=300),
    replace(_A100, name="4 × a100, uneven shares", phases=_steady(11, "conversation"), pods=4, shares=UNEVEN),
    replace(_H100, name="h100 bursts before a model", phases=_steady(11, "conversation", 1), variation=5.0),
    Scenario(
        name="cpu, slow to warm up",
        preset="cpu-small",
        phases=_steady(5.0, "short", 3),
        ttft=2.0,
        tpot=0.100,
        context=400,
        answer=60,
        warm_up=60.0,
        cold=8.0,
    ),
)


def scenario(name: str) -> Scenario:
    """The one of this name."""
    return next(one for one in SCENARIOS if one.name == name)
