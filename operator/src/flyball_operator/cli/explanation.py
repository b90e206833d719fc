"""How `flyball explain` tells what the tuner sees of a service, what it knows, and what it did and why. Pure.

All of it is in the object's status, so this is said of a service in the cluster and of one in a file.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from flyball_engine.figures import figure, format_duration, percent
from flyball_engine.model import StepModel
from flyball_operator.api import names
from flyball_operator.api.objects import Object
from flyball_operator.api.quantities import parse_duration
from flyball_operator.api.v1alpha1 import (
    TUNER_CONDITIONS,
    Condition,
    ConditionType,
    DecisionStatus,
    InferenceService,
    Mode,
    Objective,
    ObjectiveStatus,
    OrderStatus,
    SetpointStatus,
    StepModelStatus,
)
from flyball_operator.cli.limits import OVERLOAD_EXCEPTION, changes, given, queueing_in_words
from flyball_operator.cli.terminal import printable
from flyball_operator.reconcile.plan.status import ReconcileReason
from flyball_operator.tuning.report.conditions import LEAST_BUDGET
from flyball_operator.tuning.status_codec import step_model_of

_WIDTH: Final = 110
#: Tokens that a decode has behind it where a limit is told as a time: status does not say how many they have.
_CONTEXT: Final = 1000


def explanation(service: InferenceService, *, unattended: str = "") -> str:
    """Some thirty lines: objectives, what is seen, the model, the limits, what would change, the last decisions.

    `unattended`: since when no operator has looked after its namespace; empty where one does, or it is not known.
    """
    parts = (_head, _objectives, _seen, _model, _limits, _outlook, _decisions)
    lines = [line for part in parts for line in part(service)]
    if unattended:
        lines.insert(0, f"No operator has looked after this namespace since {unattended}: all of this is of then.")
    return "\n".join(map(printable, lines))


def _head(service: InferenceService) -> Iterator[str]:
    meta, tuning = service.metadata, service.status.tuning
    pods = f"{service.status.ready_replicas} of {service.status.replicas} pods Ready"
    paused = f", paused by the annotation {names.ANNOTATION_TUNING}" if _paused(service) else ""
    yield f"{meta.namespace}/{meta.name}: mode {service.spec.tuning.mode.value}{paused}, {pods}"
    if tuning.generation:
        applied = f", applied by {tuning.applied_pods} pods" if tuning.applied_pods else ""
        yield f"  setpoint {tuning.generation} of leadership {tuning.epoch}{applied}"


def _paused(service: InferenceService) -> bool:
    return names.ANNOTATION_TUNING in service.metadata.annotations


def _objectives(service: InferenceService) -> Iterator[str]:
    yield "objectives"
    if not service.spec.objectives:
        yield "  none: the upper bounds hold, as far as memory goes"
    rows = {row.name: row for row in service.status.objectives}
    for objective in service.spec.objectives:
        yield f"  {objective.name:<16} {_asked(objective):<46} {_attained(rows.get(objective.name))}"


def _asked(objective: Objective) -> str:
    of_class = f" of {objective.class_name}" if objective.class_name else ""
    return f"{objective.metric.value} within {objective.threshold} for {objective.target} %{of_class}"


def _attained(row: ObjectiveStatus | None) -> str:
    if row is None or not row.attained:
        return "nothing was counted"
    return f"{row.attained} % in the last {row.window}, {_budget(row.budget_remaining)}"


def _budget(remaining: str) -> str:
    """The budget of violations in words; `remaining` in percent, as status has it."""
    if not remaining.startswith("-"):
        return f"{remaining} % of the allowed violations left"
    used = 1 - float(remaining) / 100
    least = "at least " if int(remaining) <= LEAST_BUDGET else ""
    return f"{least}{figure(used)} times the allowed violations"


def _seen(service: InferenceService) -> Iterator[str]:
    yield "seen"
    conditions = service.status.conditions
    accepted = next((condition for condition in conditions if condition.type is ConditionType.ACCEPTED), None)
    found = [condition for condition in conditions if condition.type in TUNER_CONDITIONS]
    if accepted is not None and (accepted.status != "True" or accepted.reason != accepted.type):
        yield from wrapped(f"Accepted {accepted.status}, {accepted.reason}: {accepted.message}")
    for condition in filter(_rolls, conditions):
        yield from wrapped(f"{condition.type.value} {condition.status}, {condition.reason}: {condition.message}")
    for condition in found:
        yield from wrapped(f"{condition.type.value} {condition.status}: {condition.message or condition.reason}")
    if (order := service.status.tuning.order) is not None:
        yield f"  {_ordered(order)}"
    for slow in service.status.tuning.slow_pods:
        yield f"  pod {slow.name}: steps take {slow.factor} times as long as on its siblings"
    if not found:
        yield f"  {_unseen(accepted)}"


def _ordered(order: OrderStatus) -> str:
    """What the on-time order did, in words."""
    if not order.moved_behind and order.longest_wait in ("", "0s"):
        return f"on-time order: nobody was moved behind in the last {order.window}"
    return (
        f"on-time order, in the last {order.window}: {order.moved_behind} requests moved behind,"
        f" {order.in_time_after_all} in time after all, the longest wait behind {order.longest_wait}"
    )


def _rolls(condition: Condition) -> bool:
    """Whether it says that what is asked for does not run, or that something else serves."""
    off = condition.status != "True"
    match condition.type:
        case ConditionType.AVAILABLE:
            relevant = off or condition.reason == ReconcileReason.EARLIER_REVISION_SERVES
        case ConditionType.PROGRESSING | ConditionType.READY:
            relevant = off
        case ConditionType.STALLED:
            relevant = not off
        case _:
            relevant = False
    return relevant and condition.reason != ReconcileReason.NOT_ACCEPTED


def _unseen(accepted: Condition | None) -> str:
    """Why nothing is said of tuning."""
    if accepted is None:
        return "nothing yet: no operator has reported on this service"
    if accepted.status != "True":
        return "nothing more: a service that is not accepted is not tuned"
    return "nothing of tuning yet: the operator has accepted the service, and has not looked at its engines"


def _model(service: InferenceService) -> Iterator[str]:
    yield "model of a step's time"
    yield from model_lines(service.status.tuning.model)


def model_lines(status: StepModelStatus) -> Iterator[str]:
    """The step-time model, what it rests on, and its formula."""
    model = step_model_of(status)
    if model is None:
        known = f"{status.steps:,} steps seen" if status.steps else "no steps seen"
        yield from wrapped(f"not trusted yet, {known}: limits stay where they are until it is; {OVERLOAD_EXCEPTION}")
        return
    error = percent(float(status.error)) if status.error else "unknown"
    yield f"  {status.id or '-'}: median error {error}, learnt from {status.steps:,} steps"
    yield from wrapped(f"T = {_formula(status, model)}")


def _formula(status: StepModelStatus, model: StepModel) -> str:
    slope = f"{_time(model.c1)}/token"
    if status.kappa > 1:
        slope = f"{_time(model.c1)}/token up to {model.kappa}, {_time(model.c2)}/token beyond"
    return (
        f"{_time(model.t0)} + {_time(model.h)} if there is a prompt in it + {slope} + {_time(model.beta)}/decode"
        f" + {figure(1e9 * model.g)}ns/token² of prompt attention"
        + (f" + {figure(1e9 * model.d)}ns/token of KV cache that decodes read" if model.d > 0 else "")
    )


def _limits(service: InferenceService) -> Iterator[str]:
    tuning = service.status.tuning
    yield "limits in force"
    stages = service.spec.parallelism.pipeline
    yield from limit_lines(tuning.setpoint, step_model_of(tuning.model), tuning.binding_objective, stages)
    yield from wrapped(queueing_in_words(service.spec.tuning, paused=_paused(service)))


def limit_lines(setpoint: SetpointStatus, model: StepModel | None, binding: str, stages: int) -> Iterator[str]:
    """Each limit, what it means in time by the model, and what binds them; `stages`: of the engine's pipeline."""
    limits = given(_json(setpoint))
    if not limits:
        yield "  none set yet: pods run at the upper bounds"
        return
    for name, value in limits.items():
        meaning = "" if model is None else _meaning(name, setpoint, model, stages)
        yield f"  {name:<30} {value:>9}  {meaning}".rstrip()
    unknown = "nothing yet: first steps are small until the model is known" if setpoint.queued_tokens else ""
    yield f"  what binds: {binding or unknown or 'nothing, the upper bounds'}"


