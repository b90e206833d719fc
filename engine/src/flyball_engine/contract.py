"""What the operator and the engine agree on, and nothing else.

Both sides import it: the setpoint the operator writes, the read-back the engine answers with, the names of metrics,
ports, paths and environment variables. It imports neither vLLM, torch nor Kubernetes code, so it loads in milliseconds.

Names of limits are vLLM's own flag names. Every model forbids unknown fields: a setpoint with a knob this version does
not know is refused by name (HTTP 422), never silently trimmed. `knobs` and `metric_names` are part of it, in files of
their own. How the operator starts an engine is in `launching`.
"""

from __future__ import annotations

import hashlib
import math
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from flyball_engine.adapters import AdapterReport
from flyball_engine.classes import CLASS_HEADER as CLASS_HEADER
from flyball_engine.classes import DEFAULT_CLASS as DEFAULT_CLASS
from flyball_engine.classes import DEFAULT_CLASS_LABEL as DEFAULT_CLASS_LABEL
from flyball_engine.classes import LARGEST_PRIORITY as LARGEST_PRIORITY
from flyball_engine.classes import LEAST_PRIORITY as LEAST_PRIORITY
from flyball_engine.classes import MOST_CLASSES as MOST_CLASSES
from flyball_engine.classes import MOST_KEPT as MOST_KEPT
from flyball_engine.classes import Classes as Classes
from flyball_engine.classes import ClassName as ClassName
from flyball_engine.classes import RequestClass as RequestClass
from flyball_engine.knobs import KNOBS as KNOBS
from flyball_engine.knobs import LARGEST_COEFFICIENT as LARGEST_COEFFICIENT
from flyball_engine.knobs import LARGEST_LIMIT as LARGEST_LIMIT
from flyball_engine.knobs import MOST_DRAFTS as MOST_DRAFTS
from flyball_engine.knobs import AnyKnob as AnyKnob
from flyball_engine.knobs import Batching as Batching
from flyball_engine.knobs import BatchingKnob as BatchingKnob
from flyball_engine.knobs import Clamp as Clamp
from flyball_engine.knobs import ClampReason as ClampReason
from flyball_engine.knobs import Count as Count
from flyball_engine.knobs import Frozen as Frozen
from flyball_engine.knobs import Knob as Knob
from flyball_engine.knobs import Limits as Limits
from flyball_engine.knobs import ModelSpec as ModelSpec
from flyball_engine.knobs import OnTime as OnTime
from flyball_engine.knobs import OrderKnob as OrderKnob
from flyball_engine.knobs import Positive as Positive
from flyball_engine.knobs import QueueKnob as QueueKnob
from flyball_engine.knobs import QueueLimits as QueueLimits
from flyball_engine.knobs import SchedulingPolicy as SchedulingPolicy
from flyball_engine.knobs import Shed as Shed
from flyball_engine.knobs import ShedKnob as ShedKnob
from flyball_engine.knobs import StepBudget as StepBudget
from flyball_engine.knobs import StrategyType as StrategyType
from flyball_engine.metric_names import STEP_FIELDS as STEP_FIELDS
from flyball_engine.metric_names import MetricName as MetricName

#: Version of the HTTP contract; it is the first path segment of every control route.
CONTRACT_VERSION: Final = "v1"
SETPOINT_PATH: Final = f"/{CONTRACT_VERSION}/setpoint"
METRICS_PATH: Final = "/metrics"
HEALTH_PATH: Final = "/health"
#: Header of a readiness probe at the engine's `HEALTH_PATH`: its plugin then answers 503 until the engine is warm.
READY_HEADER: Final = "x-flyball-ready"
#: Marks a write that only asks whether its key is accepted. Nothing is applied, whatever its body, and nothing counted.
TRIAL_HEADER: Final = "x-flyball-key-trial"
#: Marks a read that needs no steps, which are nine tenths of an answer. An older plugin sends them all the same.
NO_STEPS_HEADER: Final = "x-flyball-no-steps"
#: Seconds that an engine waits for a setpoint before it is Ready without one. A leader writes within some 10 s of the
#: control port's start; one that takes over a dead leader's Lease needs 20 s more. Without any operator, each start
#: takes so much longer.
SETPOINT_WAIT_SECONDS: Final = 30.0
#: The watchdog's patience where a connector moves KV caches: an engine that waits for others is no hang.
LONGEST_PATIENCE_SECONDS: Final = 60.0

#: The OpenAI API of the engine (vLLM's own default) and the control port beside it.
API_PORT: Final = 8000
CONTROL_PORT: Final = 8001

