"""Setpoints of limits that never move, with a gate before them or without."""

from __future__ import annotations

from typing import Final

from bench.plays import NEVER_EXPIRES, model_spec
from flyball_engine.contract import Limits, Metric, Setpoint, Shed, StepBudget
from flyball_engine.model import StepModel
from flyball_operator.governor.spec import TuningSpec

#: The share of a deadline that a prediction may reach.
GATE_MARGIN: Final = 0.85
#: Seconds that no step takes.
UNBOUNDED: Final = 60.0


def gated(limits: Limits, tuning: TuningSpec, model: StepModel) -> Setpoint:
    """Limits that never move with a deadline before them, predicted by `model`; steps take what the limits allow."""
    shed = Shed(ttft_deadline_seconds=_least(tuning, Metric.TIME_TO_FIRST_TOKEN), margin=GATE_MARGIN)
    more = {"step": StepBudget(seconds=UNBOUNDED, model=model_spec(model)), "shed": shed}
    return fixed(limits, tuning).model_copy(update=more)


def _least(tuning: TuningSpec, metric: Metric) -> float:
    """Seconds of the tightest objective of a metric."""
    return min(objective.seconds for objective in tuning.objectives if objective.metric is metric)


def fixed(limits: Limits, tuning: TuningSpec, *, generation: int = 1) -> Setpoint:
    """A setpoint of limits alone, that counts the objectives."""
    return Setpoint(
        service="bench",
        epoch=1,
        generation=generation,
        limits=limits,
        objectives=tuple(objective.contract for objective in tuning.objectives),
        expires_seconds=NEVER_EXPIRES,
    )
