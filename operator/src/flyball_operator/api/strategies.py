"""What a user states about the queue of running engines: `spec.tuning.batching` and `spec.tuning.queue`.

Both are sent to engines that run, so a change rolls no pod. Every check stands in the CRD and here, in the same words.
Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from flyball_engine.contract import LARGEST_LIMIT, StrategyType
from flyball_operator.api.base import Check, Model
from flyball_operator.api.quantities import DurationBetween, ShareUpTo1
from flyball_operator.api.rules import Rule

#: Most buckets of prompt lengths, as engines accept them.
_MOST_BOUNDARIES: Final = 64
#: The largest number of requests at once.
LARGEST_BATCH: Final = 65_536

Requests = Annotated[int, Field(ge=1, le=LARGEST_BATCH)]
Amount = Annotated[int, Field(ge=1, le=LARGEST_LIMIT)]


class QueuePolicy(StrEnum):
    """FCFS: who came first. Priority: by the requests' `priority`, the smallest first, then by arrival."""

    FCFS = "FCFS"
    PRIORITY = "Priority"


def _only_of(kind: StrategyType, field: str, holds: Callable[[Strategy], bool]) -> Check:
    """A field that no other type has."""
    rule = Rule(
        f"self.type == '{kind.value}' || !has(self.{field})", f"is accepted beside type {kind.value} alone", f".{field}"
    )
    return Check(rule, lambda strategy: strategy.type is kind or holds(strategy))


