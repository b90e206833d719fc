"""What of an engine's batching can be moved live: limits, a step's time, which requests are let in, and how.

Part of the contract, which exports all of it; a file of its own only for its length. Names of limits are vLLM's own
flag names. Every model forbids unknown fields.
"""

from __future__ import annotations

import itertools
from dataclasses import fields
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flyball_engine.model import StepModel

#: The longest a request may be kept back so that others can join it, in seconds.
LONGEST_DELAY_SECONDS: Final = 60.0


class Frozen(BaseModel):
    """Base of every contract model: immutable, unknown fields refused, no coercion between JSON types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Count = Annotated[int, Field(ge=0, le=2**53)]
#: Positions of drafts that are counted.
MOST_DRAFTS: Final = 16
#: Of sequences and of tokens.
LARGEST_LIMIT: Final = 2**31 - 1
Positive = Annotated[int, Field(ge=1, le=LARGEST_LIMIT)]
#: Of the step-time model, in seconds.
LARGEST_COEFFICIENT: Final = 60
Coefficient = Annotated[float, Field(ge=0, le=LARGEST_COEFFICIENT)]
NotNegative = Annotated[int, Field(ge=0, le=LARGEST_LIMIT)]
Delay = Annotated[float, Field(ge=0, le=LONGEST_DELAY_SECONDS)]


class Knob(StrEnum):
    """A limit that can be moved live. Values are vLLM's flag names in snake case."""

    MAX_NUM_ACTIVE_SEQS = "max_num_active_seqs"
    MAX_NUM_SCHEDULED_TOKENS = "max_num_scheduled_tokens"
    LONG_PREFILL_TOKEN_THRESHOLD = "long_prefill_token_threshold"
    NUM_SPECULATIVE_TOKENS = "num_speculative_tokens"


class Limits(Frozen):
    """Live batch limits; an absent one has its start value.

    `max_num_active_seqs`: requests that may run at once (admission stops at it; running ones drain).
    `max_num_scheduled_tokens`: tokens one step may process.
    `long_prefill_token_threshold`: tokens of one prompt that one step may process; 0 is no cap.
    `num_speculative_tokens`: draft tokens per request and step at most; 0 drafts nothing. While it is less than the
    start value, every 5 s one step drafts as many as that, so that it stays known how many are accepted.
    """

    max_num_active_seqs: Positive | None = None
    max_num_scheduled_tokens: Positive | None = None
    long_prefill_token_threshold: NotNegative | None = None
    num_speculative_tokens: NotNegative | None = None

    def given(self) -> dict[Knob, int]:
        """The limits that are set, by knob."""
        return {Knob(name): value for name, value in self if value is not None}


class ClampReason(StrEnum):
    """Why a limit has another value than was asked for; the `reason` of a `Clamp`."""

    CEILING = "ceiling"
    """Above the engine's start-up size."""
    FLOOR = "floor"
    """Below what the active requests, or the longest part that cannot be split, need in any step."""
    DECODES = "decodes"
    """Below what this step's running requests need; follows them down as they finish."""
    WATCHDOG = "watchdog"
    """Requests stood still under the setpoint; start values hold until a newer one."""
    SCHEDULE = "schedule"
    """Not among the speculative depths the engine was started with; the next lower one holds, or else the lowest."""


class Clamp(Frozen):
    """A limit that took another value than asked, and why: a `ClampReason`, or a later engine's."""

    knob: Knob
    requested: int
    effective: int
    reason: Annotated[str, Field(max_length=256)]


class ModelSpec(Frozen):
    """The step-time model as a setpoint carries it: the coefficients of `flyball_engine.model.StepModel`, in seconds.

    `id` names the fit, for people. A model that is not `trusted` is compared with what steps take, and bounds nothing.
    `d` is younger than the others: a setpoint without it has none.
    """

    id: Annotated[str, Field(min_length=1, max_length=64)]
    trusted: bool
    t0: Coefficient
    h: Coefficient
    c1: Coefficient
    c2: Coefficient
    beta: Coefficient
    g: Coefficient
    kappa: Positive
    d: Coefficient = 0.0

    def step_model(self) -> StepModel:
        """The model that the coefficients are of."""
        return StepModel(**{field.name: getattr(self, field.name) for field in fields(StepModel)})


class StepBudget(Frozen):
    """The time a step may take; the engine gives each step the tokens that fit into it.

    `seconds`: the budget. `model`: what predicts a step's time; predictions are multiplied by the engine's local bias.
    `least_prefill_chunk`: tokens a prompt gets in a step even where none fit, so that it advances.
    """

    seconds: Annotated[float, Field(gt=0, le=60)]
    model: ModelSpec
    least_prefill_chunk: Annotated[int, Field(ge=1, le=2**20)] = 16


