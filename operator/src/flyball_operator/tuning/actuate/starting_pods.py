"""Pods that run and are not Ready: they get the setpoint too, since an engine is Ready only once it has one.

Nothing is counted or reported of them. Most have no control port yet, which is no fault. Whatever fails is tried again,
and once they are Ready, `EnginePods` looks after them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from flyball_engine.contract import Refusal, Setpoint
from flyball_operator.engines.client import Acknowledged, Address, EngineClient
from flyball_operator.engines.errors import SetpointRefusedError
from flyball_operator.tuning.actuate.engine_handle import EngineHandle, common, generation_of
from flyball_operator.tuning.actuate.known_engines import KnownEngines
from flyball_operator.tuning.ports import EnginePod

#: Seconds from a failed write to the next: well below those that an engine waits for its setpoint.
AGAIN_SECONDS: Final = 5.0
#: An engine that refuses a write for one of these holds a setpoint, and needs no older one.
_HOLDS: Final = frozenset({Refusal.STALE_EPOCH, Refusal.STALE_GENERATION, Refusal.CONFLICT})
#: One that refuses for these lacks something that is asked of it, or is older than that.
_LACKS: Final = frozenset({Refusal.UNSUPPORTED, Refusal.INVALID})


class StartingPods:
    """Of one service. `clock` is monotonic, in seconds. `known` is told what engines lack."""

    def __init__(self, client: EngineClient, clock: Callable[[], float], known: KnownEngines) -> None:
        self._client = client
        self._clock = clock
        self._known = known
        self._pods: dict[str, EnginePod] = {}
        self._handles: dict[str, EngineHandle] = {}
        self._writes: dict[str, asyncio.Task[None]] = {}

    def update_pods(self, pods: Sequence[EnginePod]) -> None:
        """Take note of the pods there are now; forget those that are Ready or gone, and earlier starts."""
        self._pods = {pod.uid: pod for pod in pods if not pod.ready and pod.ip is not None and pod.container_id}
        kept = {}
        for pod in self._pods.values():
            handle, start = self._handles.get(pod.uid), (pod.container_id, pod.restarts)
            kept[pod.uid] = handle if handle is not None and handle.container == start else EngineHandle(start)
        self._handles = kept

    def due(self, setpoint: Setpoint | None) -> list[str]:
        """Pods that are to be written to, by UID; none where new pods shall keep their start values."""
        if setpoint is None or not self._handles:
            return []
        now = self._clock()
        return [uid for uid, handle in self._handles.items() if not handle.has(setpoint) and now >= handle.retry_at]

    def write(self, setpoint: Setpoint | None) -> None:
        """Write the setpoint to the pods that lack it, in the background: one that hangs delays no other."""
        for uid in [uid for uid, write in self._writes.items() if write.done()]:
            self._writes.pop(uid).result()
        if setpoint is None:
            return
        for uid in self.due(setpoint):
            if uid not in self._writes:
                self._writes[uid] = asyncio.create_task(self._write(self._pods[uid], self._handles[uid], setpoint))

    async def _write(self, pod: EnginePod, handle: EngineHandle, setpoint: Setpoint) -> None:
        address = Address(key=pod.uid, tenant=pod.namespace, ip=pod.ip or "", port=pod.control_port)
        handle.retry_at = self._clock() + AGAIN_SECONDS
        answer = await self._client.timed(address, lambda there: self._client.write(there, setpoint))
        if isinstance(answer, Acknowledged):
            handle.holds = common(answer.read_back)
        elif isinstance(answer, SetpointRefusedError) and answer.refusal in _HOLDS:
            handle.holds = generation_of(setpoint)
        elif isinstance(answer, SetpointRefusedError) and answer.refusal in _LACKS:
            told = await self._client.timed(address, self._client.read_state)
            if isinstance(told, Acknowledged):
                self._known.told(pod.uid, told.read_back)
            self._known.refused(pod.uid, setpoint, answer)

    async def close(self) -> None:
        """End the writes that are on their way."""
        for write in self._writes.values():
            write.cancel()
        await asyncio.gather(*self._writes.values(), return_exceptions=True)
