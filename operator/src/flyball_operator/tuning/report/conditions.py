"""What the tuner says in status: its conditions and how each objective is met.

Figures are quantised: attained to a tenth of a percent, budgets to five, so that noise writes no status. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flyball_engine.figures import figure, format_duration, significant
from flyball_operator.api import names
from flyball_operator.api.quantities import parse_duration
from flyball_operator.api.v1alpha1 import (
    TUNER_CONDITIONS,
    ConditionType,
    Mode,
    ObjectiveStatus,
    OrderStatus,
)
from flyball_operator.tuning.capacity import Balance
from flyball_operator.tuning.observe.signals import ObjectiveCounts, OrderOutcome, Unobserved
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.reasons import ConditionState, Reason
from flyball_operator.tuning.replicas import ScalingLimit
from flyball_operator.tuning.spec import LatencyObjective
from flyball_operator.tuning.tunables import TUNABLES

#: What is wrong where another leader acts.
FENCED: Final = (
    (Reason.FENCED, "status names an epoch above that of our Lease: a newer leader acts, this one stopped"),
)
#: Percent: a budget of violations that is overspent by more is reported as so much.
LEAST_BUDGET: Final = -999
#: What is told of the on-time order stays while it is right within this share.
ORDER_SHOWN_WITHIN: Final = 0.25
#: Of what others wrote so much is repeated.
_SHOWN_LENGTH: Final = 40


@dataclass(frozen=True, kw_only=True)
class SetpointProgress:
    """How far the setpoint got. `problems` are (reason, message), the gravest first.

    `paused`: what the annotation says. `stalled`: why no tick is completed. `not_deciding`: why nothing is decided.
    `trial_pod`: the pod that has it alone. `unordered`: why prompts are not served in the order that was asked for.
    `unclassed`: why requests are all of one class. `learning`: why the limits are no choice of the law. None where that
    is not so.
    """

    mode: Mode
    ready_pods: int
    applied_pods: int
    limits: str
    problems: Sequence[tuple[Reason, str]]
    learning: str | None = None
    paused: str | None = None
    stalled: str | None = None
    not_deciding: str | None = None
    trial_pod: str | None = None
    unordered: str | None = None
    unclassed: str | None = None


def ended() -> dict[ConditionType, ConditionState]:
    """What is said of a service that is tuned no more: what was said last would stand for ever."""
    why = "the service is not governed, its spec is not accepted, or its namespace is not watched: nobody looks"
    return {
        kind: ConditionState("Unknown", Reason.NOT_TUNED, why) for kind in ConditionType if kind in TUNER_CONDITIONS
    }


def tuned_verdict(progress: SetpointProgress) -> ConditionState:
    """Whether the engines run under the law's limits."""
    if progress.paused is not None and not any(reason is Reason.FENCED for reason, _ in progress.problems):
        return _paused_verdict(progress, progress.paused)
    if progress.stalled is not None:
        return ConditionState("Unknown", Reason.LOOP_STALLED, f"{progress.stalled}; the engines keep their setpoint")
    if progress.ready_pods == 0:
        return ConditionState("Unknown", Reason.NO_READY_PODS, "no pod is Ready")
    if progress.problems:
        reason, message = progress.problems[0]
        return ConditionState("False", reason, message)
    return _pushed_verdict(progress) or _applied_verdict(progress)


def _paused_verdict(progress: SetpointProgress, value: str) -> ConditionState:
    stays = ", ".join([f"{progress.limits} until it is removed", *(message for _, message in progress.problems[:1])])
    if value == names.TUNING_PAUSED:
        return ConditionState("False", Reason.PAUSED, f"annotation {names.ANNOTATION_TUNING}: {stays}")
    wrong = f"annotation {names.ANNOTATION_TUNING} is {value[:_SHOWN_LENGTH]!r}, accepted: {names.TUNING_PAUSED}"
    return ConditionState(
        "False", Reason.PAUSE_UNCLEAR, f"{wrong}, or none to resume; taken for {names.TUNING_PAUSED}: {stays}"
    )


def _pushed_verdict(progress: SetpointProgress) -> ConditionState | None:
    """Whether the setpoint is on its way; None if it has arrived."""
    if progress.trial_pod is not None:
        message = f"{progress.limits} in {progress.trial_pod} alone, the others follow once it works there"
        return ConditionState("Unknown", Reason.ONE_POD_FIRST, message)
    if progress.applied_pods < progress.ready_pods:
        return ConditionState("Unknown", Reason.PUSHING, f"{progress.limits} not confirmed by every Ready pod yet")
    return None


