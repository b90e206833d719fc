"""The engines of one service: which pods hold the setpoint, which still need it, and what is wrong with the others.

A pod is known by its UID and this start of its container: a restarted engine comes back with its start values, so a new
container id means the setpoint must be written again, without waiting for a decision. Confirmed pods are read back
now and then all the same, because an engine core can lose its limits while its container stays. After an expiry it is
written to again; after a trip of its watchdog it is not, because the same setpoint would bring the same stall.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from flyball_engine.contract import AnyKnob, Clamp, ClampReason, Generation, Knob, Limits, ReadBack, Refusal, Setpoint
from flyball_operator.engines.client import Acknowledged, Address, Answer, EngineClient
from flyball_operator.engines.errors import (
    BadAnswerError,
    EngineError,
    NotLeadingError,
    RefusedError,
    UnreachableError,
)
from flyball_operator.governor.policy import Policy
from flyball_operator.governor.report import Reason
from flyball_operator.governor.signals import CellKey, Sums, cells_of
from flyball_operator.shell.ports import EnginePod

#: Seconds between read-backs of a pod that has confirmed.
VERIFY_SECONDS: Final = 15.0
#: Waits after a failed write: short, because a restarted engine must have its setpoint within seconds of being Ready.
LEAST_WAIT: Final = 1.0
LARGEST_WAIT: Final = 10.0
#: Seconds to wait for the answers of all pods: most land between two steps.
PATIENCE_SECONDS: Final = 3.0
#: A setpoint is written again after this share of its life, so that it never expires while the operator lives.
RENEW_SHARE: Final = 0.25


@dataclass
class _Member:
    """One start of one pod's engine, as far as it is known. `trips` of the watchdog are counted by core."""

    container: tuple[str, int]
    holds: Generation | None = None
    verified_at: float = float("-inf")
    written_at: float = float("-inf")
    retry_at: float = float("-inf")
    wait: float = LEAST_WAIT
    read_back: ReadBack | None = None
    problem: EngineError | None = None
    trips: dict[int, int] = field(default_factory=dict)


