"""The law's state as `status.tuning` holds it, and back: what a new leader resumes from.

Figures are quantised, so that equal means equal and a status is not rewritten for noise. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Final

from flyball_engine.contract import LARGEST_COEFFICIENT, Limits, ModelSpec, OnTime, Shed, StepBudget
from flyball_engine.figures import figure, format_duration, percent, significant
from flyball_engine.model import StepModel
from flyball_operator.api.quantities import parse_duration
from flyball_operator.api.status import LARGEST_NUMBER
from flyball_operator.api.v1alpha1 import (
    ClassDeadline,
    SetpointStatus,
    SlowPodStatus,
    StepModelCoefficients,
    StepModelStatus,
    TuningStatus,
    WorkloadStatus,
)
from flyball_operator.tuning.control_input import ControlOutput, Workload
from flyball_operator.tuning.estimate.step_time import StepTimeEstimator, resume
from flyball_operator.tuning.observe.signals import Signals, StepWindow
from flyball_operator.tuning.policy import NO_BUDGET, Policy, model_spec
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.state import TuningState, start
from flyball_operator.tuning.tunables import TUNABLES

_COEFFICIENTS: Final = ("t0", "h", "c1", "c2", "beta", "g", "d")
#: Of a workload, what status holds: the ratio of its steps follows, and who waits comes and goes.
_LOAD: Final = (
    "arrivals",
    "prompt",
    "uncached",
    "output",
    "attention",
    "context",
    "decodes",
    "kv_tokens",
    "drafted",
    "made",
    "token_weighted_prompt",
    "kv_share",
)
_load: Final = attrgetter(*_LOAD)
#: What is told of the load stays while it is right within this share.
LOAD_SHOWN_WITHIN: Final = 0.25
_SLOW_PODS: Final = 8
_LIMITS: Final = {
    "max_num_active_seqs",
    "max_num_scheduled_tokens",
    "long_prefill_token_threshold",
    "num_speculative_tokens",
}


def time_status(at: float) -> str:
    """Unix seconds as status has them (RFC 3339)."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def held_until(tuning: TuningStatus, now: float) -> float | None:
    """When the hold that status tells of ends, in Unix seconds; None without one. None lasts longer than any can."""
    if tuning.held_until is None:
        return None
    try:
        until = datetime.fromisoformat(tuning.held_until).timestamp()
    except ValueError:
        return None
    return min(until, now + TUNABLES.rollback_hold) if until > now else None


def setpoint_status(policy: Policy) -> SetpointStatus:
    """A policy as status shows it; figures are rounded as it holds them."""
    step, shed, on_time = policy.step, policy.shed, policy.on_time
    return SetpointStatus(
        **policy.limits.model_dump(include=_LIMITS),
        step_budget=format_duration(policy.budget) if policy.budget is not None else None,
        first_token_deadline=_duration(shed.ttft_deadline_seconds) if shed is not None else None,
        first_token_margin=f"{shed.margin:.2f}" if shed is not None else None,
        refusal_status=shed.refusal_status if shed is not None else None,
        on_time_deadline=_duration(on_time.first_token_deadline_seconds) if on_time is not None else None,
        on_time_margin=f"{on_time.margin:.2f}" if on_time is not None else None,
        class_deadlines=tuple(
            ClassDeadline(name=name, deadline=format_duration(seconds)) for name, seconds in policy.class_deadlines
        )
        or None,
        queued_tokens=policy.queued_tokens,
        step_model=_coefficients(step.model) if step is not None else None,
    )


def change_status(policy: Policy) -> SetpointStatus:
    """A policy as a decision shows it: without the model, which changes without being one."""
    return setpoint_status(policy).model_copy(update={"step_model": None})


