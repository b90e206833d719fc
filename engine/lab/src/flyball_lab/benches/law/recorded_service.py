"""Whether a tuner with another constant decides the same, without the simulation.

A run is simulated once, and its tuner's calls to the engines are kept with their answers. Another tuner is then given
the same observations and answers. While it makes the same calls, its engines would be in the same state, so that the
answers are theirs, too. If all its calls are the same, its run is the recorded one, to the digit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flyball_engine.contract import ReadBack, Setpoint
from flyball_lab.benches.law.tuned_service import Reached, TunedService
from flyball_lab.harness.manifests import Object
from flyball_operator.engines.client import Acknowledged, Address, Answer
from flyball_operator.engines.errors import EngineError, UnreachableError
from flyball_operator.tuning.observe.signals import Attainment, Observation
from flyball_operator.tuning.ports import EnginePod


@dataclass(frozen=True)
class Call:
    """Something that a tuner asked for, and the answer or error that it got."""

    asked: tuple[Any, ...]
    answer: Any


@dataclass(frozen=True)
class Act:
    """A tick or, where nothing was `seen`, a watch, with the calls that it made."""

    now: float
    seen: tuple[Observation, Attainment] | None
    calls: list[Call] = field(default_factory=list)


class RecordedService(TunedService):
    """Keeps what its tuner was given and asked for."""

    def __init__(self, service: Object) -> None:
        super().__init__(service)
        self._manifest = service
        self._acts: list[Act] = []

    def begin(self, engines: Reached, now: float) -> None:
        """As any service."""
        self._acts.append(Act(now, None))
        super().begin(_Recording(engines, self._acts), now)

    def tick(self, now: float, observation: Observation, attainment: Attainment) -> None:
        """As any service."""
        self._acts.append(Act(now, (observation, attainment)))
        super().tick(now, observation, attainment)

    def watch(self, now: float) -> None:
        """As any service."""
        self._acts.append(Act(now, None))
        super().watch(now)

    def same(self) -> bool:
        """Whether a tuner with the constants that are in force now makes the same calls."""
        engines, other = _Recorded(), TunedService(self._manifest)
        began, *acts = self._acts
        try:
            engines.expect(began)
            other.begin(engines, began.now)
            for act in acts:
                engines.expect(act)
                if act.seen is None:
                    other.watch(act.now)
                else:
                    other.tick(act.now, *act.seen)
                if not engines.as_expected:
                    return False
        finally:
            other.end()
        return True


class _Recording:
    """Engines whose calls are kept with the newest act."""

    def __init__(self, engines: Reached, acts: Sequence[Act]) -> None:
        self._engines, self._acts = engines, acts

    def pods(self) -> Sequence[EnginePod]:
        answer = self._engines.pods()
        self._keep(("pods",), answer)
        return answer

    async def read(self, address: Address) -> ReadBack:
        return await self._kept(("read", address), self._engines.read(address))

    async def read_state(self, address: Address) -> ReadBack:
        return await self._kept(("read_state", address), self._engines.read_state(address))

    async def write(self, address: Address, setpoint: Setpoint) -> ReadBack:
        return await self._kept(("write", address, setpoint), self._engines.write(address, setpoint))

    async def timed(self, address: Address, ask: Callable[[Address], Awaitable[ReadBack]]) -> Answer:
        return await self._engines.timed(address, ask)

    async def _kept(self, asked: tuple[Any, ...], answered: Awaitable[ReadBack]) -> ReadBack:
        try:
            answer = await answered
        except EngineError as error:
            self._keep(asked, error)
            raise
        self._keep(asked, answer)
        return answer

    def _keep(self, asked: tuple[Any, ...], answer: object) -> None:
        self._acts[-1].calls.append(Call(asked, answer))


class _Recorded:
    """Gives the answers that were kept, as long as the calls are those that were expected."""

    def __init__(self) -> None:
        self._expected: deque[Call] = deque()
        self._another = False

    @property
    def as_expected(self) -> bool:
        """Whether the calls of an act that has ended are those that were expected of it."""
        return not self._another and not self._expected

    def expect(self, act: Act) -> None:
        self._expected.extend(act.calls)

    def pods(self) -> Sequence[EnginePod]:
        answer: Sequence[EnginePod] = self._answer("pods")
        return answer

    async def read(self, address: Address) -> ReadBack:
        return self._read_back("read", address)

    async def read_state(self, address: Address) -> ReadBack:
        return self._read_back("read_state", address)

    async def write(self, address: Address, setpoint: Setpoint) -> ReadBack:
        return self._read_back("write", address, setpoint)

    async def timed(self, address: Address, ask: Callable[[Address], Awaitable[ReadBack]]) -> Answer:
        try:
            return Acknowledged(await ask(address), 0.0)
        except EngineError as error:
            return error

    def _read_back(self, *asked: object) -> ReadBack:
        answer: ReadBack = self._answer(*asked)
        return answer

    def _answer(self, *asked: object) -> Any:
        if self._another or not self._expected or self._expected[0].asked != asked:
            self._another = True
            if asked == ("pods",):
                return []
            raise UnreachableError("another call than the recorded one")
        answer = self._expected.popleft().answer
        if isinstance(answer, EngineError):
            raise answer
        return answer