@dataclass
class Crew:
    """The pods of one service. `clock` is monotonic, in seconds."""

    client: EngineClient
    clock: Callable[[], float]
    on_applied: Callable[[Acknowledged], None]
    on_failed: Callable[[EngineError], None]
    on_tripped: Callable[[str], None]
    port: int
    _members: dict[str, _Member] = field(default_factory=dict)
    _ready: dict[str, EnginePod] = field(default_factory=dict)
    _talks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

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
        """Ready pods of which every core has confirmed this setpoint, and runs under it."""
        wanted = _generation(setpoint)
        return sum(1 for member in self._members.values() if member.holds == wanted and not _thrown_out(member))

    def read_backs(self) -> dict[str, ReadBack]:
        """The last read-back of each pod, by pod and container start."""
        return {
            f"{uid}/{member.container}": member.read_back
            for uid, member in self._members.items()
            if member.read_back is not None
        }

    def unsupported(self) -> dict[AnyKnob, str]:
        """Knobs that some governed pod cannot move live, and why."""
        found: dict[AnyKnob, str] = {}
        for read_back in self._governed():
            found.update(read_back.unsupported)
        return found

    def _governed(self) -> list[ReadBack]:
        """What the pods say whose engines are governed. One that is not is told less, the others are not."""
        return [read_back for read_back in self.read_backs().values() if read_back.governed]

    def ungated(self) -> str | None:
        """Why some governed pod cannot refuse requests by a deadline, None if all can."""
        reasons = (read_back.ungated for read_back in self._governed())
        return next((reason for reason in reasons if reason is not None), None)

    @property
    def gates(self) -> bool:
        """Whether every governed pod can refuse requests: a gate predicts by what steps are fitted to."""
        return self.ungated() is None and Knob.MAX_NUM_SCHEDULED_TOKENS not in self.unsupported()

    def able(self, policy: Policy) -> Policy:
        """The policy without what some pod cannot do: it would refuse the whole."""
        lacking = self.unsupported()
        limits = Limits(**{knob.value: value for knob, value in policy.limits.given().items() if knob not in lacking})
        if Knob.MAX_NUM_SCHEDULED_TOKENS in lacking:
            # A step is fitted into its time by its tokens, and a gate predicts by what steps are fitted to.
            return Policy(limits=limits)
        return Policy(limits=limits, step=policy.step, shed=None if self.ungated() is not None else policy.shed)

    def newest(self) -> Generation | None:
        """The newest generation any engine holds, by its echo or by the refusal of an older one."""
        echoes = [
            generation
            for member in self._members.values()
            for generation in (_held(member), _refused(member))
            if generation
        ]
        return max(echoes, key=Generation.order, default=None)

    def problems(self, *, sheds: bool = False) -> list[tuple[Reason, str]]:
        """What is wrong, the gravest first, each with the pod's name; `sheds`: requests are to be refused."""
        found: list[tuple[Reason, str]] = []
        for uid, member in self._members.items():
            name = self._ready[uid].name
            if member.read_back is not None and not member.read_back.governed:
                found.append((Reason.UNGOVERNED, f"{name}: runs as plain vLLM; its log says why"))
            elif member.problem is not None and not isinstance(member.problem, NotLeadingError):
                found.append((_reason(member.problem), f"{name}: {member.problem}"))
            if clamps := _thrown_out(member):
                found.append((Reason.WATCHDOG_TRIPPED, f"{name}: {_trip(clamps)}"))
        lacking = self.unsupported()
        found += [(Reason.UNSUPPORTED, f"{knob.value}: {lacking[knob]}") for knob in _TUNED if knob in lacking]
        if sheds and (reason := self.ungated()) is not None:
            found.append((Reason.UNSUPPORTED, f"overload Shed: {reason}"))
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
        await self._talk(self._members, self._read)

    async def push(self, setpoint: Setpoint) -> None:
        """Write the setpoint to every Ready pod that does not hold it."""
        wanted = _generation(setpoint)
        due = [uid for uid, member in self._members.items() if member.holds != wanted]
        await self._talk(due, partial(self._write, setpoint=setpoint))

    async def keep(self, setpoint: Setpoint) -> None:
        """Write to pods that came back or lost it, renew it in time, verify the others now and then."""
        now, wanted = self.clock(), _generation(setpoint)
        stale = [
            uid
            for uid, member in self._members.items()
            if member.holds == wanted and now - member.verified_at >= VERIFY_SECONDS
        ]
        await self._talk(stale, self._read)
        renew = setpoint.expires_seconds * RENEW_SHARE
        due = [
            uid
            for uid, member in self._members.items()
            if now >= member.retry_at and (member.holds != wanted or now - member.written_at >= renew)
        ]
        await self._talk(due, partial(self._write, setpoint=setpoint))

    async def close(self) -> None:
        """End what is still being said."""
        for talk in self._talks.values():
            talk.cancel()
        await asyncio.gather(*self._talks.values(), return_exceptions=True)

    async def _talk(self, uids: Iterable[str], say: Callable[[Address], Coroutine[Any, Any, None]]) -> None:
        """Talk to several pods at once, and wait for most: one that hangs goes on by itself and delays no other."""
        new = []
        for uid in uids:
            pod = self._ready[uid]
            if pod.ip is not None and uid not in self._talks:
                talk = asyncio.create_task(say(Address(key=uid, ip=pod.ip, port=self.port)))
                self._talks[uid] = talk
                talk.add_done_callback(lambda _, uid=uid: self._talks.pop(uid, None))  # type: ignore[misc]
                new.append(talk)
        if new:
            done, _ = await asyncio.wait(new, timeout=PATIENCE_SECONDS)
            for talk in done:
                talk.result()

    async def _read(self, address: Address) -> None:
        self._heard(address.key, self._members.get(address.key), await self.client.timed(address, self.client.read))

    async def _write(self, address: Address, setpoint: Setpoint) -> None:
        member = self._members.get(address.key)
        told = setpoint
        if member is not None and member.read_back is not None and not member.read_back.governed:
            # It would refuse the whole; what is counted of its requests it can be told.
            told = setpoint.model_copy(update={"limits": Limits(), "step": None, "shed": None})
        answer = await self.client.timed(address, lambda there: self.client.write(there, told))
        self._heard(address.key, member, answer)
        if member is None:
            return
        now = self.clock()
        if isinstance(answer, Acknowledged):
            member.written_at, member.wait = now, LEAST_WAIT
            self.on_applied(answer)
        else:
            member.holds = None
            member.retry_at, member.wait = now + member.wait, min(LARGEST_WAIT, 2 * member.wait)
            self.on_failed(answer)
            if isinstance(answer, RefusedError) and answer.refusal is Refusal.UNSUPPORTED:
                # Which limits it cannot move is in its read-back, and one that came after the survey gave none yet.
                await self._read(address)

    def _heard(self, uid: str, asked: _Member | None, answer: Answer) -> None:
        """Take an answer in, unless the pod went or restarted while it was on its way."""
        member = self._members.get(uid)
        if member is None or member is not asked:
            return
        if isinstance(answer, Acknowledged):
            member.read_back, member.problem, member.verified_at = answer.read_back, None, self.clock()
            member.holds = _common(answer.read_back)
            # By the engine's count, since a newer setpoint may have hidden the trip already. Those from before the
            # first read-back are not news: another leader may have told of them.
            trips = {core.engine: core.watchdog_trips for core in answer.read_back.cores}
            if any(count > member.trips.get(core, count) for core, count in trips.items()):
                self.on_tripped(f"{self._ready[uid].name}: {_trip(_thrown_out(member))}")
            member.trips |= trips
        else:
            member.problem = answer


#: What the brain moves; an engine that lacks another knob lacks nothing that is asked of it.
_TUNED: Final = (Knob.MAX_NUM_ACTIVE_SEQS, Knob.MAX_NUM_SCHEDULED_TOKENS)
_GRAVITY: Final = (
    Reason.FENCED,
    Reason.UNGOVERNED,
    Reason.WATCHDOG_TRIPPED,
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


def _thrown_out(member: _Member) -> list[Clamp]:
    """The limits that are at their start values because the watchdog threw the setpoint out; empty if it did not.

    The engine goes on naming the generation: what it heard is what it is renewed by, and only a newer one is tried. So
    such a member holds the setpoint, and is not written to, and runs under another.
    """
    cores = member.read_back.cores if member.read_back is not None else ()
    return [clamp for core in cores for clamp in core.clamped if clamp.reason == ClampReason.WATCHDOG]


def _trip(clamps: Iterable[Clamp]) -> str:
    """What the watchdog did, for people; cores mostly say the same."""
    limits = dict.fromkeys(f"{clamp.knob.value} is {clamp.effective}, not {clamp.requested}" for clamp in clamps)
    if not limits:
        return "requests stood still; start values held until the change that came since"
    return f"requests stood still, start values hold until the next change: {', '.join(limits)}"


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
    if isinstance(problem, RefusedError) and problem.refusal is Refusal.STALE_EPOCH:
        return Reason.FENCED
    if isinstance(problem, RefusedError) and problem.refusal is Refusal.UNSUPPORTED:
        return Reason.UNSUPPORTED
    return Reason.PUSH_FAILED
