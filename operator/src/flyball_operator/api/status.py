"""The status of an InferenceService: what is, as two writers report it.

Split from the spec because it is written by us and read leniently; the spec is written by users and read strictly.
No field of the status has a default in the CRD: it would be nobody's field and fight with server-side apply. Pure.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, WithJsonSchema

from flyball_operator.api.base import Mode, ReportedModel
from flyball_operator.api.rules import MapKeyed

Word = Annotated[str, Field(max_length=63)]
Figure = Annotated[str, Field(max_length=32)]
Sentence = Annotated[str, Field(max_length=1024)]
Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
#: Recommendations per direction at most: of each slice of a window one, of a slice that begins, the newest.
MOST_RECOMMENDED: Final = 8
#: Beyond it JSON readers lose digits.
LARGEST_NUMBER: Final = 2**53
Number = Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]


class ConditionType(StrEnum):
    """Conditions, in the order a reader wants them. The first eight are the reconciler's, the others the tuner's."""

    ACCEPTED = "Accepted"
    PROGRESSING = "Progressing"
    AVAILABLE = "Available"
    READY = "Ready"
    STALLED = "Stalled"
    TEMPLATE_OUTDATED = "TemplateOutdated"
    MODEL_READY = "ModelReady"
    ROUTED = "Routed"
    METRICS_AVAILABLE = "MetricsAvailable"
    TUNED = "Tuned"
    OBJECTIVES_MET = "ObjectivesMet"
    CAPACITY_SUFFICIENT = "CapacitySufficient"
    SCALING_ACTIVE = "ScalingActive"
    ADAPTERS_LOADED = "AdaptersLoaded"


RECONCILER_CONDITIONS: Final = frozenset(
    {
        ConditionType.ACCEPTED,
        ConditionType.PROGRESSING,
        ConditionType.AVAILABLE,
        ConditionType.READY,
        ConditionType.STALLED,
        ConditionType.TEMPLATE_OUTDATED,
        ConditionType.MODEL_READY,
        ConditionType.ROUTED,
    }
)
TUNER_CONDITIONS: Final = frozenset(ConditionType) - RECONCILER_CONDITIONS
#: What of the status is the tuner's, as the API server spells it; of the conditions, `TUNER_CONDITIONS` are.
TUNER_FIELDS: Final = frozenset({"tuning", "objectives", "objectivesMet", "desiredReplicas", "scaling", "analysis"})

#: Open in the CRD, so that a later operator's condition does not break an earlier one's schema.
OpenConditionType = Annotated[ConditionType, WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 316})]
ConditionStatus = Annotated[str, WithJsonSchema({"type": "string", "enum": ["True", "False", "Unknown"]})]


class Condition(ReportedModel):
    """A Kubernetes condition (meta/v1)."""

    type: OpenConditionType
    """What is claimed: Accepted, Progressing, Available, Ready, Stalled, TemplateOutdated, ModelReady, Routed,
    MetricsAvailable, Tuned, ObjectivesMet, CapacitySufficient, ScalingActive or AdaptersLoaded."""
    status: ConditionStatus
    """"True", "False" or "Unknown"."""
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    """Why, in one CamelCase word."""
    message: Annotated[str, Field(max_length=32_768)] = ""
    """Why, in a sentence."""
    observed_generation: Number = 0
    """Generation of the spec this was said about."""
    last_transition_time: Time = ""
    """When `status` last changed."""


class StepModelCoefficients(ReportedModel):
    """A step-time model, quantised; seconds as decimal strings.

    Step time = t0 + h (if there is prefill) + c1 per token up to kappa + c2 per token beyond it + beta per decode
    + g per unit of prefill attention + d per token of KV cache that decodes read.
    """

    id: Word = ""
    """Names this fit; engines and decisions refer to it."""
    t0: Figure = "0"
    """Seconds of an empty step."""
    h: Figure = "0"
    """Seconds added by any prefill in the step."""
    c1: Figure = "0"
    """Seconds per scheduled token up to `kappa`."""
    c2: Figure = "0"
    """Seconds per scheduled token beyond `kappa`."""
    beta: Figure = "0"
    """Seconds per running decode."""
    g: Figure = "0"
    """Seconds per unit of prefill attention."""
    d: Figure = "0"
    """Seconds per token of KV cache that decodes read."""
    kappa: Number = 1
    """Tokens at which the cost per token changes."""


class StepModelStatus(StepModelCoefficients):
    """The identified step-time model, quantised; seconds as decimal strings.

    Step time = t0 + h (if there is prefill) + c1 per token up to kappa + c2 per token beyond it + beta per decode
    + g per unit of prefill attention + d per token of KV cache that decodes read.
    """

    error: Figure = ""
    """Median relative error of the fit, a fraction."""
    trusted: bool = False
    """Whether decisions use this fit."""
    steps: Number = 0
    """Steps the fit has seen."""


class ClassDeadline(ReportedModel):
    """By when requests of a class have their first token."""

    name: Word
    """Name of the class."""
    deadline: Figure
    """Time to first token, such as 500ms."""


class SetpointStatus(ReportedModel):
    """What engines shall do, as decided; the intent is written here before it is pushed."""

    max_num_active_seqs: Number | None = None
    """Requests that may run at once."""
    max_num_scheduled_tokens: Number | None = None
    """Tokens that one step may process."""
    long_prefill_token_threshold: Number | None = None
    """Tokens of one prompt that one step may process; 0 is no cap."""
    num_speculative_tokens: Number | None = None
    """Tokens that a step may draft for each request; absent: as many as spec.batching.speculative says."""
    step_budget: Figure | None = None
    """Time that a step may take, such as 27.6ms: the engine gives each step the tokens that fit. Absent: any time."""
    first_token_deadline: Figure | None = None
    """Time to first token, such as 500ms, by which requests are refused. Absent: none is refused."""
    first_token_margin: Figure | None = None
    """Share of the deadline that the predicted time to first token of a request that is let in may take, a fraction."""
    refusal_status: Number | None = None
    """HTTP status of a request that is refused by that deadline. Absent: none is refused."""
    on_time_deadline: Figure | None = None
    """Time to first token, such as 500ms, by which prompts are ordered: those that can have it are served first.
    Absent: vLLM's own order."""
    on_time_margin: Figure | None = None
    """Share of that deadline which the order plans with, a fraction."""
    class_deadlines: Annotated[tuple[ClassDeadline, ...], Field(max_length=8), MapKeyed("name")] | None = None
    """The same of classes of requests, where requests are refused or ordered. A class that is not here has none."""
    queued_tokens: Number | None = None
    """Tokens of waiting prompts at which vLLM refuses requests, until a deadline does. Absent: vLLM's own value."""
    step_model: StepModelCoefficients | None = None
    """What engines predict by; it is sent anew only when it says something else."""


