"""What the law may use and must hold, taken from an InferenceService. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from flyball_engine.contract import DEFAULT_CLASS, Classes, Limits, Metric, ObjectiveSpec, RequestClass
from flyball_operator.api import names
from flyball_operator.api.kv_transfer import KVRole
from flyball_operator.api.v1alpha1 import (
    DEADLINES,
    DEFAULT_MIN_NUM_ACTIVE_SEQS,
    DEFAULT_MIN_NUM_SCHEDULED_TOKENS,
    InferenceServiceSpec,
    Mode,
    Order,
    Overload,
    Range,
    Scaling,
    Tuning,
)
from flyball_operator.tuning.queueing import Queueing
from flyball_operator.tuning.replicas import Bounds


@dataclass(frozen=True)
class Span:
    """Inclusive range of a limit."""

    least: int
    most: int

    def clip(self, value: float) -> int:
        """The nearest whole number inside."""
        return int(min(self.most, max(self.least, round(value))))

    @property
    def pinned(self) -> Span:
        """Its largest value alone, for a limit that is not moved."""
        return Span(self.most, self.most)


@dataclass(frozen=True)
class Envelope:
    """Ranges of the live limits: `seqs` for `max_num_active_seqs`, `tokens` for `max_num_scheduled_tokens`.

    `drafts`: the most for `num_speculative_tokens`, 0 where that is not moved.
    """

    seqs: Span
    tokens: Span
    drafts: int = 0

    def upper(self) -> Limits:
        """The limits that `mode: Disabled` runs at, and that pods start with.

        The long-prefill threshold is left as the engine was started. Simulated, a quarter of C cuts the first token of
        short prompts to a third and lengthens that of long ones by a half. Objectives blind to prompt length cannot
        make that trade.
        """
        return Limits(max_num_active_seqs=self.seqs.most, max_num_scheduled_tokens=self.tokens.most)


@dataclass(frozen=True)
class LatencyObjective:
    """One objective: `seconds` is the threshold, `allowed` the share that may violate it (0…1).

    `of_class`: whose requests it is about.
    """

    name: str
    metric: Metric
    seconds: float
    allowed: float
    of_class: str = DEFAULT_CLASS

    @cached_property
    def contract(self) -> ObjectiveSpec:
        """The objective as the engine counts it."""
        return ObjectiveSpec(metric=self.metric, threshold_seconds=self.seconds, of_class=self.of_class)

    @cached_property
    def id(self) -> str:
        """The id that the engine's counters carry."""
        return self.contract.id


@dataclass(frozen=True)
class TuningSpec:
    """All that decisions need of an InferenceService's spec.

    `paused`: what the annotation that pauses tuning says, None without it. Whatever it says pauses: a wish to stop must
    not be lost through a slip of the pen. `stages` of the engine's pipeline. `refusal_status`: of HTTP. `classes` of
    requests, without deadlines. `scaling`: bounds of the replicas, None where the operator does not scale. `queueing`:
    what is asked for in every mode. `nodes`: pods of a replica that serve. `prefill_only`: whether requests end with
    their first token, and others make the rest of the answers.
    """

    mode: Mode
    envelope: Envelope
    objectives: tuple[LatencyObjective, ...]
    overload: Overload = Overload.QUEUE
    paused: str | None = None
    stages: int = 1
    order: Order = Order.ON_TIME
    refusal_status: Literal[503, 429] = 503
    classes: Classes | None = None
    scaling: Bounds | None = None
    queueing: Queueing = field(default_factory=Queueing)
    nodes: int = 1
    prefill_only: bool = False

    @property
    def live(self) -> bool:
        """Whether what the law decides is made live; else it is a shadow."""
        return self.mode is Mode.AUTO and self.paused is None

    @property
    def refuses(self) -> bool:
        """Whether requests are refused indeed: in the other modes nothing of the law's is sent."""
        return self.sheds and self.mode is Mode.AUTO

    @property
    def sheds(self) -> bool:
        """Whether requests are to be refused: asked for, and some objective says by when."""
        return self.overload is Overload.SHED and self._has_deadline

    @property
    def orders(self) -> bool:
        """Whether prompts are to be served in the on-time order: asked for, and some objective says by when."""
        return self.order is Order.ON_TIME and self._has_deadline

    @cached_property
    def _has_deadline(self) -> bool:
        return any(objective.metric in DEADLINES for objective in self.objectives)

    def names_class(self, name: str) -> bool:
        """Whether requests may be of this class."""
        return name == DEFAULT_CLASS or (self.classes is not None and name in self.classes.names)

    def classes_due(self, deadlines: Mapping[str, float]) -> Classes | None:
        """The classes, with the deadlines of those that have one."""
        if self.classes is None:
            return None
        update = "first_token_deadline_seconds"
        due = tuple(one.model_copy(update={update: deadlines.get(one.name)}) for one in self.classes.classes)
        return self.classes.model_copy(update={"classes": due})

    @cached_property
    def longest_deadline(self) -> float | None:
        """Seconds in which each class of requests is to have its first token; None where one has no such objective."""
        classes = (DEFAULT_CLASS, *(() if self.classes is None else self.classes.names))
        due = [[o.seconds for o in of_class(self.objectives, name) if o.metric in DEADLINES] for name in classes]
        return max(map(min, due)) if all(due) else None

    @cached_property
    def deadlines(self) -> str:
        """Names of the objectives that say by when a first token must be there."""
        return ", ".join(objective.name for objective in self.objectives if objective.metric in DEADLINES)


