"""What `flyball why` says of services in all kinds of states."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from flyball_lab.harness.manifests import Object, good
from flyball_operator.api import names
from flyball_operator.api.v1alpha1 import SetpointStatus
from flyball_operator.cli.advice import ADVICE
from flyball_operator.cli.limits import LIMIT_WORDS
from flyball_operator.cli.why import parsed
from flyball_operator.cli.why_sentences import About, why
from flyball_operator.reconcile.plan.acceptance import AcceptedReason
from flyball_operator.reconcile.plan.adoption import OutdatedReason
from flyball_operator.reconcile.plan.cause import CauseReason
from flyball_operator.reconcile.plan.model_reasons import ModelReason
from flyball_operator.reconcile.plan.routing import RoutedReason
from flyball_operator.reconcile.plan.status import ReconcileReason
from flyball_operator.tuning.observe.signals import Missing
from flyball_operator.tuning.reasons import Reason
from flyball_operator.tuning.replicas import ScalingLimit
from flyball_operator.tuning.report.scaling_report import ScalingReason

NOW = datetime(2026, 11, 22, 4, 0, tzinfo=UTC)
LIMITS = {"maxNumActiveSeqs": 48, "maxNumScheduledTokens": 1024}
DECISION = {
    "time": "2026-11-22T03:48:00Z",
    "trigger": "ttft binds at 2.6/s per core of 371+23 tokens, 0 waiting",
    "before": {"maxNumActiveSeqs": 64, "maxNumScheduledTokens": 1024},
    "after": LIMITS,
    "observed": "token 19ms, ttft 100 %",
}
TUNING: Object = {
    "epoch": 3,
    "generation": 12,
    "setpoint": LIMITS,
    "model": {"id": "abcd", "t0": "0.0059", "c1": "1.2e-05", "trusted": True, "steps": 12000},
    "bindingObjective": "ttft",
    "decisions": [DECISION],
}
GOOD = {
    "Accepted": ("True", "Accepted", "the spec can be acted upon"),
    "Progressing": ("True", "RolloutComplete", "all pods have the template asked for"),
    "Available": ("True", "EndpointsReady", "at least one pod serves"),
    "Ready": ("True", "Serving", "as many pods as asked for serve"),
    "MetricsAvailable": ("True", "Scraped", "Prometheus has fresh samples"),
    "Tuned": ("True", "Applied", "48 seqs, 1024 tokens on every Ready pod"),
    "ObjectivesMet": ("True", "Met", "every objective was met in the last 5m"),
    "CapacitySufficient": ("True", "Sufficient", "carries 20 requests/s at the objectives, 4 arrive"),
}
DEPLOYMENT = {"metadata": {"annotations": {names.ANNOTATION_ASKED: "hash 2026-11-20T10:00:00Z"}}}


def said(
    conditions: Mapping[str, tuple[str, str, str]] | None = None,
    *,
    tuning: Object | None = None,
    status: Object | None = None,
    deployment: Object | None = DEPLOYMENT,
    pods: list[Object] | None = None,
    events: list[Object] | None = None,
    transition: str = "",
    lease: Object | None = None,
    **spec: Any,
) -> dict[str, str]:
    """The sentences by what they are about; `conditions` in place of those of a service that is well."""
    found = [
        {"type": kind, "status": told[0], "reason": told[1], "message": told[2], "observedGeneration": 1}
        | ({"lastTransitionTime": transition} if transition else {})
        for kind, told in {**GOOD, **(conditions or {})}.items()
    ]
    changes: dict[str, Any] = {
        "metadata__namespace": "team",
        "metadata__uid": "uid-1",
        "metadata__generation": 1,
    } | spec
    raw = good(**changes) | {
        "status": {
            "observedGeneration": 1,
            "replicas": 2,
            "readyReplicas": 2,
            "conditions": found,
            "tuning": TUNING | {"mode": spec.get("spec__tuning", {}).get("mode", "Auto")} | (tuning or {}),
            **(status or {}),
        }
    }
    service = parsed(raw, deployment=deployment, pods=pods or [], events=events or [], now=NOW, lease=lease)
    return {one.about.value: one.text for one in why(service)}


def test_ready_and_tuned() -> None:
    assert said() == {
        About.SERVING: "team/chat is Ready: 2 of 2 pods serve.",
        About.LIMITS: "Its limits are 48 requests at once, 1024 tokens in a step, because objective ttft"
        " (TimeToFirstToken within 500ms for 99 %) binds.",
        About.REQUESTS: "The load is carried: the service carries 20 requests/s at the objectives, 4 arrive.",
        About.PODS: "No pod is being replaced: all have the template of 2026-11-20T10:00:00Z.",
        About.DECISION: "The last decision was taken at 2026-11-22T03:48:00Z (12m ago): requests at once from 64 to 48,"
        " because ttft binds at 2.6/s per core of 371+23 tokens, 0 waiting."
        " After it was seen: token 19ms, ttft 100 %.",
        About.NEXT: "There is nothing to do.",
    }


def renewed(at: str) -> Object:
    return {"spec": {"renewTime": at, "leaseDurationSeconds": 300}}


def test_what_nobody_looks_after_any_more_is_told_first() -> None:
    found = said(lease=renewed("2026-11-22T03:48:00.123456Z"))
    assert found[About.SERVING].startswith(
        "No operator has looked after namespace team since 2026-11-22T03:48:00Z (12m ago): what follows is of then. "
    )
    assert found[About.NEXT].startswith("Next: flyball doctor says which operators there are")


@pytest.mark.parametrize("lease", [None, {}, renewed("2026-11-22T03:57:00Z"), renewed("soon")])
def test_where_a_release_renews_its_lease_or_none_is_known_nothing_is_said_of_it(lease: Object | None) -> None:
    assert said(lease=lease) == said()


def test_limits_that_the_tuner_has_not_fitted_to_another_mode_are_not_told_by_it() -> None:
    found = said(tuning={"mode": "Auto"}, spec__tuning={"mode": "Disabled"})
    assert found[About.LIMITS] == (
        "Its limits are 48 requests at once, 1024 tokens in a step."
        " The tuner has not acted on mode Disabled yet: they are those of Auto."
    )


def test_of_an_engine_that_is_governed_no_more_no_act_of_the_tuner_is_waited_for() -> None:
    found = said(tuning={"mode": "Auto"}, spec__engine__governed=False, spec__tuning={"mode": "Disabled"})
    assert "as vLLM was started" in found[About.LIMITS]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"refusalStatus": 503}, {"refusalStatus": 429}, "the HTTP status of who is refused from 503 to 429"),
        (
            {"onTimeMargin": "0.85"},
            {"onTimeMargin": "0.7"},
            "the share of the deadline that the order plans with from 0.85 to 0.7",
        ),
        (
            {"classDeadlines": [{"name": "gold", "deadline": "1s"}]},
            {"classDeadlines": [{"name": "gold", "deadline": "500ms"}]},
            "the deadlines of classes of requests from 1s for gold to 500ms for gold",
        ),
        ({}, {}, "no limit"),
    ],
)
def test_a_decision_names_whatever_it_changed(before: Object, after: Object, words: str) -> None:
    decision = DECISION | {"before": LIMITS | before, "after": LIMITS | after}
    assert f"(12m ago): {words}, because" in said(tuning={"decisions": [decision]})[About.DECISION]


def test_every_field_of_a_setpoint_has_its_words() -> None:
    assert set(LIMIT_WORDS) == set(SetpointStatus.model_fields) - {"step_model"}


def test_gateways_that_do_not_lead_to_it() -> None:
    told = said({"Routed": ("False", RoutedReason.GATEWAY_API_MISSING, "HTTPRoute: the cluster has no such kind")})
    assert told[About.SERVING].endswith(
        "pods serve. Gateways do not route all requests to it: HTTPRoute: the cluster has no such kind."
    )
    assert told[About.NEXT] == "Next: Install the CRDs that the message names."


def test_what_is_asked_of_the_queue() -> None:
    strategy = {"type": "Dynamic", "batchSize": 32, "maxDelay": "50ms"}
    batching = {"strategy": strategy, "noEvict": {}, "policy": "Priority", "maxConcurrentPrefills": 2}
    queue = {"maxNumQueuedReqs": 500, "maxNumQueuedTokens": 9000}
    found = said(spec__tuning={"order": "Arrival", "batching": batching, "queue": queue})
    assert found["limits"].endswith(
        " spec.tuning asks for strategy Dynamic, batches of at most 32 requests that wait for at most 50ms, noEvict,"
        " at most 2 prompts at once, queue policy Priority, at most 500 requests in a pod,"
        " at most 9000 queued prompt tokens in a pod."
    )
    found = said(spec__tuning={"batching": {"strategy": {"type": "Continuous"}}})
    assert found["limits"].endswith(" spec.tuning asks for strategy Continuous.")


def test_a_new_service() -> None:
    raw = good(metadata__namespace="team", metadata__uid="uid-1")
    texts = [one.text for one in why(parsed(raw, deployment=None, pods=[], events=[], lease=None, now=NOW))]
    assert texts == [
        "team/chat is new: no operator has reported on it yet.",
        "Next: if this stays for a minute, flyball doctor says whether an operator looks after this namespace.",
    ]


def test_an_infeasible_objective() -> None:
    message = "even an idle engine cannot keep ttft within 1ms, the least that it can keep is 80ms"
    found = said({"CapacitySufficient": ("False", Reason.INFEASIBLE, message)})
    assert found["requests"].startswith(f"An objective cannot be kept: {message}.")
    assert found["next"] == "Next: Raise the threshold, or use a faster accelerator or a smaller model."


OVERLOADED = {
    "CapacitySufficient": ("False", Reason.OVERLOADED, "30 requests/s arrive, 2 pods carry 20 at the objectives"),
    "ObjectivesMet": ("False", Reason.VIOLATED, "in the last 5m: ttft 93.8 % of 99 %"),
}


def test_overload_with_shed_says_who_is_refused_and_with_what() -> None:
    setpoint = LIMITS | {"firstTokenDeadline": "500ms", "firstTokenMargin": "0.9", "refusalStatus": 429}
    found = said(
        OVERLOADED,
        tuning={"setpoint": setpoint},
        status={"desiredReplicas": 3},
        spec__tuning={"overload": "Shed", "refusalStatus": 429},
    )
    assert "More arrives than the pods carry: 30 requests/s arrive" in found["requests"]
    assert "Objectives are missed in the last 5m: ttft 93.8 % of 99 %." in found["requests"]
    assert (
        "A request whose first token cannot come within 500ms any more is refused with 429,"
        " because spec.tuning.overload is Shed." in found["requests"]
    )
    assert found["next"] == "Next: Scale to status.desiredReplicas, 3."


@pytest.mark.parametrize(
    ("reason", "next_"),
    [
        (ScalingLimit.AT_MAXIMUM, "Next: Raise spec.scaling.maxReplicas, or a threshold."),
        (ScalingLimit.GROWTH_LIMITED, "Next: Wait: it goes on by itself."),
        (ScalingLimit.STABILIZING, "There is nothing to do."),
    ],
)
def test_where_the_operator_scales_nobody_is_told_to(reason: ScalingLimit, next_: str) -> None:
    scaling: dict[str, tuple[str, str, str]] = {"ScalingActive": ("True", reason, "8 replicas")}
    assert said({**OVERLOADED, **scaling}, status={"desiredReplicas": 8})["next"] == next_


def test_objectives_that_are_missed_within_the_capacity_have_advice_of_their_own() -> None:
    found = said({"ObjectivesMet": OVERLOADED["ObjectivesMet"]})
    assert found["next"].startswith("Next: Wait for the limits to follow")


@pytest.mark.parametrize(
    ("setpoint", "who"),
    [
        ({"onTimeDeadline": "500ms"}, "who can still be in time is served first"),
        ({}, "all wait in order of arrival"),
    ],
)
def test_overload_with_queue_says_who_waits(setpoint: Object, who: str) -> None:
    order = {"movedBehind": 31, "longestWait": "28s", "window": "5m"}
    found = said(OVERLOADED, tuning={"setpoint": LIMITS | setpoint, "order": order})
    assert f"Nobody is refused, because spec.tuning.overload is Queue: {who}." in found["requests"]
    assert "In the last 5m 31 requests were served behind others" in found["requests"]
    assert "the longest of these waited 28s" in found["requests"]


def test_metrics_that_are_lost() -> None:
    lost = ("False", Missing.UNREACHABLE, "http://prometheus:9090 refused the connection; the limits hold")
    found = said({"MetricsAvailable": lost, "CapacitySufficient": ("Unknown", Reason.NOT_OBSERVED, "")})
    assert "and hold, because the metrics are lost (PrometheusUnreachable): http://prometheus" in found["limits"]
    assert "the limits hold" not in found["limits"]
    assert "requests" not in found
    assert found["next"].startswith("Next: Check the operator's prometheus.url")


def test_a_canary() -> None:
    message = "48 seqs in chat-1 alone, the others follow once it works there"
    found = said({"Tuned": ("Unknown", Reason.ONE_POD_FIRST, message)})
    assert found["limits"].endswith(f"They are not on every pod yet: {message}.")
    assert found["next"] == "Next: Wait: it goes on by itself."


def test_a_change_that_was_undone_holds_the_limits() -> None:
    found = said(tuning={"heldUntil": "2026-11-22T04:10:00Z"})
    assert "and hold until 2026-11-22T04:10:00Z, because a change was undone" in found["limits"]
    assert "because objective ttft" in said(tuning={"heldUntil": "2026-11-22T03:50:00Z"})["limits"], "that is over"


def test_a_rollback_with_its_cause() -> None:
    cause = "ImagePullFailed: pod chat-2: manifest unknown; the last good pod template is back"
    found = said(
        {
            "Progressing": ("False", ReconcileReason.ROLLED_BACK, cause),
            "Ready": ("False", ReconcileReason.ROLLED_BACK, cause),
            "Available": ("True", ReconcileReason.EARLIER_REVISION_SERVES, "revision 1 serves"),
        }
    )
    assert found["serving"].startswith(f"team/chat is not Ready (RolledBack): {cause}.")
    assert found["serving"].endswith("It serves all the same: revision 1 serves.")
    assert "failed, so the earlier ones are back: ImagePullFailed" in found["pods"]
    assert found["next"] == (
        "Next: Check the image and spec.podTemplate.imagePullSecrets."
        " Correct the spec: another pod template is tried, the same one is not."
    )


def test_where_the_operators_template_failed_no_correction_of_the_spec_is_advised() -> None:
    cause = "ImagePullFailed: init container plugin: manifest unknown; the last good pod template is back"
    found = said(
        {
            "Progressing": ("False", ReconcileReason.ROLLED_BACK, cause),
            "Ready": ("False", ReconcileReason.ROLLED_BACK, cause),
            "TemplateOutdated": ("True", OutdatedReason.ADOPTION_FAILED, "this operator's template did not run"),
        }
    )
    assert found["pods"].startswith("The pods of this operator's template failed, so the earlier ones are back: Image")
    assert "Correct the spec" not in found["next"]
    assert "Mend the cause, then set the annotation" in found["next"]


def test_a_shortage() -> None:
    message = "pod chat-2: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu; the rollout waits for it"
    shortage = {kind: (status, CauseReason.UNSCHEDULABLE, message) for kind, status in _HELD_UP.items()}
    found = said(shortage)
    assert found["pods"].startswith("New pods wait for that: it is outside the spec.")
    assert " ".join(found.values()).count(message) == 1
    assert "It serves all the same: 2 of 2 pods are Ready." in found["serving"]
    assert found["next"] == "Next: Add a node that fits, or free devices."


def test_a_shortage_that_ready_does_not_tell() -> None:
    found = said({"Progressing": ("True", CauseReason.UNSCHEDULABLE, "pod chat-2: 0/3 nodes are available")})
    assert "New pods wait for something outside the spec (Unschedulable): pod chat-2" in found["pods"]


_HELD_UP = {"Progressing": "True", "Ready": "False"}


def test_a_first_rollout_that_fails_has_nothing_to_go_back_to() -> None:
    failed = dict.fromkeys(("Progressing", "Ready"), ("False", CauseReason.OUT_OF_MEMORY, "pod chat-1: killed"))
    nobody = ("False", CauseReason.OUT_OF_MEMORY, "pod chat-1: killed")
    pod = {
        "metadata": {"name": "chat-1"},
        "status": {
            "containerStatuses": [
                {
                    "name": names.CONTAINER_ENGINE,
                    "restartCount": 4,
                    "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
                }
            ]
        },
    }
    found = said(failed | {"Available": nobody}, pods=[pod])
    assert "New pods do not come up (OutOfMemory), and there are no earlier good ones to go back to." in found["pods"]
    assert "The engine of pod chat-1 was restarted 4 times, last for OOMKilled, exit code 137." in found["pods"]
    assert "serves all the same" not in found["serving"]
    assert found["next"] == "Next: Raise the memory limit."


def test_a_pause_says_why_and_how_it_ends_and_no_time_that_is_not_known() -> None:
    found = said(
        {"Tuned": ("False", Reason.PAUSED, "annotation serving.flyball.dev/tuning: 48 seqs until it is removed")},
        transition="2026-11-20T10:00:00Z",
        metadata__annotations={names.ANNOTATION_TUNING: "Paused", names.ANNOTATION_TUNING_REASON: "load test"},
    )
    assert found["limits"] == (
        "Its limits are 48 requests at once, 1024 tokens in a step, and stay, because tuning is paused (load test)."
    )
    assert found["next"] == "Next: When you are done: flyball resume chat -n team."


def test_of_a_pause_that_is_not_understood_the_value_is_told() -> None:
    message = "annotation serving.flyball.dev/tuning is 'Pause', accepted: Paused, or none to resume"
    found = said(
        {"Tuned": ("False", Reason.PAUSE_UNCLEAR, message)}, metadata__annotations={names.ANNOTATION_TUNING: "Pause"}
    )
    assert f"Tuning is in trouble (PauseNotUnderstood): {message}." in found["limits"]
    assert found["next"].startswith("Next: Pause it again (flyball pause chat -n team), or resume it")


def test_a_model_that_is_not_trusted_yet() -> None:
    found = said(
        {"Tuned": ("False", Reason.LEARNING, "12 steps seen")},
        tuning={"model": {"steps": 1200}, "setpoint": LIMITS | {"queuedTokens": 8533}, "bindingObjective": ""},
        spec__tuning={"overload": "Shed"},
    )
    assert "start values: the times of the engine's steps are not trusted yet (1,200 steps seen)" in found["limits"]
    assert "vLLM refuses requests once 8,533 tokens of prompts wait" in found["requests"]
    assert found["next"].startswith("Next: Send traffic of different sizes")


def test_a_model_that_is_trusted_before_the_law_has_chosen() -> None:
    message = "the model is trusted, and the first decision is to come"
    found = said({"Tuned": ("False", Reason.LEARNING, message)}, tuning={"bindingObjective": ""})
    assert message in found["limits"]
    assert "no objective asks for less" not in found["limits"]


def test_limits_that_follow_an_overload_before_the_model_is_trusted_are_no_start_values() -> None:
    found = said(tuning={"model": {"steps": 1200}, "setpoint": LIMITS | {"stepBudget": "27.6ms"}})
    assert found["limits"] == (
        "Its limits are 48 requests at once, 1024 tokens in a step, steps of 27.6ms: the times of the engine's steps"
        " are not trusted yet (1,200 steps seen), so limits stay, but the time of a step, the order and the deadline"
        " follow an overload."
    )


def test_an_object_that_others_change() -> None:
    message = "spec.template.spec.nodeSelector of Deployment chat is changed after each apply by mutator"
    refused = ("False", AcceptedReason.CHANGED_BY_OTHERS, message)
    found = said({"Accepted": refused, "Ready": refused})
    assert found["serving"].startswith(f"team/chat is not accepted (ChangedByOthers): {message}.")
    assert "Nothing of it is changed meanwhile; 2 of 2 pods are Ready." in found["serving"]
    assert found["next"].startswith("Next: Exempt the object from whoever changes it")


def test_an_adoption_under_way_and_one_that_waits() -> None:
    annotations = DEPLOYMENT["metadata"]["annotations"] | {names.ANNOTATION_ADOPTED: "template hash turn"}
    adopted = {"metadata": {"annotations": annotations}}
    rolling = ("True", ReconcileReason.ROLLING_OUT, "pods are being brought to this operator's template")
    found = said({"Progressing": rolling, "Ready": ("False", *rolling[1:])}, deployment=adopted)
    assert "Pods are being replaced since 2026-11-20T10:00:00Z" in found["pods"]
    assert "brought to this operator's template" in found["pods"]
    assert "took this operator's template by itself" in said(deployment=adopted)["pods"]
    waits = ("True", OutdatedReason.OUTSIDE_WINDOW, "adopts this operator's template at 22:00 UTC for 4h, each day")
    found = said({"TemplateOutdated": waits})
    assert "Pods are still those of an earlier operator's template: adopts this" in found["pods"]
    assert found["next"] == "There is nothing to do."


def test_a_new_revision_that_is_judged() -> None:
    judged = ("True", ReconcileReason.CANARY_ANALYSIS, "1 pod has the new revision, judged for 9m more")
    found = said({"Progressing": judged, "Ready": ("False", *judged[1:])})
    assert found["pods"] == (
        "A new revision runs on a share of the pods since 2026-11-20T10:00:00Z, to be judged: 1 pod has the new"
        " revision, judged for 9m more."
    )
    assert found["next"] == "Next: Wait: it goes on by itself."


@pytest.mark.parametrize(
    ("mode", "because"),
    [("Disabled", "the upper bounds, because mode is Disabled"), ("Recommend", "and stay, because mode is Recommend")],
)
def test_modes_that_change_nothing(mode: str, because: str) -> None:
    assert because in said(spec__tuning={"mode": mode})["limits"]


def test_what_mode_recommend_would_set() -> None:
    found = said(spec__tuning={"mode": "Recommend"}, tuning={"recommended": {"maxNumActiveSeqs": 32}})
    assert "the law would set 32 requests at once" in found["limits"]


def test_limits_that_no_objective_binds_are_the_upper_bounds_and_pins_are_named() -> None:
    pins = {"bounds": {"maxNumActiveSeqs": {"min": 48, "max": 48}}}
    found = said(tuning={"bindingObjective": ""}, spec__tuning=pins)
    assert "the upper bounds (spec.batching, spec.tuning.bounds), because no objective asks for less" in found["limits"]
    assert "spec.tuning.bounds pins maxNumActiveSeqs" in found["limits"]
    assert "because there are no objectives" in said(tuning={"bindingObjective": ""}, spec__objectives=[])["limits"]


def test_an_engine_that_is_in_trouble() -> None:
    found = said({"Tuned": ("False", Reason.UNREACHABLE, "pod chat-1 does not answer on port 8001")})
    assert "Tuning is in trouble (EngineUnreachable): pod chat-1 does not answer" in found["limits"]
    assert found["next"] == "Next: Check the control port of the pods (`control`, usually 8001), and NetworkPolicies."


def test_a_spec_that_is_wrong_is_told_by_its_field() -> None:
    wrong = ("False", AcceptedReason.INVALID_SPEC, "spec.model.uri: must be given")
    found = said({"Accepted": wrong, "Ready": wrong}, spec__model={})
    assert "limits" not in found
    assert found["next"].startswith("The spec is wrong: spec.model")
    assert found["next"].endswith("Next: Correct the field that the message names.")


def test_a_generation_that_the_operator_has_not_seen() -> None:
    found = said(metadata__generation=2)
    assert found["serving"].startswith("The operator has not acted on generation 2 of team/chat yet")


def test_the_newest_warning_of_the_last_hour_that_no_condition_repeats() -> None:
    def event(at: str, message: str, kind: str = "Warning", reason: str = "WatchdogTripped") -> Object:
        return {"type": kind, "reason": reason, "message": message, "lastTimestamp": at}

    events = [
        event("2026-11-22T03:40:00Z", "the older"),
        event("2026-11-22T03:50:00Z", "the newer"),
        event("2026-11-22T03:55:00Z", "no warning", "Normal"),
        event("2026-11-22T03:56:00Z", GOOD["Tuned"][2]),
        event("2026-11-22T03:57:00Z", "not scraped", reason="MetricsLost"),
        event("2026-11-22T03:58:00Z", "more than the pods carry", reason="CapacityShort"),
    ]
    assert said(events=events)["warning"] == (
        "The last warning, at 2026-11-22T03:50:00Z (10m ago), was WatchdogTripped: the newer."
    )
    assert "warning" not in said(events=[event("2026-11-22T02:50:00Z", "of long ago")])


#: Reasons that ask nothing of anybody, or stand beside one that does.
QUIET = {
    AcceptedReason.ACCEPTED,
    ReconcileReason.ROLLOUT_COMPLETE,
    ReconcileReason.NOT_ACCEPTED,
    ReconcileReason.ENDPOINTS_READY,
    ReconcileReason.SCALED_TO_ZERO,
    ReconcileReason.SERVING,
    ReconcileReason.MADE_BY_OTHERS,
    OutdatedReason.NOT_OLD_ENOUGH,
    OutdatedReason.OUTSIDE_WINDOW,
    OutdatedReason.WAITS_FOR_TURN,
    Reason.SCRAPED,
    Reason.NO_READY_PODS,
    Reason.APPLIED,
    Reason.DISABLED,
    Reason.MET,
    Reason.NO_OBJECTIVES,
    Reason.NO_REQUESTS,
    Reason.NOT_OBSERVED,
    Reason.SUFFICIENT,
    Reason.ADAPTERS_LOADED,
    ModelReason.DOWNLOADED,
    RoutedReason.ACCEPTED_BY_GATEWAY,
    ScalingLimit.AS_NEEDED,
    ScalingLimit.AT_MINIMUM,
    ScalingLimit.STABILIZING,
}
REASONS = [
    AcceptedReason, ReconcileReason, OutdatedReason, CauseReason, ModelReason, RoutedReason, Missing, Reason,
    ScalingLimit, ScalingReason,
]  # fmt: skip


@pytest.mark.parametrize("reasons", REASONS)
def test_every_reason_has_its_advice_or_is_quiet(reasons: Any) -> None:
    assert {one for one in reasons if one not in ADVICE} == {one for one in reasons if one in QUIET}