class Shed(Frozen):
    """Refuse requests that would be late, with `Retry-After`.

    At arrival, and while nothing of the answer was sent: those whose first token would come after `margin` of the
    deadline even if they were served alone from then on.
    Without a deadline only classes of requests have one.
    `refusal_status`: the HTTP status of a refusal. Service meshes retry a 503 on another pod and, where they detect
    outliers, take a pod that answers several of them out of rotation. They do neither with a 429, which also tells
    clients that they themselves asked for too much.
    """

    ttft_deadline_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    margin: Annotated[float, Field(gt=0, le=1)] = 0.85
    refusal_status: Literal[503, 429] = 503


class OnTime(Frozen):
    """Serve prompts in the order of the on-time set, see `flyball_engine.batching.on_time`.

    `first_token_deadline_seconds`: from a request's arrival to its first token. `margin`: share of it that is planned
    with. `late_share`: of the prefill tokens, for the oldest of the requests that are served behind, once it has waited
    for a minute; with 0 they may starve. Without a deadline only classes of requests have one.
    """

    first_token_deadline_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    margin: Annotated[float, Field(gt=0, le=1)] = 0.9
    late_share: Annotated[float, Field(ge=0, le=0.5)] = 0.05


class StrategyType(StrEnum):
    """How requests are taken from the queue; the `type` of a strategy."""

    CONTINUOUS = "Continuous"
    STATIC = "Static"
    DYNAMIC = "Dynamic"
    BUCKETED = "Bucketed"


class Continuous(Frozen):
    """vLLM's own: a request joins the running ones as soon as there is room."""

    type: Literal["Continuous"] = "Continuous"


class Static(Frozen):
    """A batch runs to its last request before the next is admitted.

    `batch_size`: requests in a batch at most; a batch begins with what waits, be it fewer.
    """

    type: Literal["Static"] = "Static"
    batch_size: Positive


class Dynamic(Frozen):
    """Like `Static`, but a batch begins only when one of three things is true, whichever comes first.

    `batch_size`: so many wait; also the most in a batch. `max_delay_seconds`: the oldest has waited so long.
    `max_batch_tokens`: the prompts that wait have so many tokens; also the most of a batch, unless one prompt alone has
    more.
    """

    type: Literal["Dynamic"] = "Dynamic"
    batch_size: Positive
    max_delay_seconds: Delay
    max_batch_tokens: Positive | None = None


class Bucketed(Frozen):
    """Like `Static`, with batches of like prompt lengths; the request that has waited longest is always in the next.

    `batch_size`: requests in a batch at most. `boundaries`: prompt tokens up to which a prompt belongs to each bucket,
    rising; what is longer than the last has a bucket of its own. `sorted`: instead, the waiting prompts are sorted by
    length and cut into batches.
    """

    type: Literal["Bucketed"] = "Bucketed"
    batch_size: Positive
    boundaries: Annotated[tuple[Positive, ...], Field(max_length=64, strict=False)] = ()
    sorted: bool = False

    @model_validator(mode="after")
    def _one_kind_of_likeness(self) -> Bucketed:
        if bool(self.boundaries) == self.sorted:
            raise ValueError("accepted: either boundaries (prompt tokens, rising) or sorted = true")
        if any(following <= edge for edge, following in itertools.pairwise(self.boundaries)):
            raise ValueError(f"boundaries: each must be above the one before, got {list(self.boundaries)}")
        return self


#: Strategies that run a batch to its last request.
Batched = Static | Dynamic | Bucketed
Strategy = Annotated[Continuous | Batched, Field(discriminator="type")]


class NoEvict(Frozen):
    """Admit only what fits into the KV cache to its expected end, so that nothing has to be preempted for memory.

    `quantile`: a request that names no `max_tokens` is expected to end like this share of the recent ones that named
    none; before any has ended it is expected to fill the model's length. 1 is the longest of them.
    """

    quantile: Annotated[float, Field(gt=0, le=1)] = 0.95


class SchedulingPolicy(StrEnum):
    """In which order the queue is served: by arrival, or by priority and then arrival. vLLM's `--scheduling-policy`."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class BatchingKnob(StrEnum):
    """A part of `Batching` that an engine may lack; values are paths in a setpoint, for a strategy with its type."""

    CONTINUOUS = "batching.strategy.Continuous"
    STATIC = "batching.strategy.Static"
    DYNAMIC = "batching.strategy.Dynamic"
    BUCKETED = "batching.strategy.Bucketed"
    ADMISSION_DELAY_SECONDS = "batching.admission_delay_seconds"
    NO_EVICT = "batching.no_evict"
    MAX_CONCURRENT_PREFILLS = "batching.max_concurrent_prefills"
    POLICY = "batching.policy"


class QueueKnob(StrEnum):
    """A limit of vLLM's own on its queue, which a version may lack; values are paths in a setpoint."""

    MAX_NUM_QUEUED_REQS = "queue.max_num_queued_reqs"
    MAX_NUM_QUEUED_TOKENS = "queue.max_num_queued_tokens"