def tuning_spec(
    spec: InferenceServiceSpec,
    annotations: Mapping[str, str] | None = None,
    ceilings: tuple[int, int] | None = None,
) -> TuningSpec:
    """Read a service's spec, and its annotations where it is a living one.

    Contradictory bounds (refused by the CRD) are narrowed to the ceiling rather than believed. `ceilings`: requests and
    tokens that running engines were started with at most; None where that is not known. The spec has none for engines
    of others. Ours may have been started before an edit of it: what that lowers concerns the new pods, and they clamp.
    """
    bounds = spec.tuning.bounds
    most_seqs, most_tokens = _ceilings(spec, ceilings)
    seqs = _span(bounds.max_num_active_seqs, DEFAULT_MIN_NUM_ACTIVE_SEQS, most_seqs)
    tokens = _span(bounds.max_num_scheduled_tokens, DEFAULT_MIN_NUM_SCHEDULED_TOKENS, most_tokens)
    # Prompts alone bind an engine that makes no answers, and running requests one that computes no prompts.
    if spec.kv_role is KVRole.PRODUCER:
        seqs = seqs.pinned
    elif spec.kv_role is KVRole.CONSUMER:
        tokens = tokens.pinned
    objectives = tuple(
        LatencyObjective(o.name, o.metric, o.threshold_seconds, o.allowed_violations, o.class_name or DEFAULT_CLASS)
        for o in spec.objectives
    )
    return TuningSpec(
        spec.tuning.mode,
        Envelope(seqs, tokens, _drafts(spec)),
        objectives,
        spec.tuning.overload,
        (annotations or {}).get(names.ANNOTATION_TUNING),
        spec.parallelism.pipeline,
        spec.tuning.order,
        spec.tuning.refusal_status,
        _classes(spec.tuning),
        _bounds(spec.scaling) if spec.scaling is not None else None,
        Queueing.asked(spec.tuning),
        spec.parallelism.serving_pods,
        spec.kv_role is KVRole.PRODUCER,
    )


def _drafts(spec: InferenceServiceSpec) -> int:
    """Tokens that engines may draft for a decode; 0 where the number is not moved live.

    With data parallelism their cores must stay alike. With pipeline stages it is unknown what becomes of drafts.
    """
    speculative, parallel = spec.batching.speculative, spec.parallelism
    if speculative is None or spec.workload is not None or parallel.data > 1 or parallel.pipeline > 1:
        return 0
    return speculative.num_speculative_tokens


def _ceilings(spec: InferenceServiceSpec, started: tuple[int, int] | None) -> tuple[int, int]:
    asked = spec.batching.max_num_seqs, spec.batching.max_num_batched_tokens
    if started is None:
        return asked
    return started if spec.workload is not None else (max(asked[0], started[0]), max(asked[1], started[1]))


def of_class(objectives: Iterable[LatencyObjective], name: str) -> tuple[LatencyObjective, ...]:
    """Those of one class."""
    return tuple(objective for objective in objectives if objective.of_class == name)


def _bounds(scaling: Scaling) -> Bounds:
    return Bounds(
        least=scaling.min_replicas,
        most=scaling.max_replicas,
        up_seconds=float(scaling.scale_up.stabilization_window_seconds),
        down_seconds=float(scaling.scale_down.stabilization_window_seconds),
    )


def _classes(tuning: Tuning) -> Classes | None:
    if not tuning.classes:
        return None
    found = tuple(
        RequestClass(
            name=o.name,
            value=o.header_value,
            weight=float(o.weight),
            prefill_share=o.prefill_share / 100,
            priority=o.priority,
        )
        for o in tuning.classes
    )
    return Classes(header=tuning.class_header, classes=found)


def _span(bounds: Range, default: int, ceiling: int) -> Span:
    most = min(ceiling, bounds.max if bounds.max is not None else ceiling)
    least = min(most, bounds.min if bounds.min is not None else default)
    return Span(least, most)