class Strategy(Model):
    """How requests are taken from the queue."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "self.type == 'Continuous' || has(self.batchSize)",
                "is required beside type Static, Dynamic and Bucketed: the most requests of a batch",
                ".batchSize",
            ),
            lambda strategy: strategy.type is StrategyType.CONTINUOUS or strategy.batch_size is not None,
        ),
        Check(
            Rule(
                "self.type != 'Continuous' || !has(self.batchSize)",
                "is accepted beside type Static, Dynamic and Bucketed alone: Continuous has no batches",
                ".batchSize",
            ),
            lambda strategy: strategy.type is not StrategyType.CONTINUOUS or strategy.batch_size is None,
        ),
        Check(
            Rule(
                "self.type != 'Dynamic' || has(self.maxDelay)",
                "is required beside type Dynamic: the longest wait for a full batch, such as 50ms",
                ".maxDelay",
            ),
            lambda strategy: strategy.type is not StrategyType.DYNAMIC or strategy.max_delay is not None,
        ),
        _only_of(StrategyType.DYNAMIC, "maxDelay", lambda strategy: strategy.max_delay is None),
        _only_of(StrategyType.DYNAMIC, "maxBatchTokens", lambda strategy: strategy.max_batch_tokens is None),
        _only_of(StrategyType.BUCKETED, "boundaries", lambda strategy: strategy.boundaries is None),
        _only_of(StrategyType.BUCKETED, "sorted", lambda strategy: strategy.sorted is None),
        Check(
            Rule(
                "self.type != 'Bucketed' || has(self.boundaries) != (has(self.sorted) && self.sorted)",
                "Bucketed needs one of boundaries (prompt tokens, rising) and sorted: true",
            ),
            lambda strategy: (
                strategy.type is not StrategyType.BUCKETED
                or (strategy.boundaries is not None) != (strategy.sorted is True)
            ),
        ),
        Check(
            Rule(
                "!has(self.boundaries) || self.boundaries.isSorted()"
                " && self.boundaries.all(a, self.boundaries.exists_one(b, a == b))",
                "must rise: each above the one before, such as [128, 512, 2048]",
                ".boundaries",
            ),
            lambda strategy: all(a < b for a, b in itertools.pairwise(strategy.boundaries or ())),
        ),
    )

    type: StrategyType
    """Continuous: a request joins as soon as there is room, as in vLLM. Static: a batch runs to its last request.
    Dynamic: a static batch that starts when full, or when its oldest request waited for `maxDelay`. Bucketed: static
    batches of like prompt lengths."""
    batch_size: Requests | None = None
    """Most requests in a batch; the limit of requests that run at once holds, too. Required but for Continuous."""
    max_delay: Annotated[str, Field(max_length=20), DurationBetween("0s", "60s")] | None = None
    """Dynamic: longest wait of the oldest request for others, such as 50ms; 0s to 60s."""
    max_batch_tokens: Amount | None = None
    """Dynamic: most prompt tokens in a batch, unless one prompt has more. Default: no limit."""
    boundaries: (
        Annotated[
            tuple[Amount, ...],
            Field(min_length=1, max_length=_MOST_BOUNDARIES, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
        ]
        | None
    ) = None
    """Bucketed: upper edges of the buckets in prompt tokens, rising; longer prompts have a bucket of their own."""
    sorted: bool | None = None
    """Bucketed, in place of boundaries: true sorts what waits by prompt length and cuts batches of it."""

    @property
    def batches(self) -> bool:
        """Whether a batch runs to its end before the next begins."""
        return self.type is not StrategyType.CONTINUOUS


class NoEvict(Model):
    """Admit only what fits into the KV cache to its expected end, so that nothing is preempted for memory."""

    quantile: Annotated[str, Field(max_length=20), ShareUpTo1()] = "0.95"
    """A request without max_tokens is expected to be as long as this share of the last 256 answers without it. Above 0,
    at most 1, as a string. A lower one fills the cache more, and sometimes preempts. Default: 0.95."""


#: CEL: whether a batching chooses who is next, rather than how many. As `contract.Batching.chooses`.
_CHOOSES: Final = (
    "has({0}.strategy) && {0}.strategy.type != 'Continuous' || has({0}.admissionDelay) || has({0}.noEvict)"
    " || has({0}.policy) && {0}.policy == 'Priority'"
)


def chooses(batching: str) -> str:
    """CEL: whether this batching chooses who is admitted next."""
    return _CHOOSES.format(batching)


class LiveBatching(Model):
    """How running engines admit requests; the ceilings are in `spec.batching`. Changing it rolls no pod."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "!has(self.admissionDelay) || !has(self.strategy) || self.strategy.type != 'Dynamic'",
                "may not stand beside strategy Dynamic, which has maxDelay. Remove one of the two",
                ".admissionDelay",
            ),
            lambda batching: (
                batching.admission_delay is None
                or batching.strategy is None
                or batching.strategy.type is not StrategyType.DYNAMIC
            ),
        ),
    )

    strategy: Strategy | None = None
    """How requests are taken from the queue. Default: the engine's own, vLLM's is Continuous."""
    admission_delay: Annotated[str, Field(max_length=20), DurationBetween("1ms", "60s")] | None = None
    """Keeps requests until the oldest waited so long, or as many wait as may start; 1ms to 60s. Not beside Dynamic.
    Default: none."""
    no_evict: NoEvict | None = None
    """Admit only what fits into the KV cache to its end. Default: vLLM admits what fits now."""
    max_concurrent_prefills: Requests | None = None
    """Most running requests whose prompt is being processed. Default: no limit."""
    policy: QueuePolicy | None = None
    """Order of the queue. FCFS: by arrival. Priority: by the requests' `priority`, the smallest first. Default: the one
    that the engine was started with."""

    @property
    def chooses(self) -> bool:
        """Whether it chooses who is admitted next, rather than how many."""
        held_back = self.admission_delay is not None or self.no_evict is not None
        batches = self.strategy is not None and self.strategy.batches
        return batches or held_back or self.policy is QueuePolicy.PRIORITY


class LiveQueue(Model):
    """At how much vLLM itself refuses requests, with 503. Changing it rolls no pod."""

    max_num_queued_reqs: Amount | None = None
    """Requests that wait or run in one pod; more are refused. Default: the engine's start value, mostly none."""
    max_num_queued_tokens: Amount | None = None
    """Prompt tokens in one pod that are not processed yet; more are refused. It stands in place of the limit that
    Flyball sets under Shed before the times of steps are learnt. Default: the engine's start value, mostly none."""
