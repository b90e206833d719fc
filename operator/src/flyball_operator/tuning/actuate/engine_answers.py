"""What the answers of one service's engines come to. They come every 15 s or more, and are asked about at every tick.

So this is made anew with each answer, and works out what is asked for once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Final

from flyball_engine.contract import Generation, Setpoint
from flyball_operator.engines.errors import NotLeadingError, UnreachableError
from flyball_operator.tuning.actuate.engine_handle import (
    EngineHandle,
    generation_of,
    is_contested,
    reason_of,
    trip_message,
    watchdog_clamps,
)
from flyball_operator.tuning.actuate.generation_bounds import GenerationBounds
from flyball_operator.tuning.actuate.lacks import Lacks
from flyball_operator.tuning.adapters import Told, told
from flyball_operator.tuning.ports import EnginePod
from flyball_operator.tuning.queueing import Queueing
from flyball_operator.tuning.reasons import Reason
from flyball_operator.tuning.unchanged import Unchanged

_GRAVITY: Final = (
    Reason.FENCED,
    Reason.UNEXPLAINED,
    Reason.UNGOVERNED,
    Reason.WATCHDOG_TRIPPED,
    Reason.ADMISSION_STUCK,
    Reason.UNSUPPORTED,
    Reason.PUSH_FAILED,
    Reason.UNREACHABLE,
)
#: So many pods are named in one sentence.
_NAMED: Final = 3
_NO_PLUGIN: Final = (
    "if its log says nothing of Flyball, install the plugin and restart the pod; if it says"
    " ControlPortFailed, choose another spec.workload.controlPort"
)


class EngineAnswers:
    """`handles`: the engines by UID of their Ready pods, as they are known now. `foreign`: others make the `pods`."""

    def __init__(
        self, handles: Mapping[str, EngineHandle], pods: Mapping[str, EnginePod], *, foreign: bool = False
    ) -> None:
        self._handles = handles
        self._pods = pods
        # Of functions: a method of its own would keep each of these until cycles are looked for.
        self.applied = Unchanged(partial(_applied, handles))
        self.overtaken = Unchanged(partial(_overtaken, handles))
        self.problems = Unchanged(partial(_problems, handles, pods, foreign))
        self.unexplained = Unchanged(partial(_unexplained, handles))

    @cached_property
    def cores(self) -> int:
        """Engine cores that answered last."""
        return sum(len(handle.read_back.cores) for handle in self._handles.values() if handle.read_back is not None)

    @cached_property
    def trips(self) -> int:
        """Trips of all watchdogs."""
        return sum(sum(handle.trips.values()) for handle in self._handles.values())

    @cached_property
    def running(self) -> bool:
        """Whether some engine had requests."""
        return any(handle.requests > 0 for handle in self._handles.values())

    @cached_property
    def steps_made(self) -> int:
        """Steps that the engines have made since their starts, all together."""
        return sum(handle.steps.made for handle in self._handles.values() if handle.steps is not None)

    @cached_property
    def adapters(self) -> Mapping[str, Told]:
        """What became of the adapters of each pod that was read, by its name."""
        read = {self._pods[uid].name: handle.read_back for uid, handle in self._handles.items()}
        return {name: told(found) for name, found in read.items() if found is not None}

    @cached_property
    def stuck(self) -> str | None:
        """The pods whose cores step and let nobody in, where they are half of all or more; None if they are not.

        One whose watchdog tripped runs under its start values, and a core that does not step hears of no change. Of a
        few among many it is not the policy.
        """
        names = [
            self._pods[uid].name
            for uid, handle in self._handles.items()
            if any(found.stepping for found in handle.stuck) and not watchdog_clamps(handle)
        ]
        return ", ".join(sorted(names)[:_NAMED]) if names and 2 * len(names) >= len(self._handles) else None

    @cached_property
    def moving(self) -> bool:
        """Whether no core is seen to stand still, be it for a moment."""
        return not any(s.seen > s.since for handle in self._handles.values() for s in handle.stalls.values())


def _claimed(handles: Mapping[str, EngineHandle]) -> Iterator[Generation]:
    """The newest numbers that each engine says it holds. A pod may say anything: `reach` has what can be."""
    return (found for handle in handles.values() if (found := handle.claimed) is not None)


def _applied(handles: Mapping[str, EngineHandle], setpoint: Setpoint | None) -> int:
    """Ready pods of which every core has confirmed this setpoint, and runs under it."""
    if setpoint is None:
        return 0
    return sum(1 for handle in handles.values() if handle.has(setpoint) and not watchdog_clamps(handle))


def _unexplained(handles: Mapping[str, EngineHandle], reach: GenerationBounds) -> list[Generation]:
    """Numbers that engines say they hold, and cannot."""
    return [found for found in _claimed(handles) if reach.doubt(found) is not None]


def _overtaken(handles: Mapping[str, EngineHandle], live: Setpoint, reach: GenerationBounds) -> bool:
    """Whether an engine holds numbers that order above these and can be, or another body under them.

    A new number mends that. An engine that reports another body under the new number, too, gets no further
    numbers: nobody had that one before, so the engine lies.
    """
    above = any(found.order() > live.order() and reach.doubt(found) is None for found in _claimed(handles))
    contested = (handle for handle in handles.values() if is_contested(handle.problem))
    return above or any(handle.contested == generation_of(live) for handle in contested)


def _problems(
    handles: Mapping[str, EngineHandle],
    pods: Mapping[str, EnginePod],
    foreign: bool,
    reach: GenerationBounds,
    lacks: Lacks | None,
    asked: Queueing,
    sheds: bool,
    drafts: bool,
) -> list[tuple[Reason, str]]:
    """What is wrong, the gravest first, by pod.

    `lacks`: of engines that are governed, None if none is. Users `asked` for this; `sheds`: requests are to be refused,
    `drafts`: engines speculate, at a depth that is moved.
    """
    found = [
        (reason, f"{pods[uid].name}: {message}")
        for uid, handle in handles.items()
        for reason, message in _of_engine(handle, reach, foreign=foreign)
    ]
    if lacks is not None and (lacking := lacks.told(asked, sheds=sheds, drafts=drafts)):
        found.append((Reason.UNSUPPORTED, lacking))
    return sorted(found, key=lambda item: _GRAVITY.index(item[0]))


def _of_engine(handle: EngineHandle, reach: GenerationBounds, *, foreign: bool) -> Iterator[tuple[Reason, str]]:
    """What is wrong with one engine."""
    if handle.read_back is not None and not handle.read_back.governed:
        yield Reason.UNGOVERNED, "runs as plain vLLM; its log says why"
    elif doubt := doubt_of(handle, reach):
        yield Reason.UNEXPLAINED, doubt
    elif handle.problem is not None and not isinstance(handle.problem, NotLeadingError):
        # What does not let us in may have the plugin.
        closed = isinstance(handle.problem, UnreachableError) and handle.problem.closed
        advice = f"; {_NO_PLUGIN}" if foreign and closed else ""
        yield reason_of(handle.problem), f"{handle.problem}{advice}"
    if clamps := watchdog_clamps(handle):
        yield Reason.WATCHDOG_TRIPPED, trip_message(clamps)
    if stuck := handle.stuck:
        still = "" if any(stall.stepping for stall in stuck) else ", no step was made"
        yield Reason.ADMISSION_STUCK, f"requests wait, places are free, none is let in{still}"


def doubt_of(handle: EngineHandle, reach: GenerationBounds) -> str:
    """What is wrong with the numbers that a pod answers with, empty if nothing is."""
    return reach.message(handle.claimed) if handle.claimed is not None else ""
