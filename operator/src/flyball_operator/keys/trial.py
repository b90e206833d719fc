"""Which engines accept the next signing key: they are asked until they do, by a write that nothing can come of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

from flyball_engine.signing import Signer
from flyball_operator.engines.client import Address
from flyball_operator.engines.errors import EngineError

#: Seconds for which both keys are published at least. Pods that are not Ready are not asked, and the kubelet brings the
#: ConfigMap to those that started just before in about a minute. A new leader may not know all pods at first.
LEAST_SECONDS: Final = 120.0
#: Engines that are asked at the same time.
PARALLEL: Final = 32


class Engines(Protocol):
    """Asks engines which keys they accept (`engines.client.EngineClient`)."""

    async def accepts(self, address: Address, signer: Signer, *, service: str) -> bool:
        """Whether an engine of a service accepts tokens of a key. Raises an `EngineError`."""
        ...


class Trial:
    """That of one key. `since`: when this process saw the key first, in seconds of its clock."""

    def __init__(self, signer: Signer, since: float) -> None:
        self.signer = signer
        self._since = since
        self._asked = False
        self._accepting: set[str] = set()
        self._missing: dict[str, str] = {}

    def passed(self, now: float) -> bool:
        """Whether every engine that was asked last accepts the key, and both keys were published for long enough."""
        return self._asked and not self._missing and now - self._since >= LEAST_SECONDS

    def missing(self) -> tuple[str, ...]:
        """Engines that are not known to accept it, and why."""
        return tuple(self._missing.values())

    async def ask(self, engines: Engines, ready: Iterable[tuple[str, Address]]) -> None:
        """Ask those that are not known to accept it. `ready`: of each Ready pod the service's UID and the address."""
        due = [(service, where) for service, where in ready if where.key not in self._accepting]
        gate = asyncio.Semaphore(PARALLEL)

        async def why(service: str, where: Address) -> str:
            async with gate:
                return await self._refusal(engines, service, where)

        answers = await asyncio.gather(*(why(*one) for one in due))
        self._missing = {where.key: answer for (_, where), answer in zip(due, answers, strict=True) if answer}
        self._accepting |= {where.key for _, where in due} - self._missing.keys()
        self._asked = True

    async def _refusal(self, engines: Engines, service: str, where: Address) -> str:
        try:
            accepted = await engines.accepts(where, self.signer, service=service)
        except EngineError as error:
            return f"{where.tenant}, {error}"
        return "" if accepted else f"{where.tenant}, {where.ip}: it refuses the key"
