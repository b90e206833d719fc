"""Simulated engines as a service's tuner reaches them: pods with a control port, without HTTP and in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from flyball_engine.contract import CONTROL_PORT, ReadBack, Setpoint
from flyball_engine.control.acceptance import SetpointRefused, judge
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.read_back import read_back
from flyball_operator.engines.client import Acknowledged, Address, Answer
from flyball_operator.engines.errors import EngineError, SetpointRefusedError
from flyball_operator.tuning.ports import EnginePod


class SimulatedEngines:
    """One pod for each core (stands in for `EngineClient`).

    `sent`: what becomes of a setpoint before a core gets it. `on_setpoint` hears of each that is newer than all before.
    """

    def __init__(
        self,
        cores: Sequence[Core],
        *,
        sent: Callable[[Setpoint], Setpoint],
        on_setpoint: Callable[[Setpoint], None],
    ) -> None:
        self._cores = {f"pod-{number + 1}": core for number, core in enumerate(cores)}
        self._accepted: dict[tuple[str, int], Setpoint] = {}
        self._newest = (0, 0)
        self._sent = sent
        self._on_setpoint = on_setpoint

    def pods(self) -> list[EnginePod]:
        """The pods as the cluster shows them: another container start after a crash, Ready when it serves."""
        return [
            EnginePod(
                name=uid,
                uid=uid,
                ip="127.0.0.1",
                ready=core.serves,
                container_id=f"{uid}-{core.starts}",
                restarts=core.starts - 1,
                namespace="bench",
                control_port=CONTROL_PORT,
            )
            for uid, core in self._cores.items()
        ]

    async def read(self, address: Address) -> ReadBack:
        """What an engine applies."""
        core = self._cores[address.key]
        return read_back(core, self._accepted.get((address.key, core.starts)))

    async def read_state(self, address: Address) -> ReadBack:
        """The same without the steps."""
        return (await self.read(address)).without_steps()

    async def write(self, address: Address, setpoint: Setpoint) -> ReadBack:
        """Write a setpoint. Raises SetpointRefusedError as an engine would."""
        core = self._cores[address.key]
        start = (address.key, core.starts)
        held = self._accepted.get(start)
        try:
            judge(held=held, offered=setpoint, service=setpoint.service, unsupported={}, ungated=None)
        except SetpointRefused as refused:
            raise SetpointRefusedError(refused.refusal, refused.message, None) from refused
        self._accepted[start] = setpoint
        if setpoint.order() > self._newest:
            self._newest = setpoint.order()
            self._on_setpoint(setpoint)
        told = self._sent(setpoint)
        core.follow(told)
        core.apply(told)
        return await self.read(address)

    async def timed(self, address: Address, ask: Callable[[Address], Awaitable[ReadBack]]) -> Answer:
        """Ask one engine; its error is an answer, too."""
        try:
            return Acknowledged(await ask(address), 0.0)
        except EngineError as error:
            return error