#: Algorithm and audience rules of the write token: an EdDSA JWT over the body's digest.
TOKEN_ALGORITHM: Final = "EdDSA"
TOKEN_LIFETIME_SECONDS: Final = 30.0
#: Public keys accepted at a time: the present one and the next.
MOST_PUBLIC_KEYS: Final = 2
#: Clocks of operator and node may differ by this much before a token is refused.
TOKEN_LEEWAY_SECONDS: Final = 30.0
#: Largest setpoint body accepted, in bytes; a setpoint is under 4 KiB.
MAX_BODY_BYTES: Final = 64 * 1024


class Env(StrEnum):
    """Environment variables that the operator sets on the engine container and the engine reads."""

    SERVICE_UID = "FLYBALL_SERVICE_UID"
    """UID of the InferenceService; the audience of write tokens."""
    PUBLIC_KEY = "FLYBALL_PUBLIC_KEY"
    """PEM of the Ed25519 public key that write tokens are verified with."""
    PUBLIC_KEYS_FILE = "FLYBALL_PUBLIC_KEYS_FILE"
    """File of `MOST_PUBLIC_KEYS` PEM keys at most. While it exists they count in place of `PUBLIC_KEY`."""
    CONTROL_PORT = "FLYBALL_CONTROL_PORT"
    """Port of the control server; default `CONTROL_PORT`."""
    STATE_DIR = "FLYBALL_STATE_DIR"
    """Folder of the shared-memory files between engine core and API server; default a fresh one under /dev/shm."""
    ADAPTERS_FILE = "FLYBALL_ADAPTERS_FILE"
    """File of the LoRA adapters to load, as `adapters.AdapterList`; unset where the service has none."""
    TERMINATION_LOG = "FLYBALL_TERMINATION_LOG"
    """Where the launcher writes why it refused to start; default /dev/termination-log."""


class Metric(StrEnum):
    """What an objective is measured on; spelled as in the InferenceService."""

    TIME_TO_FIRST_TOKEN = "TimeToFirstToken"
    TIME_PER_OUTPUT_TOKEN = "TimePerOutputToken"
    INTER_TOKEN_LATENCY = "InterTokenLatency"
    END_TO_END_LATENCY = "EndToEndLatency"


class ObjectiveSpec(Frozen):
    """One latency objective as the engine counts it: a metric and a threshold, in seconds.

    The share that must meet it (the target) is the operator's business; the engine only counts met and violated.
    `of_class`: whose requests are counted; empty are those that name no class, or an unknown one.
    """

    metric: Metric
    threshold_seconds: Annotated[float, Field(gt=0, le=86_400)]
    of_class: ClassName | Literal[""] = DEFAULT_CLASS

    @property
    def id(self) -> str:
        """Identity made of metric, threshold and class: counts of an edited objective never mix with the old ones."""
        of_class = f"@{self.of_class}" if self.of_class else ""
        return f"{self.metric.value}/{self.threshold_seconds:g}{of_class}"


class Generation(Frozen):
    """Who wrote a setpoint and in which order: compared by epoch (the leader), then by number."""

    epoch: Count
    generation: Count

    def order(self) -> tuple[int, int]:
        """Key that orders setpoints: a newer leader beats any number of an older one."""
        return (self.epoch, self.generation)


