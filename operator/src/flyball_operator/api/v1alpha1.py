"""The InferenceService, `serving.flyball.dev/v1alpha1`, as pydantic models.

The CRD is generated from these models (`crd.py`), and the operator parses with them what it reads, as untrusted input.
Shapes are for good: there is no conversion webhook, so every later change is additive. Pure.
"""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from flyball_engine.contract import Metric
from flyball_operator.api.quantities import DECIMAL_PATTERN, DURATION_PATTERN, parse_duration

Duration = Annotated[str, Field(pattern=DURATION_PATTERN, max_length=20)]
Percentage = Annotated[str, Field(pattern=DECIMAL_PATTERN, max_length=10)]

#: vLLM's start-up sizes when `spec.batching` names none: vLLM's own defaults for most devices (arg_utils.py).
DEFAULT_MAX_NUM_SEQS: Final = 256
DEFAULT_MAX_NUM_BATCHED_TOKENS: Final = 8192
#: Smallest limits the law may set where `spec.tuning.bounds` names none.
DEFAULT_MIN_NUM_ACTIVE_SEQS: Final = 4
DEFAULT_MIN_NUM_SCHEDULED_TOKENS: Final = 128


class Model(BaseModel):
    """Base of all API models: camelCase in JSON, unknown fields ignored (a newer CRD may have more)."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class SecretKeyRef(Model):
    """A key of a Secret in the service's namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    key: Annotated[str, Field(min_length=1, max_length=253)]


class ModelSource(Model):
    """What is served. `uri`: `hf://org/name`, `pvc://claim/path` or `file:///path` in the engine image."""

    uri: Annotated[str, Field(min_length=6, max_length=512)]
    served_name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    token_secret_ref: SecretKeyRef | None = None


class EnvVar(Model):
    """An environment variable of the engine container."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    value: Annotated[str, Field(max_length=4096)] = ""


class Engine(Model):
    """The engine container. `governed: false` runs plain vLLM: no plugin, no tuning, observed only."""

    image: Annotated[str, Field(min_length=1, max_length=512)]
    governed: bool = True
    args: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...], Field(max_length=64)] = ()
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64)] = ()


class Accelerator(Model):
    """Extended resource that one device is requested by, such as `nvidia.com/gpu`."""

    resource_name: Annotated[str, Field(min_length=3, max_length=253)]


class Parallelism(Model):
    """Devices one replica spans."""

    tensor: Annotated[int, Field(ge=1, le=64)] = 1


class Objective(Model):
    """`target` percent of requests (or gaps, for InterTokenLatency) meet `threshold`."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    metric: Metric
    threshold: Duration
    target: Percentage = "99"

    @property
    def threshold_seconds(self) -> float:
        """The threshold in seconds."""
        return float(parse_duration(self.threshold))

    @property
    def allowed_violations(self) -> float:
        """Share of requests that may violate the threshold, 0…1."""
        return float((Decimal(100) - Decimal(self.target)) / Decimal(100))


class Batching(Model):
    """Ceilings, paid for at start: live limits move below them."""

    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] = DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = DEFAULT_MAX_NUM_BATCHED_TOKENS
    prefix_caching: bool = True


class Range(Model):
    """Inclusive bounds of one limit; `min = max` pins it."""

    min: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    max: Annotated[int, Field(ge=1, le=1_048_576)] | None = None


class Bounds(Model):
    """What tuning may use; absent ends are the law's smallest values and the ceilings."""

    max_num_active_seqs: Range = Range()
    max_num_scheduled_tokens: Range = Range()


class Mode(StrEnum):
    """Disabled: run at the upper bounds. Recommend: decide, do not push. Auto: decide and push."""

    DISABLED = "Disabled"
    RECOMMEND = "Recommend"
    AUTO = "Auto"


class Tuning(Model):
    """Whether and within what the batch limits are tuned."""

    mode: Mode = Mode.AUTO
    bounds: Bounds = Bounds()


class Rollout(Model):
    """How pods are replaced. Absent surge and unavailable: see `plan.deployment`."""

    startup_timeout: Duration = "30m"
    drain_timeout: Duration = "60s"
    max_surge: Annotated[int, Field(ge=0, le=1000)] | None = None
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] | None = None