class DecisionStatus(ReportedModel):
    """One decision: what triggered it, what it changed, what it expected and what came."""

    time: Time
    """When it was taken."""
    trigger: Sentence
    """What made the tuner decide."""
    before: SetpointStatus = SetpointStatus()
    """Limits before."""
    after: SetpointStatus = SetpointStatus()
    """Limits after."""
    predicted: Sentence = ""
    """What the model expected of it."""
    observed: Sentence = ""
    """What was seen after it."""


class ObjectiveStatus(ReportedModel):
    """How one objective is met; empty where nothing was counted."""

    name: Word
    """Name of the objective in the spec."""
    attained: Figure = ""
    """Percentage of requests that met it over `window`."""
    budget_remaining: Figure = ""
    """Percentage of the allowed violations that is left over `window`, without the sign. Negative when overspent:
    -520 means 6.2 times the allowed violations."""
    window: Figure = ""
    """Time over which both were counted."""


class OrderStatus(ReportedModel):
    """What came of the on-time order. Figures have two digits and stay while they are right within a quarter."""

    moved_behind: Number = 0
    """Requests that were given up as late, and served behind the others, over `window`."""
    in_time_after_all: Number = 0
    """Of the requests behind, those that had their first token in time after all, over `window`."""
    longest_wait: Figure = ""
    """The longest that a request behind was seen to wait over `window`, such as 28s."""
    window: Figure = ""
    """Time over which these were counted."""


