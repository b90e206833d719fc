"""The control port of the exercised engine: settings before each point, and at the end what was in force before.

One writer at a time: whoever else writes (an operator that tunes, another exercise) would make the points mean
something else, so the generation is read back after each point, and a foreign one ends the run.
"""

from __future__ import annotations

import math
import time
from typing import Final

from flyball_engine.contract import SETPOINT_PATH, Batching, Generation, ReadBack, Setpoint, StrategyType
from flyball_engine.control_port import ForeignAnswerError, answer_of, signed, unconfirmed
from flyball_engine.knobs import Bucketed, Continuous, Dynamic, Static, Strategy
from flyball_engine.signing import Signer
from flyball_lab.benchmark.errors import ControlError, OptionError
from flyball_lab.benchmark.measurements import EngineSample
from flyball_lab.benchmark.points import EngineSetting
from flyball_lab.benchmark.web import NoAnswerError, ask

READ_SECONDS: Final = 5.0
#: A write waits for the step in flight; the port itself gives up after 30 s.
WRITE_SECONDS: Final = 40.0
#: Where nothing was in force before, the engine is told its start values for so long, the shortest there is.
START_VALUES_SECONDS: Final = 60.0


class ControlPort:
    """One engine's control port."""

    def __init__(self, url: str) -> None:
        self.url = url

    def read(self, *, seconds: float = READ_SECONDS) -> ReadBack:
        """What the engine applies. Raises ControlError."""
        try:
            return self._told(*ask(f"{self.url}{SETPOINT_PATH}", seconds=seconds))
        except NoAnswerError as error:
            raise ControlError(f"--control: {self.url} does not answer: {error}") from error

    def write(self, setpoint: Setpoint, signer: Signer) -> ReadBack:
        """Apply a setpoint in every core. Raises ControlError."""
        body, headers = signed(setpoint, signer, now=time.time())
        try:
            answer = ask(f"{self.url}{SETPOINT_PATH}", method="PUT", body=body, headers=headers, seconds=WRITE_SECONDS)
        except NoAnswerError as error:
            raise ControlError(f"--control: {self.url} does not answer a setpoint: {error}") from error
        read_back = self._told(*answer)
        wanted = Generation(epoch=setpoint.epoch, generation=setpoint.generation)
        if (problem := unconfirmed(read_back, wanted)) is not None:
            raise ControlError(f"--control: {self.url}: {problem}")
        return read_back

    def sample(self) -> EngineSample | None:
        """What all cores do now; None if it cannot be read."""
        try:
            read_back = self.read()
        except ControlError:
            return None
        if read_back.unknown or not read_back.cores:
            return None
        slots = [core.effective.max_num_active_seqs for core in read_back.cores]
        return EngineSample(
            running=sum(core.running for core in read_back.cores),
            waiting=sum(core.waiting for core in read_back.cores),
            slots=None if None in slots else sum(slot or 0 for slot in slots),
        )

    def _told(self, status: int, body: bytes) -> ReadBack:
        try:
            answer = answer_of(status, body)
        except ForeignAnswerError as error:
            raise ControlError(f"--control: {self.url} is no control port of Flyball's: {error}") from error
        if isinstance(answer, ReadBack):
            return answer
        raise ControlError(f"--control: {self.url} refuses the setpoint ({answer.error.value}): {answer.message}")


class Switch:
    """Moves an engine from setting to setting, and back. `prior` is what was read before anything was written."""

    def __init__(self, port: ControlPort, signer: Signer, prior: ReadBack) -> None:
        self._port = port
        self._signer = signer
        self._service = prior.service
        self._prior = prior.accepted
        orders = [core.applied.order() for core in prior.cores if core.applied is not None]
        if prior.accepted is not None:
            orders.append(prior.accepted.order())
        self._epoch, self._generation = max(orders, default=(0, 0))
        self._cores = len(prior.cores) + len(prior.unknown)
        self._ceiling = min(core.ceilings.max_num_seqs for core in prior.cores)
        self._wrote = False

    def prove(self) -> None:
        """Write what is in force already, so that a key that is not accepted is known before anything is measured."""
        self._wrote = True
        self._write(self._next())

    def use(self, setting: EngineSetting, *, concurrency: int | None) -> None:
        """Put a setting in force for so many clients; None is an open loop. Raises ControlError."""
        # A write that went unanswered may have landed: from here on there is something to put back.
        self._wrote = True
        prior = self._next()
        self._write(
            setpoint_of(setting, concurrency=concurrency, prior=prior, cores=self._cores, ceiling=self._ceiling)
        )

    def check(self) -> None:
        """Raise ControlError unless every core still applies what was written last."""
        if not self._port.read().confirmed(Generation(epoch=self._epoch, generation=self._generation)):
            raise ControlError(
                f"--control: somebody else wrote a setpoint to {self._port.url} during the point, or the engine went "
                "back to its start values; nobody may tune it meanwhile (scale Flyball's operator to 0)"
            )

    def restore(self) -> None:
        """Put back what was in force before; does nothing if nothing was written. Raises ControlError."""
        if not self._wrote:
            return
        self._write(self._next())
        self._wrote = False

    def _next(self) -> Setpoint:
        """What was in force before, as the next generation."""
        self._generation += 1
        if self._prior is not None:
            return self._prior.model_copy(update={"epoch": self._epoch, "generation": self._generation})
        return Setpoint(
            service=self._service,
            epoch=self._epoch,
            generation=self._generation,
            expires_seconds=START_VALUES_SECONDS,
        )

    def _write(self, setpoint: Setpoint) -> None:
        self._port.write(setpoint, self._signer)


def setpoint_of(
    setting: EngineSetting, *, concurrency: int | None, prior: Setpoint, cores: int, ceiling: int
) -> Setpoint:
    """`prior` with this setting: so many requests run together at most under every strategy, as far as the engine can.

    What a setpoint says holds for each of the cores, whose `ceiling` is one core's: each is told its part, rounded up.
    In an open loop (`concurrency` None) as many as the engine can, unless the setting names a batch size.
    Gate and on-time order are off: they go by first tokens of requests that join in vLLM's own way.
    """
    together = setting.batch_size or concurrency
    size = ceiling if together is None else min(math.ceil(together / cores), ceiling)
    strategies: dict[StrategyType, Strategy] = {
        StrategyType.CONTINUOUS: Continuous(),
        StrategyType.STATIC: Static(batch_size=size),
        StrategyType.DYNAMIC: Dynamic(batch_size=size, max_delay_seconds=setting.max_delay_seconds or 0.0),
        StrategyType.BUCKETED: Bucketed(batch_size=size, sorted=True),
    }
    batching = Batching(strategy=strategies[setting.strategy] if setting.strategy else None)
    limits = prior.limits.model_copy(update={"max_num_active_seqs": size})
    return prior.model_copy(
        update={
            "batching": batching,
            "limits": limits,
            "shed": None,
            "on_time": None,
            "expires_seconds": 4 * 3_600.0,
        }
    )


def check_strategies(read_back: ReadBack, strategies: tuple[StrategyType, ...]) -> None:
    """Raise OptionError where the engine says that it cannot do one of them."""
    refused = {
        strategy: reason
        for strategy in StrategyType
        for knob, reason in read_back.unsupported.items()
        if knob.value == f"batching.strategy.{strategy.value}"
    }
    accepted = ", ".join(strategy.value for strategy in StrategyType if strategy not in refused)
    for strategy in strategies:
        if strategy in refused:
            raise OptionError("--strategies", f"this engine has no {strategy.value}: {refused[strategy]}", accepted)