def _meaning(name: str, setpoint: SetpointStatus, model: StepModel, stages: int) -> str:
    """What a limit means in time, by the model. A step of a pipeline has a part of the batch."""
    seqs, tokens = -(-(setpoint.max_num_active_seqs or 0) // stages), setpoint.max_num_scheduled_tokens or 0
    if name == "max_num_active_seqs" and seqs:
        token = f", a token {stages} of them" if stages > 1 else ""
        step = _time(model.seconds(decodes=seqs, kv_tokens=seqs * _CONTEXT))
        return f"a step of {seqs} decodes{_reading(model)} takes {step}{token}"
    if name == "max_num_scheduled_tokens" and tokens > 1:
        full = model.seconds(decodes=1, prefill_tokens=tokens - 1)
        return f"a step filled by the beginning of a prompt takes {_time(full)}"
    if name == "step_budget" and setpoint.step_budget:
        seconds = float(parse_duration(setpoint.step_budget))
        fits = model.largest_chunk(seconds=seconds, tokens=seqs, decodes=seqs, kv_tokens=seqs * _CONTEXT)
        chunk = min(fits, max(0, tokens - seqs))
        return f"beside {seqs} decodes{_reading(model)} that is {chunk:.0f} tokens of a prompt"
    if name == "first_token_deadline" and setpoint.first_token_margin:
        by = float(parse_duration(setpoint.first_token_deadline or "0s")) * float(setpoint.first_token_margin)
        return f"who is predicted to wait longer than {_time(by)} is refused"
    if name == "on_time_deadline" and setpoint.on_time_margin:
        by = float(parse_duration(setpoint.on_time_deadline or "0s")) * float(setpoint.on_time_margin)
        return f"who can have it within {_time(by)} is served first, the others behind"
    return ""


def _reading(model: StepModel) -> str:
    """What is assumed of the decodes, where it matters."""
    return f" with {_CONTEXT:,} tokens of context each" if model.d > 0 else ""


def _outlook(service: InferenceService) -> Iterator[str]:
    mode, tuning = service.spec.tuning.mode, service.status.tuning
    yield "would change" + (" once it is resumed" if _paused(service) else "")
    if mode is Mode.DISABLED:
        yield "  nothing: mode Disabled holds the upper bounds"
    elif tuning.recommended is None:
        yield (
            "  not known yet"
            if _paused(service) or not tuning.generation
            else f"  nothing: mode {mode.value} has applied what it decided"
        )
    else:
        changes = _changes(tuning.setpoint, tuning.recommended)
        yield from (changes or ["  nothing: the limits in force are what it would set"])


def _decisions(service: InferenceService) -> Iterator[str]:
    yield "last decisions, the newest first"
    decisions = service.status.tuning.decisions
    if not decisions:
        yield "  none"
    for decision in decisions:
        yield from decision_lines(decision)


def decision_lines(decision: DecisionStatus) -> Iterator[str]:
    """When, what was changed, why, what was expected of it and what came."""
    yield f"  {decision.time}"
    for line in _changes(decision.before, decision.after):
        yield f"  {line}"
    texts = {"why": decision.trigger, "expected": decision.predicted, "came": decision.observed}
    for name, text in texts.items():
        if text:
            yield from wrapped(f"{name}: {text}", indent=4)


def _changes(before: SetpointStatus, after: SetpointStatus) -> list[str]:
    found = changes(_json(before), _json(after), absent="-")
    return [f"  {words}: {left} to {right}" for words, left, right in found]


def _json(setpoint: SetpointStatus) -> Object:
    return setpoint.model_dump(by_alias=True, exclude_none=True)


def wrapped(text: str, *, indent: int = 2) -> list[str]:
    """Indented lines of a width that reads well."""
    blank = " " * indent
    return textwrap.wrap(text, _WIDTH, initial_indent=blank, subsequent_indent=blank + "  ", break_long_words=False)


def _time(seconds: float) -> str:
    return format_duration(seconds, digits=3)