class WorkloadStatus(ReportedModel):
    """What one engine core is asked for in the mean, as decimal strings of two digits.

    It stays while all of it is right within a quarter, and while no request comes.
    """

    arrivals: Figure
    """Requests per second."""
    prompt: Figure
    """Tokens of a prompt."""
    uncached: Figure
    """Tokens of a prompt that are not in the prefix cache."""
    output: Figure
    """Tokens of an answer."""
    attention: Figure
    """Prefill attention per prefill token: the mean context of a chunk."""
    context: Figure
    """Tokens of KV cache that a running decode reads in a step."""
    decodes: Figure
    """Decodes that run in a step."""
    kv_tokens: Figure
    """Tokens that the KV cache holds."""
    drafted: Figure
    """Tokens that a step processes for a decode; 1 without speculation."""
    made: Figure
    """Tokens that come of them."""
    token_weighted_prompt: Figure | None = None
    """Tokens that are computed of the prompt that a prefill token is in on average; absent where engines do not count
    them."""
    kv_share: Figure | None = None
    """Of the KV tokens that running requests have, the share that takes memory: less than 1 where they share prefixes;
    absent where that is not known."""


class SlowPodStatus(ReportedModel):
    """A pod whose steps take longer than its siblings'."""

    name: Annotated[str, Field(max_length=253)]
    """Name of the pod."""
    factor: Figure = ""
    """How many times as long they take."""


class TuningStatus(ReportedModel):
    """What the tuner knows and did; all a new leader needs to resume."""

    mode: Mode = Mode.AUTO
    """Mode the tuner last acted under."""
    epoch: Number = 0
    """Leadership that wrote this; the API server refuses a smaller one."""
    generation: Number = 0
    """Number of the setpoint within the epoch."""
    setpoint: SetpointStatus = SetpointStatus()
    """What the engines shall run under."""
    applied_pods: Figure = ""
    """Ready pods of which every engine core confirmed the setpoint, of all Ready pods: 2/2."""
    model: StepModelStatus = StepModelStatus()
    """Step-time model in use."""
    binding_objective: Word = ""
    """Objective that limits the batch."""
    arrivals: Figure = ""
    """Requests per second that arrive at all scraped pods, refused ones included. Empty where that is not known."""
    capacity: Figure = ""
    """Requests per second that the pods carry at the objectives, all together, with the lengths of now."""
    workload: WorkloadStatus | None = None
    """What one engine core is asked for. Absent: it was not weighed against objectives yet."""
    order: OrderStatus | None = None
    """What came of the on-time order. Absent: prompts are served in vLLM's own order, or nothing was counted."""
    recommended: SetpointStatus | None = None
    """What the law would set, in mode Recommend or while tuning is paused."""
    held_until: Time | None = None
    """The law changes nothing before: a change was undone. Absent: it may change the limits."""
    slow_pods: Annotated[tuple[SlowPodStatus, ...], Field(max_length=8), MapKeyed("name")] = ()
    """Pods that have been clearly slower than their siblings for minutes; each corrects for it by itself."""
    decisions: Annotated[tuple[DecisionStatus, ...], Field(max_length=5)] = ()
    """The last five decisions, newest first."""


class RecommendedReplicas(ReportedModel):
    """What the load needed, and until when it did."""

    replicas: Number
    """Pods."""
    until: Time | None = None
    """When the load needed so many last. Absent: it does now."""


