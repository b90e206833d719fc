"""The law's state as `status.tuning` holds it, and back: what a new leader resumes from.

Figures are quantised, so that equal means equal and a status is not rewritten for noise. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from flyball_engine.contract import Limits
from flyball_engine.model import StepModel
from flyball_operator.api.quantities import format_duration
from flyball_operator.api.v1alpha1 import SetpointStatus, StepModelStatus, TuningStatus
from flyball_operator.governor.governor import State, start
from flyball_operator.governor.identify import Learner, resume
from flyball_operator.governor.situation import Choice
from flyball_operator.governor.signals import Signals, StepWindow
from flyball_operator.governor.spec import Objective, TuningSpec

_COEFFICIENTS: Final = ("t0", "h", "c1", "c2", "beta", "g")


def setpoint_status(limits: Limits) -> SetpointStatus:
    """Limits as status shows them."""
    return SetpointStatus(**limits.model_dump())


def limits_of(setpoint: SetpointStatus) -> Limits | None:
    """Limits from status, one or both; None if none were written yet, or what is there are no limits."""
    given = {name: value for name, value in setpoint.model_dump().items() if value is not None}
    # A limit that the engines cannot move was left out of what they were given.
    if not given.get("max_num_active_seqs") and not given.get("max_num_scheduled_tokens"):
        return None
    try:
        return Limits(**given)
    except ValueError:
        return None


def model_status(learner: Learner) -> StepModelStatus:
    """The model as status shows it: three digits, steps to two."""
    fit = learner.fit
    if fit is None:
        return StepModelStatus()
    strings = {name: f"{getattr(fit.model, name):.3g}" for name in _COEFFICIENTS}
    identity = hashlib.sha256(f"{strings} {fit.model.kappa}".encode()).hexdigest()[:8]
    return StepModelStatus(
        id=identity,
        kappa=fit.model.kappa,
        error=f"{fit.error:.2f}",
        trusted=fit.trusted,
        steps=int(float(f"{learner.steps:.2g}")),
        **strings,
    )


def resumed(tuning: TuningStatus, spec: TuningSpec) -> State:
    """The state of a service that was tuned before; what status does not hold starts anew, what is malformed too."""
    state = start(spec)
    limits = limits_of(tuning.recommended or tuning.setpoint)
    model = step_model_of(tuning.model)
    if limits is not None:
        state = State(limits=state.limits.model_copy(update=limits.model_dump(exclude_none=True)))
    if model is not None:
        reach = state.limits.max_num_scheduled_tokens or spec.envelope.tokens.most
        learner = resume(model, error=_number(tuning.model.error), steps=tuning.model.steps, reach=reach)
        state = State(limits=state.limits, learner=learner)
    return state


def step_model_of(status: StepModelStatus) -> StepModel | None:
    """The model from status; None if it is not trusted, or what is there is none."""
    values = {name: _number(getattr(status, name)) for name in _COEFFICIENTS}
    sane = all(0 <= value < 1e3 for value in values.values()) and values["c1"] + values["c2"] + values["t0"] > 0
    if not status.trusted or not sane or status.kappa < 1:
        return None
    return StepModel(kappa=status.kappa, **values)


def _number(text: str) -> float:
    """The number in a status string, -1 if there is none."""
    try:
        return float(text)
    except ValueError:
        return -1.0


def predicted(choice: Choice | None) -> str:
    """What the law expects, for the decision record."""
    if choice is None:
        return ""
    values = choice.predicted
    named = {"ttft": values.ttft, "tpot": values.tpot, "gap": values.gap}
    shown = [f"{name} {brief(seconds)}" for name, seconds in named.items()]
    return ", ".join([*shown, f"{values.capacity:.2g} requests/s per core"])


def brief(seconds: float) -> str:
    """A duration to two digits; `unbounded` where the queue grows."""
    return "unbounded" if seconds > 600 else format_duration(float(f"{max(seconds, 1e-6):.2g}"))


def came_of_it(signals: Signals, objectives: Sequence[Objective]) -> str:
    """What a window showed, for the decision record: the decode-weighted step and the share of each objective."""
    parts = []
    if isinstance(signals.steps, StepWindow):
        total = signals.steps.total()
        if total.decodes > 0:
            weighted = sum(s.seconds / s.steps * s.decodes for s in signals.steps.cells.values())
            parts.append(f"token {brief(weighted / total.decodes)}")
    for objective in objectives:
        outcome = signals.outcomes.get(objective.id)
        if outcome is not None and outcome.total >= 1:
            parts.append(f"{objective.name} {100 * outcome.met / outcome.total:.0f} %")
    return ", ".join(parts) or "no traffic"