class Resources(Model):
    """Requests and limits of the engine container, as in a pod."""

    requests: dict[str, int | str] = {}
    limits: dict[str, int | str] = {}


class LocalObjectReference(Model):
    """Name of an object in the service's namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]


class PodTemplate(Model):
    """What may be added to the engine's pods: an allow-list (no host namespaces, host paths or privileges).

    Fields that are plain Kubernetes structures (`affinity`, `tolerations`) are passed through as they are.
    """

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()
    affinity: dict[str, Any] = {}
    resources: Resources = Resources()
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    priority_class_name: str | None = None
    runtime_class_name: str | None = None


class InferenceServiceSpec(Model):
    """What the user wants."""

    model: ModelSource
    engine: Engine
    accelerator: Accelerator | None = None
    parallelism: Parallelism = Parallelism()
    replicas: Annotated[int, Field(ge=0, le=10_000)] | None = None
    objectives: Annotated[tuple[Objective, ...], Field(max_length=8)] = ()
    batching: Batching = Batching()
    tuning: Tuning = Tuning()
    rollout: Rollout = Rollout()
    pod_template: PodTemplate = PodTemplate()


class ConditionType(StrEnum):
    """Conditions, in the order a reader wants them. The first four are the hands', the last three the brain's."""

    ACCEPTED = "Accepted"
    PROGRESSING = "Progressing"
    AVAILABLE = "Available"
    READY = "Ready"
    METRICS_AVAILABLE = "MetricsAvailable"
    TUNED = "Tuned"
    OBJECTIVES_MET = "ObjectivesMet"


HANDS_CONDITIONS: Final = frozenset(
    {ConditionType.ACCEPTED, ConditionType.PROGRESSING, ConditionType.AVAILABLE, ConditionType.READY}
)
BRAIN_CONDITIONS: Final = frozenset(ConditionType) - HANDS_CONDITIONS


class Condition(Model):
    """A Kubernetes condition (meta/v1). `status` is "True", "False" or "Unknown"."""

    type: ConditionType
    status: str
    reason: str
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""


class SetpointStatus(Model):
    """Live limits as decided; the intent is written here before it is pushed."""

    max_num_active_seqs: int | None = None
    max_num_scheduled_tokens: int | None = None
    long_prefill_token_threshold: int | None = None


class StepModelStatus(Model):
    """The identified step-time model, quantised; seconds as decimal strings (see `flyball_engine.model`)."""

    id: str = ""
    t0: str = "0"
    h: str = "0"
    c1: str = "0"
    c2: str = "0"
    beta: str = "0"
    g: str = "0"
    kappa: int = 1
    error: str = ""
    trusted: bool = False
    steps: int = 0


class DecisionStatus(Model):
    """One decision: what triggered it, what it changed, what it expected and what came."""

    time: str
    trigger: str
    before: SetpointStatus = SetpointStatus()
    after: SetpointStatus = SetpointStatus()
    predicted: str = ""
    observed: str = ""


class ObjectiveStatus(Model):
    """Share of requests that met an objective, in percent, over `window`; empty where nothing was counted."""

    name: str
    attained: str = ""
    budget_remaining: str = ""
    window: str = ""


class TuningStatus(Model):
    """What the brain knows and did; all a new leader needs to resume."""

    mode: Mode = Mode.AUTO
    epoch: int = 0
    generation: int = 0
    setpoint: SetpointStatus = SetpointStatus()
    applied_pods: str = ""
    model: StepModelStatus = StepModelStatus()
    binding_objective: str = ""
    recommended: SetpointStatus | None = None
    decisions: Annotated[tuple[DecisionStatus, ...], Field(max_length=5)] = ()


class InferenceServiceStatus(Model):
    """What is. Hands own everything but `objectives`, `tuning` and their conditions, which are the brain's."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    epoch: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    selector: str = ""
    url: str = ""
    revision_outdated: bool = False
    objectives: tuple[ObjectiveStatus, ...] = ()
    objectives_met: str = ""
    tuning: TuningStatus = TuningStatus()


class ObjectMeta(Model):
    """The part of an object's metadata that decisions need."""

    name: str
    namespace: str
    uid: str
    generation: int = 0
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class InferenceService(Model):
    """The whole object."""

    metadata: ObjectMeta
    spec: InferenceServiceSpec
    status: InferenceServiceStatus = InferenceServiceStatus()