def _applied_verdict(progress: SetpointProgress) -> ConditionState:
    if progress.mode is Mode.RECOMMEND:
        return ConditionState(
            "False", Reason.RECOMMEND_ONLY, "live limits are left alone; see status.tuning.recommended"
        )
    if progress.mode is Mode.DISABLED:
        return ConditionState("False", Reason.DISABLED, f"{progress.limits}: the upper bounds")
    if progress.not_deciding is not None:
        message = f"for minutes nothing could be decided, though there are requests: {progress.not_deciding}"
        return ConditionState("False", Reason.NOT_DECIDING, f"{message}; {progress.limits} hold")
    if progress.learning is not None:
        return ConditionState("False", Reason.LEARNING, progress.learning)
    lacking = f"; prompts are served in order of arrival: {progress.unordered}" if progress.unordered else ""
    lacking += f"; all requests are of one class: {progress.unclassed}" if progress.unclassed else ""
    return ConditionState("True", Reason.APPLIED, f"{progress.limits} on every Ready pod{lacking}")


def objectives_status(
    objectives: Sequence[LatencyObjective], outcomes: Mapping[str, ObjectiveCounts] | Unobserved, *, window: str
) -> tuple[list[ObjectiveStatus], str, ConditionState]:
    """How each objective is met, `met/all` for the printer column, and the condition."""
    counted = {} if isinstance(outcomes, Unobserved) else outcomes
    rows = [_row(objective, counted.get(objective.id), window) for objective in objectives]
    missed = [
        f"{objective.name} {row.attained} % of {100 * (1 - objective.allowed):g} %"
        for objective, row in zip(objectives, rows, strict=True)
        if row.attained and not _met(objective, counted[objective.id])
    ]
    seen = sum(1 for row in rows if row.attained)
    summary = f"{seen - len(missed)}/{len(rows)}" if seen else f"-/{len(rows)}"
    return rows, summary, _verdict(rows, missed, outcomes, seen, window)


def _verdict(
    rows: Sequence[ObjectiveStatus], missed: Sequence[str], outcomes: object, seen: int, window: str
) -> ConditionState:
    if not rows:
        return ConditionState("Unknown", Reason.NO_OBJECTIVES, "spec.objectives is empty")
    if isinstance(outcomes, Unobserved):
        return ConditionState("Unknown", Reason.NOT_OBSERVED, outcomes.detail)
    if seen == 0:
        objectives = "this objective" if len(rows) == 1 else "these objectives"
        return ConditionState(
            "Unknown", Reason.NO_REQUESTS, f"no request was counted against {objectives} in the last {window}"
        )
    if missed:
        return ConditionState("False", Reason.VIOLATED, f"in the last {window}: {', '.join(missed)}")
    return ConditionState("True", Reason.MET, f"every objective was met in the last {window}")


def _met(objective: LatencyObjective, outcome: ObjectiveCounts) -> bool:
    return outcome.violated <= objective.allowed * outcome.total + 1e-9


def _row(objective: LatencyObjective, outcome: ObjectiveCounts | None, window: str) -> ObjectiveStatus:
    if outcome is None or outcome.total < 0.5:
        return ObjectiveStatus(name=objective.name, window=window)
    share = outcome.violated / outcome.total
    used = share / objective.allowed if objective.allowed > 0 else (0.0 if share == 0 else 1e3)
    left = round(20 * (1 - used)) * 5
    return ObjectiveStatus(
        name=objective.name,
        attained=f"{100 * (1 - share):.1f}",
        budget_remaining=str(max(LEAST_BUDGET, left)),
        window=window,
    )


def order_status(before: OrderStatus | None, found: OrderOutcome | None, *, window: str) -> OrderStatus | None:
    """What the on-time order did, None where nobody counted it.

    As it was reported `before`, while that is right within a quarter: counts of some minutes scatter.
    """
    if found is None:
        return None
    now = OrderStatus(
        moved_behind=int(significant(found.moved_behind, 2)),
        in_time_after_all=int(significant(found.in_time_after_all, 2)),
        longest_wait=format_duration(found.longest_wait, digits=2),
        window=window,
    )
    return before if before is not None and before.window == window and _alike(before, now) else now


def _alike(before: OrderStatus, now: OrderStatus) -> bool:
    try:
        pairs = zip(_figures(before), _figures(now), strict=True)
    except ValueError:  # What was reported before is read from status, which others may write.
        return False
    return all(abs(figure - reported) <= ORDER_SHOWN_WITHIN * reported for reported, figure in pairs)


def _figures(status: OrderStatus) -> tuple[float, float, float]:
    return status.moved_behind, status.in_time_after_all, float(parse_duration(status.longest_wait))