class OrderKnob(StrEnum):
    """The order of prompts, which an engine may be unable to change; values are paths in a setpoint."""

    ON_TIME = "on_time"
    CLASSES = "classes"


class ShedKnob(StrEnum):
    """A part of `Shed` that an engine may lack; values are paths in a setpoint."""

    WAITING = "shed.waiting"
    """Refusing what was let in and became late. Without it only what is hopeless at arrival is refused."""
    ROUTES = "shed.routes"
    """Refusing on every route that generates. Requests to the routes that are named are let in."""


class QueueLimits(Frozen):
    """What may be unfinished before vLLM itself refuses (503), deadline or not; an absent one has its start value.

    A last limit behind `Shed`: vLLM knows neither the length of the prompt that comes nor how far the others are.
    `max_num_queued_reqs`: requests that wait or run; one of `n` sequences counts as `n`.
    `max_num_queued_tokens`: tokens of prompts that are not processed to their end; the last one let in may pass it.
    As in vLLM, 0 refuses every request.
    """

    max_num_queued_reqs: NotNegative | None = None
    max_num_queued_tokens: NotNegative | None = None

    def given(self) -> tuple[QueueKnob, ...]:
        """The limits that are set."""
        return tuple(QueueKnob(f"queue.{name}") for name, value in self if value is not None)


AnyKnob = Knob | BatchingKnob | QueueKnob | OrderKnob | ShedKnob
#: The values of all of them: a knob is the text of its path.
KNOBS: Final[frozenset[str]] = frozenset((*Knob, *BatchingKnob, *QueueKnob, *OrderKnob, *ShedKnob))


class Batching(Frozen):
    """How requests are admitted from the queue; everything absent is the engine's own way.

    `strategy`: absent, vLLM's is `Continuous`, that of an engine without it the one it was started with.
    `admission_delay_seconds`: a request is kept back until the oldest that is kept back has waited so long, or as many
    wait as may start; then all of them may join together. Dynamic has a delay of its own.
    `no_evict`: see `NoEvict`; absent admits what fits now.
    `max_concurrent_prefills`: running requests whose prompt is being processed, at most; absent is no limit.
    `policy`: the order of the queue; absent is the engine's start policy.
    """

    strategy: Strategy | None = None
    admission_delay_seconds: Delay = 0.0
    no_evict: NoEvict | None = None
    max_concurrent_prefills: Positive | None = None
    policy: SchedulingPolicy | None = None

    @model_validator(mode="after")
    def _one_delay(self) -> Batching:
        if self.admission_delay_seconds and isinstance(self.strategy, Dynamic):
            raise ValueError("admission_delay_seconds: accepted beside Dynamic: 0; strategy.max_delay_seconds says it")
        return self

    @property
    def holds_back(self) -> bool:
        """Whether requests may wait beside free slots; else they come in order, bounded by number alone."""
        return isinstance(self.strategy, Batched) or self.admission_delay_seconds > 0 or self.no_evict is not None

    def chooses(self) -> BatchingKnob | None:
        """The part by which it chooses who is admitted next, rather than how many; None if it has none."""
        chosen = {
            BatchingKnob.ADMISSION_DELAY_SECONDS: self.admission_delay_seconds > 0,
            BatchingKnob.NO_EVICT: self.no_evict is not None,
            BatchingKnob.POLICY: self.policy is SchedulingPolicy.PRIORITY,
        }
        if isinstance(self.strategy, Batched):
            return BatchingKnob(f"batching.strategy.{self.strategy.type}")
        return next((knob for knob, is_chosen in chosen.items() if is_chosen), None)

    def given(self) -> tuple[BatchingKnob, ...]:
        """The parts that ask for something else than the engine's own way."""
        asked = {
            BatchingKnob.ADMISSION_DELAY_SECONDS: self.admission_delay_seconds > 0,
            BatchingKnob.NO_EVICT: self.no_evict is not None,
            BatchingKnob.MAX_CONCURRENT_PREFILLS: self.max_concurrent_prefills is not None,
            BatchingKnob.POLICY: self.policy is not None,
        }
        strategy = self.strategy
        first = () if strategy is None else (BatchingKnob(f"batching.strategy.{strategy.type}"),)
        return first + tuple(knob for knob, is_asked in asked.items() if is_asked)


def knob_named(name: str) -> AnyKnob:
    """The knob of this value; raises ValueError if there is none."""
    for kind in (Knob, BatchingKnob, OrderKnob, ShedKnob):
        if name in set(kind):
            return kind(name)
    return QueueKnob(name)