class Setpoint(Frozen):
    """What an engine shall do from now on. Whole: a setpoint replaces the one before it.

    `service`: UID of the InferenceService; another one is refused.
    `epoch`, `generation`: see `Generation`; an older pair is refused, the same pair with another body too.
    `limits`: live limits; those absent return to the engine's start values.
    `step`: the time a step may take, within the limits; absent, the limits alone hold.
    `shed`: the deadline that requests are refused by; absent, or with a step model that is not trusted, all are queued.
    `on_time`: the order in which prompts are served; absent, or with a step model that is not trusted, it is the
    engine's own. A strategy, a delay, `no_evict` and the priority policy choose who is next themselves: refused beside
    it.
    `objectives`: what each request is counted against; empty counts nothing.
    `classes`: the classes of requests, and how they are named; absent, all are of the default class.
    `expires_seconds`: an engine that hears nothing for so long returns to its start values.
    `batching`: how requests are admitted from the queue. `queue`: what vLLM itself refuses.
    """

    service: Annotated[str, Field(min_length=1, max_length=64)]
    epoch: Count
    generation: Count
    limits: Limits = Limits()
    step: StepBudget | None = None
    shed: Shed | None = None
    on_time: OnTime | None = None
    objectives: Annotated[tuple[ObjectiveSpec, ...], Field(max_length=8, strict=False)] = ()
    classes: Classes | None = None
    expires_seconds: Annotated[float, Field(ge=60, le=7 * 86_400)] = 4 * 3_600.0
    batching: Batching = Batching()
    queue: QueueLimits = QueueLimits()

    @model_validator(mode="after")
    def _objectives_are_distinct(self) -> Setpoint:
        ids = [objective.id for objective in self.objectives]
        if len(set(ids)) != len(ids):
            raise ValueError(
                f"objectives: each metric and threshold may appear once for each class, got {', '.join(ids)}"
            )
        return self

    @model_validator(mode="after")
    def _classes_are_there(self) -> Setpoint:
        names = () if self.classes is None else self.classes.names
        for objective in self.objectives:
            if objective.of_class not in (DEFAULT_CLASS, *names):
                accepted = ", ".join(names) or "none, since there are no classes"
                raise ValueError(f"objectives.of_class: {objective.of_class!r} is no class, accepted: {accepted}")
        return self

    @model_validator(mode="after")
    def _somebody_has_a_deadline(self) -> Setpoint:
        found = () if self.classes is None else self.classes.classes
        if any(one.first_token_deadline_seconds is not None for one in found):
            return self
        shed, on_time = self.shed, self.on_time
        if shed is not None and shed.ttft_deadline_seconds is None:
            raise ValueError("shed.ttft_deadline_seconds: required where no class has a deadline")
        if on_time is not None and on_time.first_token_deadline_seconds is None:
            raise ValueError("on_time.first_token_deadline_seconds: required where no class has a deadline")
        return self

    @property
    def refusal_deadlines(self) -> dict[str, float]:
        """Seconds in which each class, the default one too, must have a first token; infinite where none is refused."""
        names = (DEFAULT_CLASS, *(() if self.classes is None else self.classes.names))
        found = {name: self.refused_after(name) for name in names}
        return {name: math.inf if seconds is None else seconds for name, seconds in found.items()}

    def refused_after(self, of_class: str) -> float | None:
        """Seconds in which a class must have its first token, or it is refused; None if it never is."""
        if self.shed is None:
            return None
        found = None if self.classes is None else self.classes.named(of_class)
        deadline = self.shed.ttft_deadline_seconds if found is None else found.first_token_deadline_seconds
        return None if deadline is None else self.shed.margin * deadline

    @model_validator(mode="after")
    def _the_order_is_asked_for_once(self) -> Setpoint:
        if self.on_time is not None and (other := self.batching.chooses()) is not None:
            raise ValueError(f"on_time: accepted beside it: requests admitted one by one as they come, got {other}")
        return self

    def order(self) -> tuple[int, int]:
        """Key that orders setpoints of one service."""
        return (self.epoch, self.generation)

    def asks(self) -> tuple[AnyKnob, ...]:
        """Every knob it moves away from what the engine started with."""
        order = {OrderKnob.ON_TIME: self.on_time, OrderKnob.CLASSES: self.classes}
        ordered = tuple(knob for knob, asked in order.items() if asked is not None)
        return (*self.limits.given(), *self.batching.given(), *self.queue.given(), *ordered)


class Ceilings(Frozen):
    """Start-up sizes no live limit may exceed: vLLM's `max_num_seqs`, `max_num_batched_tokens`, `max_model_len`."""

    max_num_seqs: Positive
    max_num_batched_tokens: Positive
    max_model_len: Positive


#: A prefill gets at least this many tokens a step: fewer cost more in steps than they spare in step time.
LEAST_CHUNK: Final = 16


class StepKind(StrEnum):
    """Whether a step processed decodes only, or prefill tokens too."""

    DECODE = "decode"
    MIXED = "mixed"


#: Upper edges of the scheduled-token buckets: 1, 2, 4 … 2**20. A step of `k` tokens falls into the first edge >= k.
TOKEN_BUCKETS: Final[tuple[int, ...]] = tuple(2**exponent for exponent in range(21))


class StepSums(Frozen):
    """Cumulative sums over the steps of one bucket and kind: sufficient statistics of the step-time model.

    Sums of numbers per step: `steps` (1), `seconds` (T, of one stage of a pipeline), `seconds_squared` (T²), `tokens`
    (scheduled tokens, tok), `prefill_tokens` (p), `decodes` (running decodes, n), `kv_tokens` (those of KV that
    decodes read), `prefill_attention` (sum over the step's prefills of p·(L + p/2), L = context before the chunk).
    Differences of two readings are exact means over that window and may be added over pods.
    """

    bucket: Positive
    kind: StepKind
    steps: Count
    seconds: Annotated[float, Field(ge=0)]
    seconds_squared: Annotated[float, Field(ge=0)]
    tokens: Count
    prefill_tokens: Count
    decodes: Count
    kv_tokens: Count
    prefill_attention: Annotated[float, Field(ge=0)]


class OrderCounts(Frozen):
    """What came of the on-time order in one engine core.

    `moved_behind`: requests that were given up as late once, cumulative. `in_time_after_all`: those of them whose first
    token came by its deadline. `behind`: requests that are served behind now. `longest_wait_seconds`: how long the
    oldest of those has waited, 0 where there is none.
    """

    moved_behind: Count = 0
    in_time_after_all: Count = 0
    behind: Count = 0
    longest_wait_seconds: Annotated[float, Field(ge=0)] = 0.0


