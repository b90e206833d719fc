"""The engines of one service: which pods hold the setpoint, which still need it, and what is wrong with the others.

A pod is known by its UID and this start of its container: a restarted engine comes back with its start values, so a new
container id means the setpoint must be written again, without waiting for a decision. Confirmed pods are read back
now and then all the same, because an engine core can lose its limits while its container stays (watchdog, expiry).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flyball_engine.contract import Generation, Knob, ReadBack, Refusal, Setpoint
from flyball_operator.engines.client import Acknowledged, Address, Answer, EngineClient
from flyball_operator.engines.errors import (
    BadAnswerError,
    EngineError,
    NotLeadingError,
    RefusedError,
    UnreachableError,
)
from flyball_operator.governor.report import Reason
from flyball_operator.governor.signals import CellKey, Sums, cells_of
from flyball_operator.shell.ports import EnginePod

#: Seconds between read-backs of a pod that has confirmed.
VERIFY_SECONDS: Final = 15.0
#: Waits after a failed write: short, because a restarted engine must have its setpoint within seconds of being Ready.
LEAST_WAIT: Final = 1.0
LARGEST_WAIT: Final = 10.0
#: A setpoint is written again after this share of its life, so that it never expires while the operator lives.
RENEW_SHARE: Final = 0.25


@dataclass
class _Member:
    """One start of one pod's engine, as far as it is known."""

    container: tuple[str, int]
    holds: Generation | None = None
    verified_at: float = float("-inf")
    written_at: float = float("-inf")
    retry_at: float = float("-inf")
    wait: float = LEAST_WAIT
    read_back: ReadBack | None = None
    problem: EngineError | None = None


