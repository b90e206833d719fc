"""One start of one pod's engine, as far as it is known, and what its answers say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from flyball_engine.contract import (
    AnyKnob,
    Ceilings,
    Clamp,
    ClampReason,
    Generation,
    Limits,
    ReadBack,
    Refusal,
    Setpoint,
)
from flyball_operator.api.base import forget_given
from flyball_operator.engines.errors import BadAnswerError, EngineError, SetpointRefusedError, UnreachableError
from flyball_operator.tuning.observe.signals import PackedSteps
from flyball_operator.tuning.observe.stall import AdmissionStall, observed
from flyball_operator.tuning.reasons import Reason

#: The first wait after a failed write: a restarted engine must have its setpoint within seconds of being Ready.
LEAST_WAIT: Final = 1.0
#: Fields of a core's answer that are equal in many pods, and how many different values of them are remembered: some a
#: service.
_SHARED_FIELDS: Final = ("applied", "effective", "start", "ceilings")
_SHARED_VALUES: Final = 10_000
_Part = Generation | Limits | Ceilings


@dataclass(slots=True)
class EngineHandle:
    """One start of one pod's engine, as far as it is known.

    `contested`: the number that it says it has another body under. `trips` of the watchdog are counted by core.
    `steps`: None where the last answer was asked for without them.
    """

    container: tuple[str, int]
    holds: Generation | None = None
    verified_at: float = float("-inf")
    written_at: float = float("-inf")
    retry_at: float = float("-inf")
    wait: float = LEAST_WAIT
    read_back: ReadBack | None = None
    problem: EngineError | None = None
    contested: Generation | None = None
    trips: dict[int, int] = field(default_factory=dict)
    stalls: dict[int, AdmissionStall] = field(default_factory=dict)
    steps: PackedSteps | None = None
    _claimed: tuple[ReadBack | None, EngineError | None, Generation | None] = (None, None, None)

    def has(self, setpoint: Setpoint) -> bool:
        """Whether every core applies the setpoint of this number."""
        holds = self.holds
        return holds is not None and holds.generation == setpoint.generation and holds.epoch == setpoint.epoch

    def take(self, read_back: ReadBack, now: float, given: Setpoint | None = None, *, whole: bool = True) -> bool:
        """Keep an answer. Returns whether a watchdog tripped since the one before.

        Its steps, which are most of it, are packed: there is one of each pod of all services. `given`: what was sent
        last; it stands in for an equal one in the answer, for the same reason. `whole`: whether the steps were asked
        for.
        """
        self.steps = PackedSteps.of(sums for core in read_back.cores for sums in core.steps) if whole else None
        holds_back = _holds_back(read_back)
        stalls = {
            core.engine: None if holds_back else observed(self.stalls.get(core.engine), core, now)
            for core in read_back.cores
        }
        self.stalls = {number: found for number, found in stalls.items() if found is not None}
        # By the engine's count, since a newer setpoint may have hidden the trip already. Those from before the first
        # read-back are not new: another leader may have reported them.
        trips = {core.engine: core.watchdog_trips for core in read_back.cores}
        tripped = any(count > self.trips.get(core, count) for core, count in trips.items())
        self.trips |= trips
        self.read_back = _kept(read_back, given)
        self.holds = common(self.read_back)
        self.problem, self.verified_at = None, now
        return tripped

    @property
    def waits(self) -> bool:
        """Whether requests waited at the last read-back: the next one tells whether they are let in."""
        return self.read_back is not None and waits(self.read_back)

    @property
    def requests(self) -> int:
        """Requests that it had at the last read-back."""
        cores = self.read_back.cores if self.read_back is not None else ()
        return sum(core.running + core.waiting for core in cores)

    @property
    def busy(self) -> bool:
        """Whether it had requests for which it must make steps."""
        read_back = self.read_back
        if read_back is None:
            return False
        return any(core.running > 0 or (core.waiting > 0 and not _holds_back(read_back)) for core in read_back.cores)

    @property
    def claimed(self) -> Generation | None:
        """The newest number that an engine says it holds: some part echoes it, or it refused an older one for it."""
        if self._claimed[0] is not self.read_back or self._claimed[1] is not self.problem:
            # Asked several times in a tick, and found anew after an answer.
            self._claimed = (self.read_back, self.problem, _claimed(self.read_back, self.problem))
        return self._claimed[2]

    @property
    def stuck(self) -> list[AdmissionStall]:
        """Of its cores that let nobody in."""
        return [found for found in self.stalls.values() if found.stuck]


def generation_of(setpoint: Setpoint) -> Generation:
    """The number of a setpoint."""
    return Generation(epoch=setpoint.epoch, generation=setpoint.generation)


def common(read_back: ReadBack) -> Generation | None:
    """The generation that every core applies; None if they differ or some are silent."""
    applied = {core.applied for core in read_back.cores}
    return applied.pop() if len(applied) == 1 and not read_back.unknown else None


def waits(read_back: ReadBack) -> bool:
    """Whether an engine has requests that wait."""
    return any(core.waiting > 0 for core in read_back.cores)


def _kept(read_back: ReadBack, given: Setpoint | None) -> ReadBack:
    """An answer without its steps: there is one of each pod of all services, of some eight models.

    Values that answers of several pods have in common are one object.
    """
    cores = tuple(
        core.model_copy(update={"steps": ()} | {field: _shared(getattr(core, field)) for field in _SHARED_FIELDS})
        for core in read_back.cores
    )
    accepted = given if given is not None and read_back.accepted == given else read_back.accepted
    kept = read_back.model_copy(update={"cores": cores, "accepted": accepted})
    for model in (kept, *cores, *(core.order for core in cores)):
        forget_given(model)
    return kept


@lru_cache(maxsize=_SHARED_VALUES)
def _shared(part: _Part | None) -> _Part | None:
    """The value, or an equal one that came before."""
    if part is not None:
        forget_given(part)
    return part


def _holds_back(read_back: ReadBack) -> bool:
    """Whether an engine was told to keep requests waiting beside free slots."""
    return read_back.accepted is not None and read_back.accepted.batching.holds_back


def watchdog_clamps(handle: EngineHandle) -> list[Clamp]:
    """The limits that are at their start values because the watchdog tripped; empty if it did not.

    The engine goes on naming the generation: a renewal must name it, and only a newer one is tried. So such a pod
    confirms the setpoint and is not written to, but runs under its start values.
    """
    cores = handle.read_back.cores if handle.read_back is not None else ()
    return [clamp for core in cores for clamp in core.clamped if clamp.reason == ClampReason.WATCHDOG]


def trip_message(clamps: Iterable[Clamp]) -> str:
    """What the watchdog did, for people; cores mostly say the same."""
    limits = dict.fromkeys(f"{clamp.knob.value} is {clamp.effective}, not {clamp.requested}" for clamp in clamps)
    if not limits:
        return "requests stood still; start values held until the change that came since"
    return f"requests stood still, start values hold until the next change: {', '.join(limits)}"


def _claimed(read_back: ReadBack | None, problem: EngineError | None) -> Generation | None:
    found: list[Generation | None] = []
    if read_back is not None:
        accepted = read_back.accepted
        found += [core.applied for core in read_back.cores]
        found.append(generation_of(accepted) if accepted is not None else None)
    if isinstance(problem, SetpointRefusedError):
        found.append(problem.applied)
    return max((number for number in found if number is not None), key=Generation.order, default=None)


def is_contested(problem: EngineError | None) -> bool:
    """Whether an engine says that it has another body under our number."""
    return isinstance(problem, SetpointRefusedError) and problem.refusal is Refusal.CONFLICT


def is_unknown(problem: EngineError, knob: AnyKnob) -> bool:
    """Whether an engine refused a setpoint since its contract does not have this field, or one below it."""
    refused = isinstance(problem, SetpointRefusedError) and problem.refusal is Refusal.INVALID
    below = rf"\b{re.escape(knob.value)}(\.\w+)*: Extra inputs are not permitted"
    return refused and re.search(below, str(problem)) is not None


def reason_of(problem: EngineError) -> Reason:
    """What a condition says of an answer that was none."""
    if isinstance(problem, UnreachableError | BadAnswerError):
        return Reason.UNREACHABLE
    if isinstance(problem, SetpointRefusedError) and problem.refusal is Refusal.UNSUPPORTED:
        return Reason.UNSUPPORTED
    return Reason.PUSH_FAILED
