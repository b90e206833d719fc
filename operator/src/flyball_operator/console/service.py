"""The pages of one service: how it is, and its decisions. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flyball_engine.figures import percent
from flyball_operator.api.desire import Desire
from flyball_operator.api.summary import number, trouble
from flyball_operator.api.v1alpha1 import DecisionStatus, SetpointStatus
from flyball_operator.console.chart import Chart, chart, steps_of
from flyball_operator.console.fleet import pods
from flyball_operator.tuning.estimate.step_time import doubt_message
from flyball_operator.tuning.insight import Insight

#: What only the leader knows is not shown by others.
NOT_LED: Final = (
    "Only the replica that tunes this service knows this. This one does not, or not yet: ask another replica,"
    " or again in a minute."
)
_LIMITS: Final = {
    "max_num_active_seqs": "Requests at once",
    "max_num_scheduled_tokens": "Tokens of a step",
    "long_prefill_token_threshold": "Tokens of one prompt in a step",
    "num_speculative_tokens": "Drafts of a request in a step",
    "step_budget": "Time of a step",
    "on_time_deadline": "Deadline that prompts are ordered by",
    "first_token_deadline": "Deadline after which requests are refused",
    "queued_tokens": "Prompt tokens that may wait",
}


@dataclass(frozen=True)
class Fact:
    """A name and what it is."""

    name: str
    value: str


@dataclass(frozen=True)
class Told:
    """A condition."""

    type: str
    status: str
    reason: str
    message: str
    since: str


@dataclass(frozen=True)
class Objective:
    """How an objective is met."""

    name: str
    asked: str
    attained: str
    left: str
    window: str


@dataclass(frozen=True)
class Service:
    """`fit`: how the model explains steps, None where `no_fit` says why not. `error`: why the spec is not accepted."""

    namespace: str
    name: str
    trouble: str
    error: str
    facts: tuple[Fact, ...]
    limits: tuple[Fact, ...]
    conditions: tuple[Told, ...]
    objectives: tuple[Objective, ...]
    model: tuple[Fact, ...]
    fit: Chart | None
    no_fit: str


def service(desire: Desire, insight: Insight | None) -> Service:
    """How it is."""
    status, tuning = desire.status, desire.status.tuning
    no_fit, drawn = _fit(insight)
    return Service(
        namespace=desire.meta.namespace,
        name=desire.meta.name,
        trouble=trouble(status),
        error=desire.error,
        facts=_known(
            ("Pods that serve", pods(desire)),
            ("Pods with these limits", tuning.applied_pods),
            ("Mode", tuning.mode.value),
            ("Arrivals", f"{tuning.arrivals} requests/s" if tuning.arrivals else ""),
            ("Capacity", f"{tuning.capacity} requests/s" if tuning.capacity else ""),
            ("What binds", tuning.binding_objective),
            ("Replicas that the load needs", "" if status.desired_replicas is None else str(status.desired_replicas)),
            ("Held until", tuning.held_until or ""),
        ),
        limits=_limits(tuning.setpoint),
        conditions=tuple(
            Told(one.type.value, one.status, one.reason, one.message, one.last_transition_time)
            for one in status.conditions
        ),
        objectives=_objectives(desire),
        model=_known(
            ("Trusted", "yes" if tuning.model.trusted else "no"),
            ("Median error", "" if (error := number(tuning.model.error)) is None else percent(error)),
            ("Steps seen", f"{tuning.model.steps:,}"),
        ),
        fit=drawn,
        no_fit=no_fit,
    )


def _fit(insight: Insight | None) -> tuple[str, Chart | None]:
    if insight is None:
        return NOT_LED, None
    if insight.fit is None:
        return "No steps were seen yet.", None
    if (drawn := chart(steps_of(insight.fit.model, insight.steps))) is None:
        return "The model is an earlier leader's. This one has seen no steps yet.", None
    doubt = "" if insight.fit.trusted else f"This model is not used: {doubt_message(insight.fit)}."
    return doubt, drawn


def _known(*facts: tuple[str, str]) -> tuple[Fact, ...]:
    return tuple(Fact(name, value) for name, value in facts if value)


def _limits(setpoint: SetpointStatus) -> tuple[Fact, ...]:
    given = ((words, getattr(setpoint, name)) for name, words in _LIMITS.items())
    own = tuple(Fact(words, str(value)) for words, value in given if value is not None)
    classes = setpoint.class_deadlines or ()
    return own + tuple(Fact(f"Deadline of the class {one.name}", one.deadline) for one in classes)


def _objectives(desire: Desire) -> tuple[Objective, ...]:
    asked = desire.service.spec.objectives if desire.service is not None else ()
    thresholds = {one.name: f"{one.metric.value} within {one.threshold}, {one.target} %" for one in asked}
    return tuple(
        Objective(
            name=one.name,
            asked=thresholds.get(one.name, ""),
            attained=_percent(one.attained),
            left=_percent(one.budget_remaining),
            window=one.window,
        )
        for one in desire.status.objectives
    )


def _percent(figure: str) -> str:
    return f"{figure} %" if number(figure) is not None else ""


@dataclass(frozen=True)
class Change:
    """A limit before and after a decision."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Decision:
    """What was decided, why, what it changed, what was expected and what came."""

    time: str
    trigger: str
    changes: tuple[Change, ...]
    predicted: str
    observed: str


def decisions(desire: Desire) -> tuple[Decision, ...]:
    """Those that status has, the newest first."""
    return tuple(map(_decision, desire.status.tuning.decisions))


def _decision(one: DecisionStatus) -> Decision:
    before, after = ({fact.name: fact.value for fact in _limits(each)} for each in (one.before, one.after))
    changes = (Change(name, before.get(name, "–"), after.get(name, "–")) for name in {**before, **after})
    return Decision(
        time=one.time,
        trigger=one.trigger,
        changes=tuple(changes),
        predicted=one.predicted,
        observed=one.observed,
    )
