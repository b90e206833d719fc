"""The tuner's conditions without their bookkeeping, and their reasons. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from flyball_operator.api.v1alpha1 import Condition, ConditionType


class Reason(StrEnum):
    """Reasons of the tuner's conditions, beside those of `signals.Missing`."""

    SCRAPED = "Scraped"
    """MetricsAvailable: Prometheus has fresh samples of the service's pods."""
    SCRAPED_TWICE = "ScrapedTwice"
    """MetricsAvailable: likewise, of several targets for one engine. One is counted, the message names their jobs."""
    NO_READY_PODS = "NoReadyPods"
    """Nothing to observe or to tune yet."""
    APPLIED = "Applied"
    """Tuned: every engine core of every Ready pod runs under the law's limits."""
    LEARNING = "Learning"
    """Tuned is False: start values, until the step-time model is trusted and the law has chosen once.
    CapacitySufficient is Unknown until the model is trusted."""
    DISABLED = "Disabled"
    """Tuned is False: mode Disabled runs at the upper bounds."""
    RECOMMEND_ONLY = "RecommendOnly"
    """Tuned is False: mode Recommend leaves live limits alone."""
    NOT_TUNED = "NotTuned"
    """Of all conditions of the tuner: the service is not governed, or its spec is not accepted."""
    NOT_DECIDING = "NotDeciding"
    """Tuned is False: there are requests, and for minutes the law could not decide; the message says why."""
    LOOP_STALLED = "LoopStalled"
    """Tuned is Unknown: no tick of this service was completed lately; the operator's log says why."""
    PAUSED = "Paused"
    """Tuned is False: an annotation pauses tuning; the engines keep their setpoint."""
    PAUSE_UNCLEAR = "PauseNotUnderstood"
    """Tuned is False: the same, but the annotation says something else than is accepted."""
    PUSHING = "Pushing"
    """Tuned is Unknown: some pods have not confirmed the setpoint yet."""
    ONE_POD_FIRST = "OnePodFirst"
    """Tuned is Unknown: a policy that rests on little is tried in one pod, the others follow once it works there."""
    PUSH_FAILED = "PushFailed"
    """Tuned is False: an engine refused the setpoint, or did not confirm it."""
    UNREACHABLE = "EngineUnreachable"
    """Tuned is False: the control port of a Ready pod does not answer."""
    UNGOVERNED = "EngineUngoverned"
    """Tuned is False: the plugin could not load in a pod, which runs as plain vLLM."""
    WATCHDOG_TRIPPED = "WatchdogTripped"
    """Tuned is False: requests stood still under the setpoint, and an engine returned to its start values."""
    ADMISSION_STUCK = "AdmissionStuck"
    """Tuned is False: requests wait in an engine with slots free, and for over a minute it admitted none."""
    UNSUPPORTED = "KnobUnsupported"
    """Tuned is False: this engine cannot move a limit live, or not refuse requests by a deadline."""
    FENCED = "NewerLeader"
    """Tuned is False: status names an epoch above that of our Lease; this operator stopped acting for the service."""
    UNEXPLAINED = "SetpointUnexplained"
    """Tuned is False: an engine answers with an epoch or generation that no leader has given; the others are tuned."""
    MET = "Met"
    """ObjectivesMet: every objective that was counted is met."""
    VIOLATED = "Violated"
    """ObjectivesMet is False."""
    NO_OBJECTIVES = "NoObjectives"
    """ObjectivesMet and CapacitySufficient are Unknown: the spec names none."""
    NO_REQUESTS = "NoRequests"
    """ObjectivesMet is Unknown: nothing was counted in the window. CapacitySufficient: none ever came."""
    NOT_OBSERVED = "NotObserved"
    """ObjectivesMet is Unknown: the counts could not be read. CapacitySufficient: the signals could not."""
    SUFFICIENT = "Sufficient"
    """CapacitySufficient: the pods carry what arrives, at the objectives."""
    OVERLOADED = "Overloaded"
    """CapacitySufficient is False: more arrives than the pods carry at the objectives."""
    INFEASIBLE = "Infeasible"
    """CapacitySufficient is False: even an idle engine cannot keep some objective."""
    ADAPTERS_LOADED = "Loaded"
    """AdaptersLoaded: every Ready pod answers all adapters of the list."""
    ADAPTERS_LOADING = "Loading"
    """AdaptersLoaded is Unknown: some pod has yet to load or to unload an adapter."""
    ADAPTER_FAILED = "LoadFailed"
    """AdaptersLoaded is False: an adapter could not be loaded in some pod; the message says why."""
    ADAPTERS_UNSUPPORTED = "StartedWithoutAdapters"
    """AdaptersLoaded is False: a pod was started before the service had a list of adapters, or with a plugin that is
    older than they are."""
    ADAPTERS_UNLISTED = "ListMissing"
    """AdaptersLoaded is False: the ConfigMap with the list is not in a pod."""


@dataclass(frozen=True)
class ConditionState:
    """A condition without its bookkeeping."""

    status: str
    reason: str
    message: str

    def condition(self, kind: ConditionType, generation: int) -> Condition:
        """The condition; who writes it dates it."""
        return Condition(
            type=kind, status=self.status, reason=self.reason, message=self.message, observed_generation=generation
        )