class ScalingStatus(ReportedModel):
    """What the operator scales by; all a new leader needs to go on."""

    replicas: Number
    """Pods that the operator sets."""
    last_scale_time: Time | None = None
    """When that number changed last. Absent: it has not yet."""
    scale_up: Annotated[tuple[RecommendedReplicas, ...], Field(max_length=MOST_RECOMMENDED)] = ()
    """What was recommended within the window of scaleUp, oldest first, as far as it holds pods back."""
    scale_down: Annotated[tuple[RecommendedReplicas, ...], Field(max_length=MOST_RECOMMENDED)] = ()
    """What was recommended within the window of scaleDown, oldest first, as far as it keeps pods."""


class AnalysisPhase(StrEnum):
    """How far the analysis of a canary is, in the words of Argo Rollouts' AnalysisRun."""

    RUNNING = "Running"
    INCONCLUSIVE = "Inconclusive"
    SUCCESSFUL = "Successful"
    FAILED = "Failed"

    @property
    def decided(self) -> bool:
        """Whether it is the last word on this revision."""
        return self in (AnalysisPhase.SUCCESSFUL, AnalysisPhase.FAILED)


class CanaryStatus(ReportedModel):
    """The revision that is judged on a share of the pods. The reconciler writes it; it is there only meanwhile."""

    revision: Word
    """The new revision: the annotation `spec-hash` of its pods."""
    baseline: Word
    """The revision that it is compared with, likewise."""
    start_time: Time
    """When it was asked for: the same revision is judged anew where it is asked for again."""
    pods: Number
    """Pods that run it while it is judged."""


class AnalysisStatus(ReportedModel):
    """What the tuner says of the canary: of which, how far it is, and what was counted."""

    revision: Word
    """As in `canary`."""
    start_time: Time
    """As in `canary`."""
    phase: Annotated[AnalysisPhase, WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 63})]
    """Running, Inconclusive for as long as it cannot be judged, Successful or Failed."""
    message: Sentence = ""
    """Why, in a sentence."""


class InferenceServiceStatus(ReportedModel):
    """The tuner owns `objectives`, `tuning`, `analysis`, what is about scaling, and their conditions.

    The reconciler owns the rest.
    """

    observed_generation: Number = 0
    """Generation of the spec that the reconciler last acted on."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), MapKeyed("type")] = ()
    """Conditions, one per type."""
    epoch: Number = 0
    """Leadership that wrote this; the API server refuses a smaller one."""
    replicas: Number = 0
    """Pods there are, or groups of pods where `parallelism.nodes` is above 1."""
    ready_replicas: Number = 0
    """Of these, those that serve."""
    selector: Annotated[str, Field(max_length=1024)] = ""
    """Label selector of the pods, for the scale subresource."""
    url: Annotated[str, Field(max_length=512)] = ""
    """Address of the OpenAI API inside the cluster."""
    revision_outdated: bool = False
    """True where this operator would render the pods otherwise; they keep running as they are until adopted."""
    objectives: Annotated[tuple[ObjectiveStatus, ...], Field(max_length=8), MapKeyed("name")] = ()
    """How each objective is met."""
    desired_replicas: Number | None = None
    """Replicas that the load needs at the objectives. Without `spec.scaling` it is advice, which an autoscaler may
    follow."""
    scaling: ScalingStatus | None = None
    """What the operator scales by. Absent without `spec.scaling`."""
    canary: CanaryStatus | None = None
    """The revision that is judged on a share of the pods. Absent while none is."""
    analysis: AnalysisStatus | None = None
    """What came of judging it. Absent while none is judged."""
    objectives_met: Figure = ""
    """Objectives met, of all: 2/2."""
    tuning: TuningStatus = TuningStatus()
    """What the tuner knows and did."""

    @property
    def present_scaling(self) -> ScalingStatus | None:
        """What the operator scales by, None where nobody tunes the service any more: `scaling` is of an earlier time.

        Of ScalingActive nothing else is unknown.
        """
        left = any(one.type == ConditionType.SCALING_ACTIVE and one.status == "Unknown" for one in self.conditions)
        return None if left else self.scaling
