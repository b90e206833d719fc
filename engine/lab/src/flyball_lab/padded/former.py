"""Which of the waiting sequences make the next batch, by the strategies that all engines share. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flyball_engine.batching.strategies import SchedulerState, Waiting, decide
from flyball_engine.contract import Batching, SchedulingPolicy
from flyball_engine.knobs import Dynamic
from flyball_lab.padded.requests import Row


@dataclass(frozen=True, kw_only=True)
class Formed:
    """The next batch; empty if nobody waits, or while those that wait are kept back `until` the time given."""

    rows: tuple[Row, ...]
    until: float | None = None


def whole(asked: Batching, start: Dynamic) -> Batching:
    """What was asked for with a strategy: where it names none that of the start, which has its delay in itself."""
    if asked.strategy is not None:
        return asked
    delay = asked.admission_delay_seconds or start.max_delay_seconds
    strategy = start.model_copy(update={"max_delay_seconds": delay})
    return asked.model_copy(update={"strategy": strategy, "admission_delay_seconds": 0.0})


def form(waiting: Iterable[Row], batching: Batching, *, most: int, now: float) -> Formed:
    """Form a batch of at most `most` rows. `waiting` is in order of arrival; `batching` is `whole`."""
    queue = (
        sorted(waiting, key=lambda row: row.priority) if batching.policy is SchedulingPolicy.PRIORITY else list(waiting)
    )
    by_name = {str(row.number): row for row in queue}
    shown = [Waiting(name=name, arrived=row.arrival, prompt_tokens=row.prompt_tokens) for name, row in by_name.items()]
    decision = decide(batching, (), SchedulerState(now=now, queue=shown, running=0, slots=most))
    return Formed(rows=tuple(by_name[name] for name in decision.admit or ()), until=decision.held_until)
