"""Loads around what an engine carries, and who is served first and refused under setpoints that never move."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from flyball_engine.contract import Limits, OnTime, Setpoint, Shed, StepBudget
from flyball_engine.model import StepModel
from flyball_lab.baselines.gate_at_arrival import GateAtArrival
from flyball_lab.baselines.loop import pressed
from flyball_lab.baselines.relegation import Relegation
from flyball_lab.benches.law.contenders import AFTERWARDS, PPAS, RunFigures, outcome
from flyball_lab.benches.law.plays import STEP_MARGIN, model_spec
from flyball_lab.benches.law.scenarios import PHASE_SECONDS, Scenario
from flyball_lab.benches.law.setpoints import GATE_MARGIN, fixed
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.plant import USUAL
from flyball_lab.simulator.presets import EnginePreset
from flyball_lab.simulator.virtual import build, retune, run

#: Of arrivals in a run: a queue that grows for two minutes is long enough to tell orders apart.
SECONDS: Final = 120.0
#: Shares of the capacity, and coefficients of variation of the times between arrivals.
LOADS: Final = (0.7, 1.0, 1.3, 2.0)
ARRIVALS: Final = {"Poisson": 1.0, "bursts": 3.0}
#: What is asked for, and what an engine carries of it: the requests/s of which 95 % keep both objectives, all of them
#: waiting, by the bisection of `hack/bench engine --part gate` with these objectives.
KINDS: Final = {
    "chat": (15.9, Scenario(name="", preset="h100-8b", phases=((0, "conversation"),), ttft=0.5, tpot=0.030)),
    "code": (11.1, Scenario(name="", preset="h100-8b", phases=((0, "code"),), ttft=0.5, tpot=0.030, context=2000)),
    "long": (
        1.29,
        Scenario(name="", preset="h100-8b", phases=((0, "long-chat"),), ttft=3.0, tpot=0.060, context=10_000),
    ),
}


#: The sizes that vLLM captures, up to its default.
GRAPHS: Final = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
#: Some kernels take that long to compile.
ROUGH: Final = replace(USUAL, compile_seconds=0.3)
#: What is played on a rough plant, too.
_ROUGHLY: Final = ("chat", 1.3)


@dataclass(frozen=True, kw_only=True)
class Crowd(Scenario):
    """A kind of request at a share of what the engine carries of it.

    `rough`: the plant has what no model has: stairs of CUDA graphs, and kernels that are compiled as steps are met.
    """

    load: float
    bursts: bool
    rough: bool = False

    @property
    def hardware(self) -> EnginePreset:
        """With stairs where it is rough."""
        preset = super().hardware
        return replace(preset, step_times=replace(preset.step_times, graphs=GRAPHS)) if self.rough else preset

    def core(self, seed: int) -> Core:
        """One engine."""
        return build(self.hardware, seed=seed, disturbances=ROUGH if self.rough else USUAL)


def crowds(*, quick: bool = False) -> tuple[Crowd, ...]:
    """Every kind at every load, evenly and in bursts; for the impatient an overload of each, and chats at all loads."""
    found = []
    for kind, (capacity, like) in KINDS.items():
        (_, shape), phases = like.phases[0], int(SECONDS / PHASE_SECONDS)
        for load in LOADS:
            for arrivals, variation in ARRIVALS.items():
                if quick and load != 1.3 and (kind != "chat" or variation > 1.0):
                    continue
                case = {name: getattr(like, name) for name in ("preset", "ttft", "tpot", "context")}
                crowd = Crowd(
                    name=f"{kind}, {arrivals}, {load:g} × capacity",
                    phases=((load * capacity, shape),) * phases,
                    variation=variation,
                    load=load,
                    bursts=variation > 1.0,
                    **case,
                )
                found.append(crowd)
                if not quick and (kind, load) == _ROUGHLY:
                    found.append(replace(crowd, name=f"{crowd.name}, rough plant", rough=True))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class QueueDiscipline:
    """A setpoint: `seqs` at most, steps of `budget` × the token objective, and a step model.

    `tokens`: what a step may have at most, in place of a time. `on_time`: prompts in the order of the on-time set, in
    that of their arrival otherwise; `relegates`: late ones last. `pressed`: P-PAS says what tokens a step has, and no
    step has a time. `sheds`: who would be late is refused; with `at_arrival` only then, by the queue that is foreseen.
    `speed`: prompts are believed to be so many times as fast as they are. `margin`: the share of the deadline that is
    planned with.
    """

    name: str
    on_time: bool = False
    relegates: bool = False
    pressed: bool = False
    sheds: bool = False
    at_arrival: bool = False
    speed: float = 1.0
    seqs: int = 256
    tokens: int | None = None
    budget: float = STEP_MARGIN
    margin: float = 0.95
    late_share: float = OnTime().late_share

    def setpoint(self, case: Scenario) -> Setpoint:
        """As it is sent, once and for all."""
        spec = model_spec(_faster(case.known, self.speed))
        order = OnTime(first_token_deadline_seconds=case.ttft, margin=self.margin, late_share=self.late_share)
        shed = Shed(ttft_deadline_seconds=case.ttft, margin=GATE_MARGIN if self.at_arrival else self.margin)
        limits = Limits(max_num_active_seqs=self.seqs, max_num_scheduled_tokens=self.tokens)
        timed = self.tokens is None and not self.pressed
        return fixed(limits, case.tuning).model_copy(
            update={
                "step": StepBudget(seconds=self.budget * case.token, model=spec) if timed else None,
                "on_time": order if self.on_time or self.relegates else None,
                "shed": shed if self.sheds else None,
            }
        )

    def play(self, case: Scenario, seed: int) -> RunFigures:
        """One run. Of a prompt that could not be in time on an idle engine nobody asks that it was."""
        core, requests = case.core(seed), case.requests(seed)
        if self.relegates:
            core.prompts = Relegation(core.scheduler)
        if self.at_arrival:
            core.stand_behind(GateAtArrival)
        if self.pressed:
            pressed(core)
        run(core, requests, until=case.seconds + AFTERWARDS, events=[retune(0.0, self.setpoint(case))])
        came = outcome(case, requests, ())
        feasible = outcome(case, [request for request in requests if not request.expected_late], ())
        return replace(came, first=feasible.first, tokens=feasible.tokens)


def _faster(model: StepModel, speed: float) -> StepModel:
    """What it says of tokens and their attention is so many times too fast; what a step costs anyway is right."""
    return replace(model, c1=model.c1 / speed, c2=model.c2 / speed, g=model.g / speed)


#: vLLM's order, all wait; the same, late ones last; with a step's tokens by P-PAS; the on-time order, all wait and
#: shed; and with wrong models.
FIRST_COME: Final = QueueDiscipline(name="first come, first served")
#: vLLM as it starts on such a GPU: no step has a time. And with limits by hand, of which the best in hindsight.
DEFAULTS: Final = QueueDiscipline(name="vLLM's defaults, 256/8192", tokens=8192)
BY_HAND: Final = (DEFAULTS, *(QueueDiscipline(name=f"256/{tokens}", tokens=tokens) for tokens in (512, 2048)))
LATE_LAST: Final = QueueDiscipline(name="late ones last", relegates=True)
P_PAS: Final = QueueDiscipline(name=PPAS, pressed=True)
QUEUE: Final = QueueDiscipline(name="on time, all wait", on_time=True)
SHED: Final = QueueDiscipline(name="on time, shed", on_time=True, sheds=True)
#: A model that is wrong by so much, either way.
WRONG: Final = 1.5
WRONGLY: Final = tuple(
    replace(discipline, name=f"{discipline.name}, prompts believed {WRONG} × {how}", speed=speed)
    for discipline in (QUEUE, SHED)
    for how, speed in (("faster", WRONG), ("slower", 1 / WRONG))
)


def perfect(*, quick: bool) -> tuple[QueueDiscipline, ...]:
    """The order with the plant's own coefficients, limits found in hindsight and nobody kept for fairness' sake."""
    return tuple(
        QueueDiscipline(
            name=f"perfect, {seqs}, steps × {budget:g}",
            on_time=True,
            sheds=True,
            seqs=seqs,
            budget=budget,
            late_share=0.0,
        )
        for seqs, budget in _grid(quick=quick)
    )


def gates(*, quick: bool) -> tuple[QueueDiscipline, ...]:
    """First come, first served, behind a gate that decides at arrival, with limits found in hindsight."""
    return tuple(
        QueueDiscipline(
            name=f"gate at arrival, {seqs}, steps × {budget:g}", sheds=True, at_arrival=True, seqs=seqs, budget=budget
        )
        for seqs, budget in _grid(quick=quick)
    )


def _grid(*, quick: bool) -> list[tuple[int, float]]:
    return [(seqs, budget) for seqs in ((256,) if quick else (64, 128, 256)) for budget in (STEP_MARGIN, 1.0)]