class CoreState(Frozen):
    """What one engine core reports: what it applies, how large it is, what it does.

    `applied` is checked in the core; None until the first setpoint and after an expiry. `effective` has every knob the
    core supports. `kv_cache_usage` is a fraction 0…1. `watchdog_trips` counts returns to start values because requests
    stood still. `longest_step_seconds` is the longest step since the setpoint before the present one was applied: the
    step that the present one had to wait for is among them. `local_bias` is what steps take over what the setpoint's
    model says, None before a model came. `tokens_per_decode` is 1 + speculative tokens, `pipeline_depth` the steps in
    flight at once. `strategy` and `policy` are those in force: the engine's own after the watchdog tripped or
    the setpoint expired. `order`: what came of the on-time order.
    """

    engine: Count
    applied: Generation | None
    effective: Limits
    start: Limits
    clamped: tuple[Clamp, ...] = ()
    ceilings: Ceilings
    running: Count
    waiting: Count
    kv_cache_usage: Annotated[float, Field(ge=0)]
    kv_cache_tokens: Count
    watchdog_trips: Count
    longest_step_seconds: Annotated[float, Field(ge=0)]
    local_bias: Annotated[float, Field(gt=0)] | None = None
    tokens_per_decode: Positive = 1
    pipeline_depth: Positive = 1
    steps: tuple[StepSums, ...] = ()
    strategy: StrategyType = StrategyType.CONTINUOUS
    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    order: OrderCounts = OrderCounts()


class ReadBack(Frozen):
    """Answer of `GET` and `PUT` on the control port.

    `accepted` is the setpoint the API server holds; `cores` what each engine core confirms. A core that did not answer
    in time is named in `unknown`: the call may still land. `unsupported` says of each knob this engine cannot move why.
    `ungated` says why requests cannot be refused by a deadline, None if they can. A plugin without it cannot refuse.
    `queue`: the limits of vLLM's queue in force, which the API server holds; None where there are none.
    `adapters`: what became of the LoRA adapters of the pod's list; None where the engine follows no list.
    `adapters_listed`: whether that list is there.
    """

    service: str
    plugin_version: str
    engine_version: str
    governed: bool
    accepted: Setpoint | None
    cores: tuple[CoreState, ...]
    unknown: tuple[int, ...] = ()
    unsupported: dict[AnyKnob, str] = Field(default_factory=dict)
    ungated: str | None = "the plugin does not say that it can"
    queue: QueueLimits | None = None
    adapters: tuple[AdapterReport, ...] | None = None
    adapters_listed: bool = True

    @field_validator("unsupported", mode="before")
    @classmethod
    def _knobs_of_a_later_plugin_are_passed_over(cls, given: Any) -> Any:
        return {knob: why for knob, why in given.items() if knob in KNOBS} if isinstance(given, dict) else given

    def without_steps(self) -> ReadBack:
        """The same, with no core's steps."""
        return self.model_copy(update={"cores": tuple(core.model_copy(update={"steps": ()}) for core in self.cores)})

    def confirmed(self, generation: Generation) -> bool:
        """True if every core applies exactly this generation."""
        return bool(self.cores) and not self.unknown and all(core.applied == generation for core in self.cores)


class Refusal(StrEnum):
    """Why a write was refused; the reason in the error body and the label of the retunes counter."""

    BAD_TOKEN = "BadToken"
    """401: signature, audience, expiry or digest of the token is wrong."""
    TOO_LARGE = "TooLarge"
    """413: the body is over `MAX_BODY_BYTES`."""
    INVALID = "Invalid"
    """422: the body is no setpoint; the message names the field and the accepted values."""
    OTHER_SERVICE = "OtherService"
    """409: the setpoint is for another InferenceService (a re-created one, or a recycled pod IP)."""
    STALE_EPOCH = "StaleEpoch"
    """409: a newer leader has written here."""
    STALE_GENERATION = "StaleGeneration"
    """409: this leader has written a newer generation."""
    CONFLICT = "Conflict"
    """409: the same epoch and generation with another body."""
    UNSUPPORTED = "Unsupported"
    """422: the engine cannot move this knob."""
    UNKNOWN = "Unknown"
    """504: the cores did not answer in time; the call may still land. Read back before writing again."""


class ErrorBody(Frozen):
    """JSON body of every refused control request."""

    error: Refusal
    message: str
    applied: Generation | None = None


class Claims(Frozen):
    """Claims of a write token. `digest` is `body_digest` of the request body; `aud` the UID of the service."""

    iss: Literal["flyball"] = "flyball"
    aud: str
    iat: int
    exp: int
    digest: str


def body_digest(body: bytes) -> str:
    """SHA-256 of a request body in hex: what the token signs."""
    return hashlib.sha256(body).hexdigest()
