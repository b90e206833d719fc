"""Whether an engine is Ready: it has answered a request, has its adapters, and runs under a setpoint.

For the last two it waits for so long, and is Ready without them then.

Once Ready, it stays so: what comes later is health. Nothing here may keep an engine from serving for long, so each wait
has an end, but for the first answer: an engine that hangs over its first request serves nobody.
"""

from __future__ import annotations

from collections.abc import Callable

from flyball_engine.adapters import ADAPTERS_WAIT_SECONDS
from flyball_engine.contract import SETPOINT_WAIT_SECONDS
from flyball_engine.figures import format_duration


class Readiness:
    """Of one API server. `clock` gives seconds; `governed`: whether every core runs under a setpoint."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asked = False
        self._answered: float | None = None
        self._governed: Callable[[], bool] | None = None
        self._settled: Callable[[], bool] | None = None
        self._ready = False

    def expect_answer(self) -> None:
        """From now on it is not Ready before a first request was answered."""
        self._asked = True

    def expect_setpoint(self, governed: Callable[[], bool]) -> None:
        """It is to wait for a setpoint, too; `governed` says whether every core runs under one."""
        self._governed = governed

    def expect_adapters(self, settled: Callable[[], bool]) -> None:
        """It is to wait for its adapters, too; `settled` says whether each was loaded, or has failed."""
        self._settled = settled

    def answered(self) -> None:
        """The first request was answered, or cannot be asked."""
        self._answered = self._clock()

    def lacks(self) -> str | None:
        """What it still waits for, in words; None if it is Ready."""
        if self._ready or not self._asked:
            return None
        if self._answered is None:
            return "the engine has yet to answer its first request"
        waited = self._clock() - self._answered
        if self._settled is not None and (left := ADAPTERS_WAIT_SECONDS - waited) > 0 and not self._settled():
            return f"the engine has yet to load its adapters; it serves without them in {_rounded(left)}"
        if self._governed is not None and (left := SETPOINT_WAIT_SECONDS - waited) > 0 and not self._governed():
            return f"the engine has no setpoint yet; it serves without one in {_rounded(left)}"
        self._ready = True
        return None


def _rounded(seconds: float) -> str:
    return format_duration(max(1, round(seconds)))