def capacity_verdict(
    balance: Balance | None,
    *,
    objectives: Sequence[LatencyObjective],
    metrics: ConditionState,
    known: ConditionState | None,
    lengths: bool,
) -> ConditionState:
    """Whether the pods carry what arrives.

    `metrics`: whether it can be observed; `lengths`: whether requests ever came. `known` is what status says already,
    None if that is of no use: it holds until there is better knowledge.
    """
    if not objectives:
        return ConditionState("Unknown", Reason.NO_OBJECTIVES, "spec.objectives is empty")
    if metrics.reason == Reason.NO_READY_PODS:
        return metrics
    if metrics.status == "False":
        return ConditionState("Unknown", Reason.NOT_OBSERVED, "the load cannot be observed")
    if balance is not None and balance.settled:
        return _carried_verdict(balance, objectives)
    learning = ConditionState("Unknown", Reason.LEARNING, "what the pods carry is not known yet")
    return known or (learning if lengths else ConditionState("Unknown", Reason.NO_REQUESTS, "no request came yet"))


def _infeasible(balance: Balance, objectives: Sequence[LatencyObjective]) -> str:
    asked = {objective.name: format_duration(objective.seconds) for objective in objectives}
    kept = "; ".join(
        f"{name} within {asked.get(name, 'its threshold')}, the least that it can keep is {rounded_up(seconds)}"
        for name, seconds in balance.carried.reachable
    )
    return (
        f"even an idle engine cannot keep {kept}. Raise the threshold, or use a faster accelerator or a smaller model"
    )


def _carried_verdict(balance: Balance, objectives: Sequence[LatencyObjective]) -> ConditionState:
    arrive, carry = figure(balance.reported_arrivals, 2), figure(balance.capacity, 2)
    if balance.carried.reachable:
        return ConditionState("False", Reason.INFEASIBLE, _infeasible(balance, objectives))
    unseen = ""
    if balance.unseen:
        ready = balance.replicas + balance.unseen
        unseen = f"; {balance.replicas} of {ready} Ready pods are scraped: until all are no fewer are advised"
    if not balance.overloaded:
        return ConditionState(
            "True", Reason.SUFFICIENT, f"carries {carry} requests/s at the objectives, {arrive} arrive{unseen}"
        )
    load = f"{arrive} requests/s arrive, {_pods(balance.replicas)} {_carry(balance.replicas)} {carry} at the objectives"
    remedy = f"{_pods(balance.advised)} would do"
    if balance.desired.short:
        remedy = f"{_pods(balance.advised)} would not do, {_no_more(balance.desired.limit)}"
    return ConditionState("False", Reason.OVERLOADED, f"{load}: {balance.carried.binding} binds; {remedy}{unseen}")


def _no_more(limit: ScalingLimit) -> str:
    """What keeps pods away that the load needs."""
    match limit:
        case ScalingLimit.AT_MAXIMUM:
            return "maxReplicas allows no more"
        case ScalingLimit.STABILIZING:
            return "more are asked for once the need has lasted"
        case _:
            return f"more than {TUNABLES.most_growth} times what runs is not advised"


def _pods(number: int) -> str:
    return "1 pod" if number == 1 else f"{number} pods"


def _carry(number: int) -> str:
    return "carries" if number == 1 else "carry"


def rounded_up(seconds: float) -> str:
    """A duration to two digits, never less than it is."""
    unit = 10.0 ** (math.floor(math.log10(max(seconds, 1e-6))) - 1)
    return format_duration(math.ceil(seconds / unit - 1e-9) * unit, digits=3)


def shown(policy: Policy) -> str:
    """A policy for people."""
    limits, shed, on_time = policy.limits, policy.shed, policy.on_time
    parts = [f"{limits.max_num_active_seqs or '-'} seqs", f"{limits.max_num_scheduled_tokens or '-'} tokens"]
    if limits.num_speculative_tokens is not None:
        parts.append(f"{limits.num_speculative_tokens} drafts")
    if policy.budget is not None:
        parts.append(f"steps of {format_duration(policy.budget)}")
    by_class = [f"{format_duration(seconds)} for {name}" for name, seconds in policy.class_deadlines]
    deadline = policy.deadline
    deadlines = ", ".join([*([] if deadline is None else [format_duration(deadline)]), *by_class])
    if shed is not None:
        parts.append(f"first tokens by {shed.margin:.2f} of {deadlines}, else {shed.refusal_status}")
    if on_time is not None:
        parts.append(f"prompts that can be on time first (by {on_time.margin:.2f} of {deadlines})")
    return ", ".join(parts)
