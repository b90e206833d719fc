"""Why a service is as it is, in sentences: what `flyball why` says. Pure.

Each sentence is about one thing: whether it serves, its limits, its requests, its pods, the last decision, and what to
do next. What nobody knows is not guessed: the sentence then says what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.engine_container import engine_container
from flyball_operator.api.objects import Object, moment
from flyball_operator.api.v1alpha1 import (
    Condition,
    ConditionType,
    InferenceServiceSpec,
    Mode,
    Order,
    Overload,
    Range,
)
from flyball_operator.cli.advice import advice
from flyball_operator.cli.found_service import Found, ago, sentence
from flyball_operator.cli.limits import OVERLOAD_EXCEPTION, change_in_words, limits_in_words, queueing_in_words
from flyball_operator.reconcile.plan import history
from flyball_operator.reconcile.plan.acceptance import AcceptedReason
from flyball_operator.reconcile.plan.adoption import OutdatedReason
from flyball_operator.reconcile.plan.cause import SHORTAGES, CauseReason
from flyball_operator.reconcile.plan.status import ReconcileReason
from flyball_operator.tuning.reasons import Reason
from flyball_operator.tuning.report.transitions import of_condition

#: A warning that is older says little of now.
_RECENT: Final = timedelta(hours=1)
#: So many pods that were restarted are named.
_MOST_PODS: Final = 3


class About(StrEnum):
    """What a sentence is about."""

    SERVING = "serving"
    LIMITS = "limits"
    REQUESTS = "requests"
    PODS = "pods"
    DECISION = "decision"
    WARNING = "warning"
    NEXT = "next"


@dataclass(frozen=True)
class Sentence:
    """One or more sentences about one thing."""

    about: About
    text: str


def why(found: Found) -> list[Sentence]:
    """All that is to be said, in the order of a paragraph."""
    parts = (
        (About.SERVING, _serving),
        (About.LIMITS, _limits),
        (About.REQUESTS, _requests),
        (About.PODS, _pods),
        (About.DECISION, _decision),
        (About.WARNING, _warning),
        (About.NEXT, _next),
    )
    return [Sentence(about, text) for about, part in parts if (text := " ".join(part(found)))]


# Whether it serves


def _serving(found: Found) -> Iterator[str]:
    ready, accepted = found.condition(ConditionType.READY), found.condition(ConditionType.ACCEPTED)
    counts = f"{found.status.ready_replicas} of {found.status.replicas} pods are Ready"
    if found.unattended:
        yield (
            f"No operator has looked after namespace {found.meta.namespace} since {found.unattended}"
            f"{ago(found.unattended, found.now)}: what follows is of then."
        )
    if ready is None and accepted is None:
        yield f"{found.where} is new: no operator has reported on it yet."
        return
    if found.status.observed_generation < found.meta.generation:
        yield (
            f"The operator has not acted on generation {found.meta.generation} of {found.where} yet:"
            f" this is about generation {found.status.observed_generation}."
        )
    if accepted is not None and accepted.status != "True":
        yield f"{found.where} is not accepted ({accepted.reason}): {sentence(accepted.message)}"
        yield f"Nothing of it is changed meanwhile; {counts}."
    elif ready is None or ready.status != "True":
        reason = f" ({ready.reason}): {sentence(ready.message)}" if ready is not None else "."
        yield f"{found.where} is not Ready{reason}"
        if (available := found.says(ConditionType.AVAILABLE, "True")) is not None:
            earlier = available.reason == ReconcileReason.EARLIER_REVISION_SERVES
            yield f"It serves all the same: {sentence(available.message) if earlier else counts + '.'}"
    elif ready.reason == ReconcileReason.SCALED_TO_ZERO:
        yield f"{found.where} is scaled to 0: nothing serves, as was asked for."
    else:
        yield f"{found.where} is Ready: {found.status.ready_replicas} of {found.status.replicas} pods serve."
    yield from _lacking(found, accepted)
    if accepted is not None and accepted.reason == AcceptedReason.UNKNOWN_ANNOTATION:
        yield sentence(accepted.message)


def _lacking(found: Found, accepted: Condition | None) -> Iterator[str]:
    """What of it clients do not get, though pods serve."""
    if accepted is None or accepted.status != "True":
        return
    if lost := found.says(ConditionType.ROUTED, "False"):
        yield f"Gateways do not route all requests to it: {sentence(lost.message)}"
    if lost := found.says(ConditionType.ADAPTERS_LOADED, "False"):
        yield f"Not all pods answer all adapters: {sentence(lost.message)}"


# Why these limits


def _limits(found: Found) -> Iterator[str]:
    if found.spec is None or not found.status.conditions:
        return
    tuned, tuning = found.condition(ConditionType.TUNED), found.status.tuning
    if found.spec.governed and tuning.generation and tuning.mode is not found.spec.tuning.mode:
        # Why they are so would be told from a mode that they do not follow yet.
        limits, mode = limits_in_words(_json(tuning.setpoint)), found.spec.tuning.mode.value
        earlier = f"they are those of {tuning.mode.value}"
        yield f"Its limits are {limits}. The tuner has not acted on mode {mode} yet: {earlier}."
        return
    yield f"Its limits are {limits_in_words(_json(tuning.setpoint))}{_because(found, found.spec)}."
    paused = names.ANNOTATION_TUNING in found.meta.annotations
    yield from filter(None, [queueing_in_words(found.spec.tuning, paused=paused)])
    if tuned is None or tuned.status == "True" or tuned.reason in _TOLD_BY_CAUSE:
        return
    if tuned.reason in (Reason.PUSHING, Reason.ONE_POD_FIRST):
        yield f"They are not on every pod yet: {sentence(tuned.message)}"
    elif tuned.reason != Reason.NO_READY_PODS:
        yield f"Tuning is in trouble ({tuned.reason}): {sentence(tuned.message)}"


#: Reasons of Tuned that are told as the cause of the limits.
_TOLD_BY_CAUSE: Final = frozenset(
    {Reason.PAUSED, Reason.DISABLED, Reason.RECOMMEND_ONLY, Reason.LEARNING, Reason.NOT_TUNED}
)


def _because(found: Found, spec: InferenceServiceSpec) -> str:
    tuning = found.status.tuning
    lost = found.says(ConditionType.METRICS_AVAILABLE, "False")
    held = moment(tuning.held_until)
    if not spec.governed:
        said = ", as vLLM was started: spec.engine.governed is false"
    elif names.ANNOTATION_TUNING in found.meta.annotations:
        reason = found.meta.annotations.get(names.ANNOTATION_TUNING_REASON)
        # Since when, no condition says: Tuned was False before, too, where the model was not trusted yet.
        said = f", and stay, because tuning is paused{f' ({reason})' if reason else ''}"
    elif spec.tuning.mode is Mode.DISABLED:
        said = ", the upper bounds, because mode is Disabled"
    elif spec.tuning.mode is Mode.RECOMMEND:
        would = (
            "" if tuning.recommended is None else f"; the law would set {limits_in_words(_json(tuning.recommended))}"
        )
        said = f", and stay, because mode is Recommend{would}"
    elif lost is not None:
        detail = lost.message.removesuffix("; the limits hold")
        said = f", and hold, because the metrics are lost ({lost.reason}): {detail}"
    elif held is not None and held > found.now:
        said = f", and hold until {tuning.held_until}, because a change was undone"
    elif not tuning.model.trusted:
        untrusted = f"the times of the engine's steps are not trusted yet ({tuning.model.steps:,} steps seen)"
        said = f", start values: {untrusted}"
        if tuning.setpoint.step_budget is not None:
            said = f": {untrusted}, so limits stay, but {OVERLOAD_EXCEPTION}"
    elif (tuned := found.says(ConditionType.TUNED, "False")) is not None and tuned.reason == Reason.LEARNING:
        said = f", {tuned.message}"
    else:
        said = _bound_by(found, spec)
    return said


def _bound_by(found: Found, spec: InferenceServiceSpec) -> str:
    binding = found.status.tuning.binding_objective
    pinned = [
        field
        for field, bounds in (
            ("maxNumActiveSeqs", spec.tuning.bounds.max_num_active_seqs),
            ("maxNumScheduledTokens", spec.tuning.bounds.max_num_scheduled_tokens),
        )
        if _is_pinned(bounds)
    ]
    also = f"; spec.tuning.bounds pins {' and '.join(pinned)}" if pinned else ""
    objective = next((one for one in spec.objectives if one.name == binding), None)
    if objective is not None:
        asked = f"{objective.metric.value} within {objective.threshold} for {objective.target} %"
        return f", because objective {binding} ({asked}) binds{also}"
    if binding:
        return f", because {binding} binds{also}"
    none = "there are no objectives" if not spec.objectives else "no objective asks for less"
    return f", the upper bounds (spec.batching, spec.tuning.bounds), because {none}{also}"


def _is_pinned(bounds: Range) -> bool:
    return bounds.min is not None and bounds.min == bounds.max


# Why requests wait or are refused


def _requests(found: Found) -> Iterator[str]:
    spec, tuning = found.spec, found.status.tuning
    if spec is None or not found.status.conditions:
        return
    short = found.says(ConditionType.CAPACITY_SUFFICIENT, "False")
    if short is not None and short.reason == Reason.INFEASIBLE:
        yield f"An objective cannot be kept: {sentence(short.message)}"
    elif short is not None:
        yield f"More arrives than the pods carry: {sentence(short.message)}"
    elif (enough := found.says(ConditionType.CAPACITY_SUFFICIENT, "True")) is not None:
        yield f"The load is carried: the service {sentence(enough.message)}"
    if (violated := found.says(ConditionType.OBJECTIVES_MET, "False")) is not None:
        yield f"Objectives are missed {sentence(violated.message)}"
    yield from _refusals(found, spec)
    if (order := tuning.order) is not None and order.moved_behind:
        yield (
            f"In the last {order.window} {order.moved_behind} requests were served behind others, because they were"
            f" late anyway; the longest of these waited {order.longest_wait}."
        )


def _refusals(found: Found, spec: InferenceServiceSpec) -> Iterator[str]:
    """Who is refused and who waits, by what the engines were told."""
    setpoint = found.status.tuning.setpoint
    if setpoint.first_token_deadline is not None:
        yield (
            f"A request whose first token cannot come within {setpoint.first_token_deadline} any more is refused with"
            f" {setpoint.refusal_status or spec.tuning.refusal_status}, because spec.tuning.overload is Shed."
        )
    elif setpoint.queued_tokens is not None:
        yield (
            f"vLLM refuses requests once {setpoint.queued_tokens:,} tokens of prompts wait,"
            " until the times of the engine's steps are trusted."
        )
    elif spec.tuning.overload is Overload.SHED:
        yield "Nobody is refused yet: there is no deadline before the times of the engine's steps are trusted."
    elif found.says(ConditionType.CAPACITY_SUFFICIENT, "False") is not None:
        by_order = spec.tuning.order is Order.ON_TIME and setpoint.on_time_deadline is not None
        who = "who can still be in time is served first" if by_order else "all wait in order of arrival"
        yield f"Nobody is refused, because spec.tuning.overload is Queue: {who}."


# Why pods were replaced, or not


def _pods(found: Found) -> Iterator[str]:
    progressing = found.condition(ConditionType.PROGRESSING)
    noted = history.read(found.deployment)
    if progressing is not None and progressing.reason != ReconcileReason.NOT_ACCEPTED:
        yield from _rollout(found, progressing, noted)
    outdated = found.says(ConditionType.TEMPLATE_OUTDATED, "True")
    if outdated is not None and not _adoption_failed(found):
        yield f"Pods are still those of an earlier operator's template: {sentence(outdated.message)}"
    restarted = [text for pod in found.pods if (text := _restarts(pod))]
    if restarted:
        more = len(restarted) - _MOST_PODS
        yield "; ".join(restarted[:_MOST_PODS]) + (f"; and {more} more." if more > 0 else ".")


def _rollout(found: Found, progressing: Condition, noted: history.History) -> Iterator[str]:
    reason, message = progressing.reason, progressing.message
    ready = found.condition(ConditionType.READY)
    since = f" since {noted.since}" if noted.since else ""
    if reason == ReconcileReason.ROLLED_BACK:
        which = "of this operator's template" if _adoption_failed(found) else "that the spec asks for"
        yield f"The pods {which} failed, so the earlier ones are back: {sentence(message)}"
    elif reason in SHORTAGES and ready is not None and (ready.status, ready.message) == ("False", message):
        yield "New pods wait for that: it is outside the spec."
    elif reason in SHORTAGES:
        yield f"New pods wait for something outside the spec ({reason}): {sentence(message)}"
    elif reason in (ReconcileReason.CANARY_ANALYSIS, ReconcileReason.CANARY_NOT_JUDGED):
        yield f"A new revision runs on a share of the pods{since}, to be judged: {sentence(message)}"
    elif reason in (ReconcileReason.ROLLING_OUT, ReconcileReason.REPLACING_IN_PLACE):
        yield f"Pods are being replaced{since}, because the pod template changed: {sentence(message)}"
    elif reason == ReconcileReason.ROLLOUT_COMPLETE:
        itself = ", and the service took this operator's template by itself" if noted.adopted else ""
        yield f"No pod is being replaced{f': all have the template of {noted.since}' if noted.since else ''}{itself}."
    elif progressing.status != "True":
        yield f"New pods do not come up ({reason}), and there are no earlier good ones to go back to."


def _restarts(pod: Object) -> str:
    """How often the engine of a pod was restarted, and why last."""
    engine = engine_container(pod).name
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        count = int(container.get("restartCount") or 0)
        if container.get("name") == engine and count:
            ended = (container.get("lastState") or {}).get("terminated") or {}
            cause = f", last for {ended['reason']}, exit code {ended.get('exitCode')}" if ended.get("reason") else ""
            return f"The engine of pod {pod['metadata']['name']} was restarted {_times(count)}{cause}"
    return ""


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# What was decided last, and what is wrong besides


def _decision(found: Found) -> Iterator[str]:
    decisions = found.status.tuning.decisions
    if not decisions:
        if found.status.tuning.generation:
            yield "No change of limits is noted."
        return
    last = decisions[0]
    change = change_in_words(_json(last.before), _json(last.after))
    when = f"{last.time}{ago(last.time, found.now)}"
    yield f"The last decision was taken at {when}: {change}, because {sentence(last.trigger)}"
    if last.observed:
        yield f"After it was seen: {sentence(last.observed)}"


def _warning(found: Found) -> Iterator[str]:
    """The newest warning about the service that no condition says as well, or did while it lasted."""
    said = {condition.message for condition in found.status.conditions}
    warnings = [
        (at, event)
        for event in found.events
        if event.get("type") == "Warning"
        and (at := moment(event.get("lastTimestamp"))) is not None
        and found.now - at <= _RECENT
        and event.get("message") not in said
        and not of_condition(str(event.get("reason")))
    ]
    if warnings:
        at, event = max(warnings, key=lambda pair: pair[0])
        when = f"{event['lastTimestamp']}{ago(event['lastTimestamp'], found.now)}"
        yield f"The last warning, at {when}, was {event.get('reason')}: {sentence(str(event.get('message')))}"


# What to do


def _next(found: Found) -> Iterator[str]:
    if found.error:
        yield f"The spec is wrong: {sentence(found.error)}"
    if found.unattended:
        yield "Next: flyball doctor says which operators there are; one must watch this namespace."
        return
    if not found.status.conditions:
        yield "Next: if this stays for a minute, flyball doctor says whether an operator looks after this namespace."
        return
    steps = list(dict.fromkeys(text for reason in _reasons(found) if (text := _advice(found, reason))))
    yield f"Next: {' '.join(steps[:2])}" if steps else "There is nothing to do."


def _advice(found: Found, reason: str) -> str:
    desired = found.status.desired_replicas
    shown = "" if desired is None else f", {desired}"
    return advice(reason, name=found.meta.name, namespace=found.meta.namespace, desired=shown)


def _reasons(found: Found) -> Iterator[str]:
    """Reasons that ask for something, the gravest first. A cause stands at the beginning of a roll-back's message."""
    accepted, ready = found.condition(ConditionType.ACCEPTED), found.condition(ConditionType.READY)
    progressing = found.condition(ConditionType.PROGRESSING)
    if accepted is not None:
        yield accepted.reason
    if progressing is not None and progressing.reason == ReconcileReason.ROLLED_BACK:
        yield from (cause for cause in CauseReason if progressing.message.startswith(f"{cause}:"))
    if _adoption_failed(found):
        yield OutdatedReason.ADOPTION_FAILED
    # After a failed adoption the spec is right.
    if (
        ready is not None
        and ready.status != "True"
        and not (_adoption_failed(found) and ready.reason == ReconcileReason.ROLLED_BACK)
    ):
        yield ready.reason
    for kind in (
        ConditionType.ROUTED,
        ConditionType.ADAPTERS_LOADED,
        ConditionType.METRICS_AVAILABLE,
        ConditionType.TUNED,
    ):
        if (one := found.condition(kind)) is not None:
            yield one.reason
    if (scaling := found.condition(ConditionType.SCALING_ACTIVE)) is not None:
        yield scaling.reason
    # Objectives that are missed for want of capacity need no advice of their own.
    short = found.says(ConditionType.CAPACITY_SUFFICIENT, "False")
    one = short or found.says(ConditionType.OBJECTIVES_MET, "False")
    # Where the operator scales, the reason above tells what keeps more pods away.
    if one is not None and not (one is short and found.says(ConditionType.SCALING_ACTIVE, "True")):
        yield one.reason
    if (one := found.says(ConditionType.TEMPLATE_OUTDATED, "True")) is not None:
        yield one.reason


def _adoption_failed(found: Found) -> bool:
    """Whether it is the operator's template that failed: nothing of the spec is to be corrected."""
    outdated = found.says(ConditionType.TEMPLATE_OUTDATED, "True")
    return outdated is not None and outdated.reason == OutdatedReason.ADOPTION_FAILED


def _json(model: object) -> Object:
    dump: Object = model.model_dump(mode="json", by_alias=True, exclude_none=True)  # type: ignore[attr-defined]
    return dump
