"""One simulated engine under one setpoint and one load, with the time of every step that was made by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from random import Random
from typing import Final

from flyball_engine.batching.step_statistics import Step
from flyball_engine.contract import Limits, ModelSpec, OnTime, Setpoint, Shed, StepBudget
from flyball_engine.model import StepModel
from flyball_lab.simulator.plant import Disturbances, Plant, StepTimes
from flyball_lab.simulator.presets import EnginePreset
from flyball_lab.simulator.requests import Fate, Request
from flyball_lab.simulator.virtual import TimedAct, build, retune, run
from flyball_lab.simulator.workload import ArrivalPhase, workload
from flyball_operator.tuning.control_input import margins

#: The share of the token objective that a step may take: the law's own margin.
STEP_MARGIN: Final = margins().token
#: Seconds that a setpoint holds: longer than any run.
NEVER_EXPIRES = 7 * 86_400.0


def known_model(preset: EnginePreset, mean_context: int) -> StepModel:
    """The plant's coefficients but for what no model knows; its decodes read so many tokens in the mean."""
    step_times = preset.step_times
    return replace(step_times.model, beta=step_times.model.beta + step_times.kv_token * mean_context)


def model_spec(model: StepModel) -> ModelSpec:
    """As a setpoint carries it, trusted."""
    return ModelSpec(id="bench", trusted=True, **asdict(model))


def keeps(request: Request, *, ttft: float, tpot: float) -> bool:
    """Whether it was answered, its first token within `ttft` seconds and the others in `tpot` each, in the mean."""
    return first_in_time(request, ttft) and tokens_in_time(request, tpot)


def first_in_time(request: Request, ttft: float) -> bool:
    """Whether its first token came within so many seconds."""
    return request.first_token is not None and request.first_token - request.arrival <= ttft


def tokens_in_time(request: Request, tpot: float) -> bool:
    """Whether it was answered to its end, and each token after the first took so many seconds in the mean."""
    if request.fate is not Fate.FINISHED or request.first_token is None:
        return False
    return request.output < 2 or (request.ended - request.first_token) / (request.output - 1) <= tpot


def whole_in_time(request: Request, e2e: float) -> bool:
    """Whether it was answered to its end within so many seconds."""
    return request.fate is Fate.FINISHED and request.ended - request.arrival <= e2e


@dataclass(frozen=True, kw_only=True)
class LoadCase:
    """A preset, its load, and the context that its decodes have in the mean (what β must hold of the KV read)."""

    name: str
    preset: EnginePreset
    phases: Sequence[ArrivalPhase | Sequence[ArrivalPhase]]
    mean_context: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class FixedSetpoint:
    """What the engine is told: a step budget and a deadline in seconds, or none; `tokens` is the fixed limit."""

    budget: float | None = None
    deadline: float | None = None
    tokens: int | None = None

    def setpoint(self, case: LoadCase) -> Setpoint:
        """As the tuner would send it, with the plant's coefficients but for what no model knows."""
        spec = model_spec(known_model(case.preset, case.mean_context))
        return Setpoint(
            service="bench",
            epoch=1,
            generation=1,
            limits=Limits(max_num_scheduled_tokens=self.tokens),
            step=None if self.budget is None else StepBudget(seconds=self.budget, model=spec),
            shed=None if self.deadline is None else Shed(ttft_deadline_seconds=self.deadline),
            on_time=None if self.deadline is None else OnTime(first_token_deadline_seconds=self.deadline),
            expires_seconds=NEVER_EXPIRES,
        )


class TimedPlant(Plant):
    """A plant that puts what it took for each mixed step into `mixed`."""

    def __init__(self, mixed: list[float], step_times: StepTimes, random: Random, disturbances: Disturbances) -> None:
        super().__init__(step_times, random, disturbances)
        self._mixed = mixed

    def step(self, step: Step, *, reread_tokens: int = 0) -> float:
        """As the plant's own."""
        seconds = super().step(step, reread_tokens=reread_tokens)
        if step.prefill_tokens:
            self._mixed.append(seconds)
        return seconds


@dataclass
class PlayedSteps:
    """What came of it: mixed steps' seconds, and the requests that arrived after the warm-up."""

    mixed: list[float]
    requests: list[Request] = field(repr=False)


def play(
    case: LoadCase,
    fixed: FixedSetpoint,
    *,
    seed: int,
    events: Sequence[TimedAct] = (),
    biased: bool = True,
    warm_up: float = 0.0,
) -> PlayedSteps:
    """Run the case to its end, and on until what was let in is answered."""
    mixed: list[float] = []
    core = build(case.preset, seed=seed, plant=partial(TimedPlant, mixed))
    if not biased:
        core.governed.budgeter.observe = _learn_nothing  # type: ignore[method-assign] # that is the question
    requests = workload(case.phases, Random(seed))
    run(core, requests, until=2 * case.seconds, events=[retune(0.0, fixed.setpoint(case)), *events])
    return PlayedSteps(mixed, [request for request in requests if request.arrival >= warm_up])


def _learn_nothing(step: Step, seconds: float) -> None:
    """In place of the local bias."""