def policy_of(setpoint: SetpointStatus) -> Policy | None:
    """The policy from status; None if no limits were written yet, or what is there are none."""
    given = {name: value for name, value in setpoint.model_dump(include=_LIMITS).items() if value is not None}
    # A limit that the engines cannot move was left out of what they were given.
    if not given.get("max_num_active_seqs") and not given.get("max_num_scheduled_tokens"):
        return None
    try:
        return Policy(
            limits=Limits(**given),
            step=_step(setpoint),
            shed=_shed(setpoint),
            on_time=_on_time(setpoint),
            class_deadlines=tuple(
                (one.name, float(parse_duration(one.deadline))) for one in setpoint.class_deadlines or ()
            ),
            queued_tokens=setpoint.queued_tokens,
        )
    except ValueError:
        return None


def _step(setpoint: SetpointStatus) -> StepBudget | None:
    """The step budget; raises ValueError on what is none."""
    model = _model(setpoint.step_model) if setpoint.step_model is not None else None
    if model is None:
        return None
    budget = setpoint.step_budget
    return StepBudget(
        seconds=float(parse_duration(budget)) if budget is not None else NO_BUDGET, model=model_spec(model)
    )


def _shed(setpoint: SetpointStatus) -> Shed | None:
    """The deadline; raises ValueError on what is none."""
    deadline, margin = setpoint.first_token_deadline, setpoint.first_token_margin
    if margin is None or (deadline is None and not setpoint.class_deadlines):
        return None
    shed = {"ttft_deadline_seconds": _seconds(deadline), "margin": float(margin)}
    if setpoint.refusal_status is not None:  # Else it was written before there was the field.
        shed["refusal_status"] = setpoint.refusal_status
    return Shed.model_validate(shed)


def _on_time(setpoint: SetpointStatus) -> OnTime | None:
    """The order of prompts; raises ValueError on what is none."""
    deadline, margin = setpoint.on_time_deadline, setpoint.on_time_margin
    if margin is None or (deadline is None and not setpoint.class_deadlines):
        return None
    return OnTime(first_token_deadline_seconds=_seconds(deadline), margin=float(margin))


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else format_duration(seconds)


def _seconds(duration: str | None) -> float | None:
    return None if duration is None else float(parse_duration(duration))


def model_status(step_time: StepTimeEstimator) -> StepModelStatus:
    """The model as status shows it: three digits, steps to two."""
    fit = step_time.fit
    if fit is None:
        return StepModelStatus()
    spec = model_spec(fit.model)
    return StepModelStatus(
        id=spec.id,
        kappa=spec.kappa,
        **_strings(spec),
        error=f"{fit.error:.2f}",
        trusted=fit.trusted,
        steps=int(min(LARGEST_NUMBER, significant(step_time.steps, 2))),
    )


def workload_status(
    before: WorkloadStatus | None,
    workload: Workload,
    read: Callable[[WorkloadStatus | None], Workload | None] | None = None,
) -> WorkloadStatus:
    """The load as status shows it: as `before`, while all of that is right within a quarter.

    `read`: what knows the load `before`, without which it is read anew.
    """
    kept = (read or workload_of)(before)
    if before is not None and kept is not None:
        pairs = zip(_load(kept), _load(workload), strict=True)
        if all(abs((now or 0.0) - (shown or 0.0)) <= LOAD_SHOWN_WITHIN * (shown or 0.0) for shown, now in pairs):
            return before
    figures = zip(_LOAD, _load(workload), strict=True)
    return WorkloadStatus(**{name: figure(value, 2) for name, value in figures if value is not None})


def workload_of(status: WorkloadStatus | None) -> Workload | None:
    """The load that is there, without who waits; None if none is."""
    if status is None:
        return None
    texts = {name: getattr(status, name) for name in _LOAD}
    values = {name: _number(text) for name, text in texts.items() if text is not None}
    least = {"uncached": 1.0, "output": 1.0, "drafted": 1.0, "made": 1.0}
    if not all(least.get(name, 0.0) <= value < math.inf for name, value in values.items()):
        return None
    return Workload(ratio=values["uncached"] * values["made"] / values["output"], waiting=0.0, **values)


