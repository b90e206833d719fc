"""Pods of others that are a service's no more: they get a setpoint of nothing, so that they are as they were started.

Nothing in it is moved, so each engine is at its start values at once, and a minute later it holds no setpoint. A pod
that cannot be told so soon returns by itself once its last setpoint expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from flyball_engine.contract import Setpoint
from flyball_operator.engines.client import Acknowledged, Address
from flyball_operator.tuning.ports import EnginePod
from flyball_operator.tuning.service_context import ServiceContext

#: Writes until a pod is left to the expiry of its setpoint: most pods that are gone are gone for good.
TRIES: Final = 5
#: The shortest life of a setpoint that an engine takes.
EXPIRES_SECONDS: Final = 60.0


class ReleasedPods:
    """Of one service."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._left: dict[str, tuple[EnginePod, int]] = {}
        #: What those that left last are given; None where it needs a number yet.
        self._nothing: Setpoint | None = None

    def update_pods(self, before: Sequence[EnginePod], present: Sequence[EnginePod]) -> None:
        """Take note of pods that were the service's and are not, but for those that are being deleted."""
        context = self._context
        if context.service.spec.workload is None:
            return
        there, addresses = {pod.uid for pod in present}, {pod.ip for pod in present}
        leaving = context.dependencies.is_leaving
        left = [pod for pod in before if pod.uid not in there and pod.ip is not None and not leaving(pod.uid)]
        if left:
            self._left |= {pod.uid: (pod, TRIES) for pod in left}
            self._nothing = None
        # One that came back is tuned. One that is gone may have left its address to another.
        still = {uid: found for uid, found in self._left.items() if uid not in there}
        self._left = {uid: found for uid, found in still.items() if found[0].ip not in addresses}

    @property
    def due(self) -> bool:
        """Whether some pod is to be given back, and can be: without a setpoint it holds none of ours."""
        return bool(self._left) and self._context.setpoint is not None and self._context.may_act

    async def release(self) -> None:
        """Give them back, under a number of its own: the same number with another body would be refused."""
        if not self.due:
            return
        nothing = self._nothing = self._nothing or self._numbered()
        await asyncio.gather(*(self._write(uid, nothing) for uid in tuple(self._left)))

    def _numbered(self) -> Setpoint:
        generations = self._context.generations
        generations.advance()
        generations.give()
        return Setpoint(
            service=self._context.service.metadata.uid,
            epoch=generations.epoch,
            generation=generations.generation,
            expires_seconds=EXPIRES_SECONDS,
        )

    async def _write(self, uid: str, setpoint: Setpoint) -> None:
        pod, tries = self._left[uid]
        client = self._context.dependencies.client
        address = Address(key=uid, tenant=pod.namespace, ip=pod.ip or "", port=pod.control_port)
        answer = await client.timed(address, lambda there: client.write(there, setpoint))
        if isinstance(answer, Acknowledged) or tries == 1:
            self._left.pop(uid, None)
        elif uid in self._left:
            self._left[uid] = (pod, tries - 1)
