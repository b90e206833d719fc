"""How requests are admitted from the queue: what users ask for, and the law leaves alone. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Final

from flyball_engine.contract import (
    AnyKnob,
    Batching,
    BatchingKnob,
    QueueKnob,
    QueueLimits,
    SchedulingPolicy,
)
from flyball_engine.knobs import NoEvict
from flyball_operator.api.quantities import parse_duration
from flyball_operator.api.v1alpha1 import LiveBatching, Strategy, Tuning

#: What users wrote, by what engines may lack.
_FIELDS: Final[Mapping[AnyKnob, str]] = {
    **{knob: "batching.strategy" for knob in BatchingKnob if knob.value.startswith("batching.strategy.")},
    BatchingKnob.ADMISSION_DELAY_SECONDS: "batching.admissionDelay",
    BatchingKnob.NO_EVICT: "batching.noEvict",
    BatchingKnob.MAX_CONCURRENT_PREFILLS: "batching.maxConcurrentPrefills",
    BatchingKnob.POLICY: "batching.policy",
    QueueKnob.MAX_NUM_QUEUED_REQS: "queue.maxNumQueuedReqs",
    QueueKnob.MAX_NUM_QUEUED_TOKENS: "queue.maxNumQueuedTokens",
}


@dataclass(frozen=True)
class Queueing:
    """What users ask for. `batching`: who is admitted from the queue. `queue`: what vLLM itself refuses."""

    batching: Batching = field(default_factory=Batching)
    queue: QueueLimits = field(default_factory=QueueLimits)

    @classmethod
    def asked(cls, tuning: Tuning) -> Queueing:
        """What a spec asks for."""
        queue = tuning.queue
        limits = QueueLimits(
            max_num_queued_reqs=queue.max_num_queued_reqs, max_num_queued_tokens=queue.max_num_queued_tokens
        )
        return cls(_batching(tuning.batching), limits)

    def limits(self, tokens: int | None) -> QueueLimits:
        """The limits of vLLM's queue; `tokens`: the law's, where users have set none."""
        if tokens is None or self.queue.max_num_queued_tokens is not None:
            return self.queue
        return self.queue.model_copy(update={"max_num_queued_tokens": tokens})

    def without(self, lacking: Container[AnyKnob]) -> Queueing:
        """The same without what engines lack: they would refuse the whole setpoint."""
        parts = {_part(knob) for knob in self.batching.given() if knob in lacking}
        limits = {_part(knob) for knob in self.queue.given() if knob in lacking}
        if not parts and not limits:
            return self
        batching = {name: value for name, value in self.batching if name not in parts}
        queue = {name: value for name, value in self.queue if name not in limits}
        return Queueing(Batching(**batching), QueueLimits(**queue))

    def told(self, lacking: Mapping[AnyKnob, str]) -> str:
        """What is asked for and lacking, by field, for people; empty if nothing is."""
        asked: tuple[AnyKnob, ...] = (*self.batching.given(), *self.queue.given())
        fields = [f"spec.tuning.{_FIELDS[knob]}: {lacking[knob]}" for knob in asked if knob in lacking]
        return f"{'; '.join(fields)}. Without it the rest holds" if fields else ""

    def changed(self, before: Queueing) -> str:
        """The fields that differ, for people; empty if none does."""
        now, then = ({**dict(one.batching), **dict(one.queue)} for one in (self, before))
        differing = {part for part, value in now.items() if value != then[part]}
        return ", ".join(dict.fromkeys(name for knob, name in _FIELDS.items() if _part(knob) in differing))


def _part(knob: AnyKnob) -> str:
    """The field of `Batching` or `QueueLimits`."""
    return knob.value.split(".")[1]


def _batching(asked: LiveBatching) -> Batching:
    delay = asked.admission_delay
    given = {
        "strategy": None if asked.strategy is None else _strategy(asked.strategy),
        "admission_delay_seconds": 0.0 if delay is None else float(parse_duration(delay)),
        "no_evict": None if asked.no_evict is None else NoEvict(quantile=float(asked.no_evict.quantile)),
        "max_concurrent_prefills": asked.max_concurrent_prefills,
        "policy": None if asked.policy is None else SchedulingPolicy(asked.policy.value.lower()),
    }
    return Batching.model_validate(given)


def _strategy(asked: Strategy) -> dict[str, object]:
    delay = None if asked.max_delay is None else float(parse_duration(asked.max_delay))
    given = {
        "batch_size": asked.batch_size,
        "max_delay_seconds": delay,
        "max_batch_tokens": asked.max_batch_tokens,
        "boundaries": asked.boundaries,
        "sorted": asked.sorted,
    }
    return {"type": asked.type.value} | {name: value for name, value in given.items() if value is not None}