@dataclass
class Crew:
    """The pods of one service. `clock` is monotonic, in seconds."""

    client: EngineClient
    clock: Callable[[], float]
    on_applied: Callable[[Acknowledged], None]
    on_failed: Callable[[EngineError], None]
    port: int
    _members: dict[str, _Member] = field(default_factory=dict)
    _ready: dict[str, EnginePod] = field(default_factory=dict)

    def muster(self, pods: Sequence[EnginePod]) -> None:
        """Take note of the pods there are now; forget those that are gone and earlier starts of their containers."""
        self._ready = {pod.uid: pod for pod in pods if pod.ready and pod.ip is not None}
        kept = {}
        for pod in self._ready.values():
            member = self._members.get(pod.uid)
            container = (pod.container_id, pod.restarts)
            kept[pod.uid] = member if member is not None and member.container == container else _Member(container)
        self._members = kept

    @property
    def ready(self) -> int:
        """Ready pods."""
        return len(self._ready)

    def applied(self, setpoint: Setpoint) -> int:
        """Ready pods of which every core has confirmed this setpoint."""
        wanted = _generation(setpoint)
        return sum(1 for member in self._members.values() if member.holds == wanted)

    def read_backs(self) -> dict[str, ReadBack]:
        """The last read-back of each pod, by pod and container start."""
        return {
            f"{uid}/{member.container}": member.read_back
            for uid, member in self._members.items()
            if member.read_back is not None
        }

    def unsupported(self) -> dict[Knob, str]:
        """Knobs that some pod cannot move live, and why."""
        found: dict[Knob, str] = {}
        for read_back in self.read_backs().values():
            found.update(read_back.unsupported)
        return found

    def newest(self) -> Generation | None:
        """The newest generation any engine holds, by its echo or by the refusal of an older one."""
        echoes = [
            generation
            for member in self._members.values()
            for generation in (_held(member), _refused(member))
            if generation
        ]
        return max(echoes, key=Generation.order, default=None)

    def problems(self) -> list[tuple[Reason, str]]:
        """What is wrong, the gravest first, each with the pod's name."""
        found: list[tuple[Reason, str]] = []
        for uid, member in self._members.items():
            name = self._ready[uid].name
            if member.read_back is not None and not member.read_back.governed:
                found.append((Reason.UNGOVERNED, f"{name}: runs as plain vLLM; its log says why"))
            elif member.problem is not None:
                found.append((_reason(member.problem), f"{name}: {member.problem}"))
        found += [(Reason.UNSUPPORTED, f"{knob.value}: {why}") for knob, why in self.unsupported().items()]
        return sorted(found, key=lambda item: _GRAVITY.index(item[0]))

    @property
    def conflicted(self) -> bool:
        """Whether an engine holds our number with another body: it must be given a newer one."""
        return any(
            isinstance(member.problem, RefusedError) and member.problem.refusal is Refusal.CONFLICT
            for member in self._members.values()
        )

    def steps(self) -> dict[str, dict[CellKey, Sums]]:
        """Cumulative steps of each start of each pod, as last read back."""
        return {
            start: cells_of(sums for core in read_back.cores for sums in core.steps)
            for start, read_back in self.read_backs().items()
        }

    async def survey(self) -> None:
        """Read back every Ready pod."""
        now = self.clock()
        answers = await self.client.read_all(self._addresses(self._members))
        for uid, answer in answers.items():
            self._heard(uid, answer, now)

    async def push(self, setpoint: Setpoint) -> None:
        """Write the setpoint to every Ready pod that does not hold it."""
        await self._write([uid for uid in self._members if self._members[uid].holds != _generation(setpoint)], setpoint)

    async def keep(self, setpoint: Setpoint) -> None:
        """Write to pods that came back or lost it, renew it in time, verify the others now and then."""
        now, wanted = self.clock(), _generation(setpoint)
        due = [
            uid
            for uid, member in self._members.items()
            if member.holds == wanted and now - member.verified_at >= VERIFY_SECONDS
        ]
        answers = await self.client.read_all(self._addresses(due))
        for uid, answer in answers.items():
            self._heard(uid, answer, now)
        renew = setpoint.expires_seconds * RENEW_SHARE
        await self._write(
            [
                uid
                for uid, member in self._members.items()
                if now >= member.retry_at and (member.holds != wanted or now - member.written_at >= renew)
            ],
            setpoint,
        )

    async def _write(self, uids: Iterable[str], setpoint: Setpoint) -> None:
        answers = await self.client.write_all(self._addresses(uids), setpoint)
        now = self.clock()
        for uid, answer in answers.items():
            self._heard(uid, answer, now)
            member = self._members.get(uid)
            if member is None:
                continue
            if isinstance(answer, Acknowledged):
                member.written_at, member.wait = now, LEAST_WAIT
                self.on_applied(answer)
            else:
                member.holds = None
                member.retry_at, member.wait = now + member.wait, min(LARGEST_WAIT, 2 * member.wait)
                self.on_failed(answer)

    def _addresses(self, uids: Iterable[str] | Mapping[str, object]) -> list[Address]:
        pods = [self._ready[uid] for uid in uids]
        return [Address(key=pod.uid, ip=pod.ip, port=self.port) for pod in pods if pod.ip is not None]

    def _heard(self, uid: str, answer: Answer, now: float) -> None:
        """Take an answer in. The pod may have gone or restarted while it was on its way."""
        member = self._members.get(uid)
        if member is None:
            return
        if isinstance(answer, Acknowledged):
            member.read_back, member.problem, member.verified_at = answer.read_back, None, now
            member.holds = _common(answer.read_back)
        else:
            member.problem = answer


_GRAVITY: Final = (
    Reason.FENCED,
    Reason.UNGOVERNED,
    Reason.UNSUPPORTED,
    Reason.PUSH_FAILED,
    Reason.UNREACHABLE,
)


def _generation(setpoint: Setpoint) -> Generation:
    return Generation(epoch=setpoint.epoch, generation=setpoint.generation)


def _common(read_back: ReadBack) -> Generation | None:
    """The generation that every core applies; None if they differ or some are silent."""
    applied = {core.applied for core in read_back.cores}
    return applied.pop() if len(applied) == 1 and not read_back.unknown else None


def _held(member: _Member) -> Generation | None:
    if member.read_back is None:
        return None
    accepted = member.read_back.accepted
    echoes = [core.applied for core in member.read_back.cores if core.applied is not None]
    if accepted is not None:
        echoes.append(_generation(accepted))
    return max(echoes, key=Generation.order, default=None)


def _refused(member: _Member) -> Generation | None:
    return member.problem.applied if isinstance(member.problem, RefusedError) else None


def _reason(problem: EngineError) -> Reason:
    if isinstance(problem, UnreachableError | BadAnswerError):
        return Reason.UNREACHABLE
    if isinstance(problem, NotLeadingError):
        return Reason.FENCED
    if isinstance(problem, RefusedError) and problem.refusal is Refusal.STALE_EPOCH:
        return Reason.FENCED
    if isinstance(problem, RefusedError) and problem.refusal is Refusal.UNSUPPORTED:
        return Reason.UNSUPPORTED
    return Reason.PUSH_FAILED
