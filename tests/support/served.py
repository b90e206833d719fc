"""A governed server that tests share: each finds it at the start values, with nothing running."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from typing import Any

from flyball_engine.contract import CoreState, Generation, ReadBack, Setpoint
from flyball_lab.harness.engine import ControlClient, setpoint
from flyball_lab.harness.vllm_server import VllmServer
from flyball_lab.harness.waiting import eventually


@dataclass
class Served:
    """A server, and its control port; the setpoints of all tests are one sequence."""

    server: VllmServer
    control: ControlClient
    generation: int = 0

    def setpoint(self, **fields: Any) -> Setpoint:
        """The next setpoint, with these fields."""
        self.generation += 1
        return setpoint(self.generation, **fields)

    def set(self, **fields: Any) -> ReadBack:
        """Apply the next setpoint; the answer must confirm it."""
        wanted = self.setpoint(**fields)
        answer = self.control.put(wanted)
        assert answer.confirmed(Generation(epoch=wanted.epoch, generation=wanted.generation))
        return answer

    def core(self) -> CoreState:
        """What its engine core reports."""
        (core,) = self.control.read().cores
        return core

    def begin(self) -> None:
        """The start values, with nothing running. Others may have written setpoints: the next is newer."""
        accepted = self.control.read().accepted
        self.generation = max(self.generation, accepted.generation if accepted else 0)
        self.set()
        eventually(lambda: self.core().running == 0, expecting="the engine is idle")


class Keeper:
    """Starts a server when it is first asked for, and anew if a test has ended it."""

    def __init__(self, start: Callable[[], AbstractContextManager[VllmServer]]) -> None:
        self._start = start
        self._kept: Served | None = None
        self._stack = ExitStack()

    def served(self) -> Served:
        """The server, ready, as each test begins with it."""
        if self._kept is None or self._kept.server.process.poll() is not None:
            self.close()
            server = self._stack.enter_context(self._start())
            server.expect_ready()
            control = self._stack.enter_context(closing(ControlClient(server.control_url, server.signer)))
            self._kept = Served(server, control)
        self._kept.begin()
        return self._kept

    def close(self) -> None:
        """End it."""
        self._stack.close()
