"""The engines of one service: which pods hold the setpoint, which still need it, and what is wrong with the others.

A pod is known by its UID and this start of its container. A restarted engine comes back with its start values. So after
a restart the setpoint is written again, without waiting for a decision. Confirmed pods are read back now and then all
the same, because an engine core can lose its limits while its container stays. After an expiry it is written to again;
after a trip of its watchdog it is not, because the same setpoint would bring the same stall.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from flyball_engine.adapters import Adapter
from flyball_engine.contract import (
    Refusal,
    Setpoint,
)
from flyball_operator.api.v1alpha1 import InferenceServiceSpec
from flyball_operator.engines.client import Acknowledged, Address, Answer, EngineClient
from flyball_operator.engines.errors import EngineError, SetpointRefusedError
from flyball_operator.tuning import tracing
from flyball_operator.tuning.actuate.engine_answers import EngineAnswers, doubt_of
from flyball_operator.tuning.actuate.engine_handle import (
    LEAST_WAIT,
    EngineHandle,
    generation_of,
    is_contested,
    trip_message,
    waits,
    watchdog_clamps,
)
from flyball_operator.tuning.actuate.generation_bounds import GenerationBounds
from flyball_operator.tuning.actuate.known_engines import KnownEngines
from flyball_operator.tuning.actuate.lacks import Lacks, supported_setpoint
from flyball_operator.tuning.actuate.setpoint_trial import TrialObservation
from flyball_operator.tuning.adapters import pending, told
from flyball_operator.tuning.observe.signals import CellKey, Observation, Signals, StepWindow, Sums
from flyball_operator.tuning.observe.stall import VERIFY_SECONDS
from flyball_operator.tuning.ports import EnginePod
from flyball_operator.tuning.queueing import Queueing
from flyball_operator.tuning.reasons import Reason

#: Seconds between read-backs where Prometheus shows that all cores still have it: it may reach a pod that the operator
#: does not. With 60 s, read-backs of 5,000 pods were a fifth of the processor time.
VERIFY_CONFIRMED_SECONDS: Final = 600.0
#: The same of one that has a setpoint alone: the others wait for what it shows.
VERIFY_ALONE_SECONDS: Final = 4.0
#: The longest wait after a failed write.
LARGEST_WAIT: Final = 10.0
#: Seconds to wait for the answers of all pods: most land between two steps.
PATIENCE_SECONDS: Final = 3.0
#: A setpoint is written again after this share of its life, so that it never expires while the operator lives.
RENEW_SHARE: Final = 0.25


@dataclass
class EnginePods:
    """The pods of one service. `clock` is monotonic, in seconds; `reach`: how far their numbers can have got by now."""

    client: EngineClient
    clock: Callable[[], float]
    on_applied: Callable[[Acknowledged], None]
    on_failed: Callable[[EngineError], None]
    on_tripped: Callable[[str], None]
    reach: Callable[[], GenerationBounds]
    #: The one pod, by UID, that is given a setpoint, and the one that the others keep meanwhile, if they have one.
    alone: tuple[str, Setpoint | None] | None = None
    #: The adapters that pods are to load, None where the service has no list; and the spec that says so.
    adapters: tuple[Adapter, ...] | None = None
    _spec: InferenceServiceSpec | None = None
    #: What the engines have said of themselves, be their pods Ready or not.
    known: KnownEngines = field(default_factory=KnownEngines)
    _handles: dict[str, EngineHandle] = field(default_factory=dict)
    _ready: dict[str, EnginePod] = field(default_factory=dict)
    _exchanges: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _sent: Setpoint | None = None
    #: Whether Prometheus sees the engines' steps: then read-backs need not say them, and do where requests wait.
    _steps_seen: bool = False
    #: Whether all pods are Ready. One that is not may be scraped, and would stand in for a Ready one that is not.
    _all_ready: bool = False
    #: The setpoint that Prometheus showed at the last tick to be all pods'.
    _confirmed: Setpoint | None = None
    #: When some pod is due next, and what this was found for. None: after an exchange, or with other pods.
    _due: tuple[float, Setpoint, tuple[str, Setpoint | None] | None] | None = None
    #: None likewise.
    _answers: EngineAnswers | None = None

    def update_pods(self, pods: Sequence[EnginePod]) -> None:
        """Take note of the pods there are now; forget those that are gone and earlier starts of their containers."""
        self._ready = {pod.uid: pod for pod in pods if pod.ready and pod.ip is not None}
        kept = {}
        for pod in self._ready.values():
            handle = self._handles.get(pod.uid)
            container = (pod.container_id, pod.restarts)
            kept[pod.uid] = handle if handle is not None and handle.container == container else EngineHandle(container)
        self._handles, self._due, self._answers = kept, None, None
        self._all_ready = len(self._ready) == len(pods)
        self.known.update_pods(pods)

    def wants_adapters(self, spec: InferenceServiceSpec) -> None:
        """Take note of the adapters that pods are to load. Every second: mostly it is the same spec."""
        if spec is not self._spec:
            self._spec, self._due = spec, None
            self.adapters = None if spec.adapters is None else tuple(one.contract for one in spec.adapters)

    def observe(self, observation: Observation, live: Setpoint | None) -> None:
        """Take note of what a tick sees of the engines."""
        found = observation if isinstance(observation, Signals) and observation.age_seconds <= VERIFY_SECONDS else None
        if found is None or found.steps is not None:  # most ticks do not ask for them
            self._steps_seen = found is not None and isinstance(found.steps, StepWindow)
        confirmed = live if found is not None and self._steps_seen and self._shown(found, live) else None
        if confirmed is not self._confirmed:
            self._confirmed, self._due = confirmed, None

    def _shown(self, found: Signals, live: Setpoint | None) -> bool:
        """Whether Prometheus shows of all cores that answered last what a read-back would."""
        if live is None or not self._all_ready:
            return False
        answers = self.answers
        return found.confirms(live, pods=self.ready, cores=answers.cores, trips=answers.trips)

    @property
    def answers(self) -> EngineAnswers:
        """What the answers of the engines come to."""
        if self._answers is None:
            self._answers = EngineAnswers(self._handles, self._ready, foreign=self.known.foreign)
        return self._answers

    @property
    def ready(self) -> int:
        """Ready pods."""
        return len(self._ready)

    def accepted(self) -> dict[str, Setpoint]:
        """The setpoint that each pod holds, by UID, as last read back; those that hold none are not in it."""
        read = {uid: handle.read_back for uid, handle in self._handles.items()}
        return {uid: found.accepted for uid, found in read.items() if found is not None and found.accepted is not None}

    def newest(self) -> Setpoint | None:
        """Of the setpoints that governed pods hold the newest, None if they hold none."""
        read = [handle.read_back for handle in self._handles.values() if handle.read_back is not None]
        held = [found.accepted for found in read if found.governed and found.accepted is not None]
        return max(held, key=Setpoint.order, default=None)

    def busiest(self, since: float) -> EnginePod | None:
        """The governed pod with the most requests, of which most is to be seen; None if all have something wrong.

        Those that were read back since that time come first: what the others had may be a minute old.
        """
        reach = self.reach()
        well = {
            uid: (handle.verified_at >= since, handle.requests)
            for uid, handle in self._handles.items()
            if handle.read_back is not None and handle.read_back.governed and handle.problem is None
            if not doubt_of(handle, reach)
        }
        return self._ready[max(sorted(well), key=well.__getitem__)] if well else None

    def observe_trial(self, uid: str, setpoint: Setpoint) -> TrialObservation:
        """What one pod's read-back says of running under a setpoint."""
        handle = self._handles.get(uid)
        if handle is None or handle.read_back is None:
            return TrialObservation(ready=handle is not None)
        confirmed = handle.has(setpoint)
        return TrialObservation(
            ready=True,
            confirmed=confirmed,
            # What it says of a trip before that was one under another setpoint.
            tripped=confirmed and bool(watchdog_clamps(handle)),
            busy=handle.busy,
            steps=handle.steps.made if handle.steps is not None else 0,
        )

    def problems(
        self, reach: GenerationBounds, asked: Queueing, *, sheds: bool = False, drafts: bool = False
    ) -> list[tuple[Reason, str]]:
        """What is wrong, the gravest first, by pod. Users `asked` for this.

        `sheds`: requests are to be refused. `drafts`: engines speculate, at a depth that is moved.
        """
        lacks = self.known.lacks if self.known.governed else None
        return self.answers.problems(reach, lacks, asked, sheds, drafts)

    @property
    def lacks(self) -> Lacks:
        """What the pods lack of what they may be told."""
        return self.known.lacks

    def steps(self) -> dict[str, dict[CellKey, Sums]]:
        """Cumulative steps of each start of each pod, where they were read back last."""
        handles = self._handles.items()
        return {_start(uid, handle): handle.steps.cells() for uid, handle in handles if handle.steps is not None}

    async def survey(self) -> None:
        """Read back every Ready pod."""
        await self._exchange_with(self._handles, self._read)

    async def push(self, setpoint: Setpoint) -> None:
        """Write the setpoint to every Ready pod that does not hold it, and is to."""
        targets = self._targets(setpoint)
        due = [uid for uid, given in targets.items() if not self._handles[uid].has(given)]
        await self._exchange_with(due, lambda there: self._write(there, targets[there.key]))

    def to_be_kept(self, setpoint: Setpoint) -> bool:
        """Whether some pod is to be written to, or read back."""
        due = self._due
        # Asked every second, and nothing is due but every 15 s or more.
        if due is None or due[1] is not setpoint or due[2] is not self.alone:
            targets = self._targets(setpoint)
            times = (min(self._verify_at(uid, given), self._write_at(uid, given)) for uid, given in targets.items())
            due = self._due = (min(times, default=math.inf), setpoint, self.alone)
        return self.clock() >= due[0]

    async def keep(self, setpoint: Setpoint) -> None:
        """Write to pods that came back or lost it, renew it in time, verify the others now and then."""
        now = self.clock()
        stale = [uid for uid, given in self._targets(setpoint).items() if now >= self._verify_at(uid, given)]
        await self._exchange_with(stale, self._read)
        # Anew: pods come and go while others answer.
        targets = self._targets(setpoint)
        due = [uid for uid, given in targets.items() if now >= self._write_at(uid, given)]
        await self._exchange_with(due, lambda there: self._write(there, targets[there.key]))

    def _write_at(self, uid: str, given: Setpoint) -> float:
        """When a pod is written to: it lost the setpoint or never had it, or that is to be renewed."""
        handle = self._handles[uid]
        renewal = handle.written_at + given.expires_seconds * RENEW_SHARE if handle.has(given) else -math.inf
        return max(handle.retry_at, renewal)

    def _targets(self, setpoint: Setpoint) -> dict[str, Setpoint]:
        """What each Ready pod shall hold, by UID; those that shall keep their start values are not in it."""
        if self.alone is None:
            return dict.fromkeys(self._handles, setpoint)
        first, others = self.alone
        targets = {uid: setpoint if uid == first else others for uid in self._handles}
        return {uid: given for uid, given in targets.items() if given is not None}

    def _loads(self, handle: EngineHandle) -> bool:
        """Whether it has yet to load or to unload adapters: status tells soon when it has."""
        read = handle.read_back
        return self.adapters is not None and (read is None or bool(pending(self.adapters, told(read))))

    def _verify_at(self, uid: str, given: Setpoint) -> float:
        """When a pod is read back again, if it has confirmed what it shall hold."""
        handle = self._handles[uid]
        if not handle.has(given):
            return math.inf
        if self.alone is not None and uid == self.alone[0]:
            return handle.verified_at + VERIFY_ALONE_SECONDS
        shown = given is self._confirmed and not handle.waits and not handle.stalls and not self._loads(handle)
        return handle.verified_at + (VERIFY_CONFIRMED_SECONDS if shown else VERIFY_SECONDS)

    async def close(self) -> None:
        """End the exchanges that still go on."""
        for exchange in self._exchanges.values():
            exchange.cancel()
        await asyncio.gather(*self._exchanges.values(), return_exceptions=True)

    async def _exchange_with(self, uids: Iterable[str], send: Callable[[Address], Coroutine[Any, Any, None]]) -> None:
        """Exchange with several pods at once, and wait for most: one that hangs delays no other."""
        new = []
        for uid in uids:
            pod = self._ready[uid]
            if pod.ip is not None and uid not in self._exchanges:
                address = Address(key=uid, tenant=pod.namespace, ip=pod.ip, port=pod.control_port)
                exchange = asyncio.create_task(send(address))
                self._exchanges[uid] = exchange
                exchange.add_done_callback(lambda _, uid=uid: self._exchanges.pop(uid, None))  # type: ignore[misc]
                new.append(exchange)
        if new:
            done, _ = await asyncio.wait(new, timeout=PATIENCE_SECONDS)
            for exchange in done:
                exchange.result()

    async def _read(self, address: Address) -> None:
        handle = self._handles.get(address.key)
        whole = not self._steps_seen or self.alone is not None or handle is None or handle.waits
        answer = await self.client.timed(address, self.client.read if whole else self.client.read_state)
        self._received(address.key, handle, answer, whole=whole)
        if not whole and isinstance(answer, Acknowledged) and waits(answer.read_back):
            # Whether they are let in is told by the steps.
            self._received(address.key, handle, await self.client.timed(address, self.client.read))

    async def _write(self, address: Address, setpoint: Setpoint) -> None:
        handle = self._handles.get(address.key)
        sent = self._sent = setpoint if handle is None else supported_setpoint(setpoint, handle.read_back)
        written = self.client.timed(address, lambda there: self.client.write(there, sent))
        answer = await tracing.push(address, sent, written)
        self._received(address.key, handle, answer)
        if handle is None:
            return
        now, self._due, self._answers = self.clock(), None, None
        if isinstance(answer, Acknowledged):
            handle.written_at, handle.wait, handle.contested = now, LEAST_WAIT, None
            self.on_applied(answer)
        else:
            handle.holds = None
            handle.retry_at, handle.wait = now + handle.wait, min(LARGEST_WAIT, 2 * handle.wait)
            self.on_failed(answer)
            if is_contested(answer):
                handle.contested = handle.contested or generation_of(sent)
            self.known.refused(address.key, sent, answer)
            if isinstance(answer, SetpointRefusedError) and answer.refusal is Refusal.UNSUPPORTED:
                # Which limits it cannot move is in its read-back, and one that came after the survey gave none yet.
                await self._read(address)

    def _received(self, uid: str, asked: EngineHandle | None, answer: Answer, *, whole: bool = True) -> None:
        """Take an answer in, unless the pod went or restarted while it was on its way."""
        handle, self._due, self._answers = self._handles.get(uid), None, None
        if handle is None or handle is not asked:
            return
        if not isinstance(answer, Acknowledged):
            handle.problem = answer
            return
        tripped = handle.take(answer.read_back, self.clock(), self._sent, whole=whole)
        if handle.read_back is not None:
            self.known.told(uid, handle.read_back)
        if tripped:
            self.on_tripped(f"{self._ready[uid].name}: {trip_message(watchdog_clamps(handle))}")


def _start(uid: str, handle: EngineHandle) -> str:
    """The name of one start of one pod's engine."""
    return f"{uid}/{handle.container}"