def slow_pods_status(factors: Mapping[str, float]) -> tuple[SlowPodStatus, ...]:
    """Pods that are slower than their siblings, as many as status has room for."""
    return tuple(SlowPodStatus(name=name, factor=f"{factor:.1f}") for name, factor in factors.items())[:_SLOW_PODS]


def slow_pods(tuning: TuningStatus) -> list[tuple[str, float]]:
    """The pods that status names, and their factors."""
    return [(slow.name, factor) for slow in tuning.slow_pods if (factor := _number(slow.factor)) >= 1.0]


def resumed(tuning: TuningStatus, spec: TuningSpec, prior: StepModel | None = None) -> TuningState:
    """The state of a service that was tuned before; what status does not hold starts anew, what is malformed too.

    `prior`: of engines of the same kind, where nothing was learnt of these. It is where the fit begins; nothing is
    decided on it before the first window has agreed with it.
    """
    state = start(spec)
    policy = policy_of(tuning.recommended or tuning.setpoint)
    if policy is not None:
        given = policy.limits.model_dump(exclude_none=True)
        state = replace(state, policy=replace(policy, limits=state.limits.model_copy(update=given)))
    model = step_model_of(tuning.model)
    if model is not None:
        reach = state.limits.max_num_scheduled_tokens or spec.envelope.tokens.most
        step_time = resume(model, error=_number(tuning.model.error), steps=tuning.model.steps, reach=reach)
        state = replace(state, step_time=step_time)
    elif prior is not None:
        state = replace(state, step_time=StepTimeEstimator(prior=prior, proven=True))
    return state


def step_model_of(status: StepModelStatus) -> StepModel | None:
    """The model from status; None if it is not trusted, or what is there is none."""
    return _model(status) if status.trusted else None


def _coefficients(spec: ModelSpec) -> StepModelCoefficients:
    return StepModelCoefficients(id=spec.id, kappa=spec.kappa, **_strings(spec))


def _strings(spec: ModelSpec) -> dict[str, str]:
    return {name: f"{getattr(spec, name):.3g}" for name in _COEFFICIENTS}


def _model(status: StepModelCoefficients) -> StepModel | None:
    """The model that is there, None if none is."""
    values = {name: _number(getattr(status, name)) for name in _COEFFICIENTS}
    sane = all(0 <= value <= LARGEST_COEFFICIENT for value in values.values())
    model = StepModel(kappa=status.kappa, **values)
    return model if sane and model.charges and status.kappa >= 1 else None


def _number(text: str) -> float:
    """The number in a status string, -1 if there is none."""
    try:
        return float(text)
    except ValueError:
        return -1.0


def predicted(output: ControlOutput | None) -> str:
    """What the law expects, for the decision record."""
    if output is None:
        return ""
    values = output.predicted
    named = {"ttft": values.ttft, "tpot": values.tpot, "gap": values.gap}
    # None where nothing decodes.
    shown = [f"{name} {brief(seconds)}" for name, seconds in named.items() if seconds > 0.0]
    return ", ".join([*shown, f"{figure(output.capacity, 2)} requests/s per core"])


def brief(seconds: float) -> str:
    """A duration to two digits; `unbounded` where the queue grows."""
    return "unbounded" if seconds > 600 else format_duration(max(seconds, 1e-6), digits=2)


def came_of_it(signals: Signals, spec: TuningSpec) -> str:
    """What a window showed, for the decision record: what a token took in the mean, and the share of each objective."""
    parts = []
    if isinstance(signals.steps, StepWindow):
        total = signals.steps.total()
        if total.decodes > 0:
            weighted = sum(s.seconds / s.steps * s.decodes for s in signals.steps.cells.values())
            # In a pipeline a token sees all steps in flight, whoever decodes in them.
            token = weighted / total.decodes if spec.stages == 1 else spec.stages * total.seconds / total.steps
            parts.append(f"token {brief(token)}")
    for objective in spec.objectives:
        outcome = signals.outcomes.get(objective.id)
        if outcome is not None and outcome.total >= 1:
            parts.append(f"{objective.name} {percent(outcome.met / outcome.total)}")
    return ", ".join(parts) or "no traffic"
