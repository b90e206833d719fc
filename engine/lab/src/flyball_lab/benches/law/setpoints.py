"""Setpoints of limits that never move, with a gate before them or without."""

from __future__ import annotations

from typing import Final

from flyball_engine.contract import Limits, Metric, Setpoint, Shed, StepBudget
from flyball_engine.model import StepModel
from flyball_lab.benches.law.plays import NEVER_EXPIRES, model_spec
from flyball_operator.tuning.spec import TuningSpec

#: The share of a deadline that a prediction may reach.
GATE_MARGIN: Final = 0.85
#: Of an end-to-end objective alone the share that is left to the first token.
FIRST_SHARE: Final = 0.5
#: Seconds that no step takes.
UNBOUNDED: Final = 60.0


def gated(
    limits: Limits, tuning: TuningSpec, model: StepModel, *, budget: float = UNBOUNDED, margin: float = GATE_MARGIN
) -> Setpoint:
    """Limits that never move with a deadline before them, predicted by `model`.

    `budget`: seconds that a step may take; absent, steps take what the limits allow.
    """
    shed = Shed(ttft_deadline_seconds=_deadline(tuning), margin=margin)
    more = {"step": StepBudget(seconds=min(UNBOUNDED, budget), model=model_spec(model)), "shed": shed}
    return fixed(limits, tuning).model_copy(update=more)


def _deadline(tuning: TuningSpec) -> float:
    """Seconds to the first token by which requests are refused."""
    share = {Metric.TIME_TO_FIRST_TOKEN: 1.0, Metric.END_TO_END_LATENCY: FIRST_SHARE}
    return min(share[one.metric] * one.seconds for one in tuning.objectives if one.metric in share)


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
