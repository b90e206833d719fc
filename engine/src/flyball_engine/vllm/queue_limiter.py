"""Moves vLLM's own limits of its queue, in the API server: what they refuse, vLLM refuses, with its own 503.

vLLM asks for them at each request, before an answer begins and once more before it is sent to a core. So they are put
in place right before it asks: an expired setpoint holds for nobody. Other parts of vLLM share the configuration that
they stand in; the API server gets a copy of its own.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any, Final

from flyball_engine.contract import LARGEST_LIMIT, AnyKnob, QueueKnob, QueueLimits, Setpoint
from flyball_engine.vllm.means import queue_lacks
from flyball_engine.vllm.wrapping import original, wrap

_CHECK: Final = "check_admission"


class QueueLimiter:
    """The limits of the queue, at one of its API servers. Runs in the server's event loop alone.

    `unsupported`: the limits that this vLLM lacks. `refused` is called with each request that vLLM refuses by them.
    """

    def __init__(
        self, client: Any, *, refused: Callable[[], None], clock: Callable[[], float], servers: int = 1
    ) -> None:
        """Take the limits over from `client`, vLLM's AsyncLLM; what they are now are the start values.

        `servers`: API servers of the engine. VLLM counts what each of them sent, so each holds its part of a limit,
        rounded up.
        """
        self._servers = servers
        config = getattr(client, "scheduler_config", None)
        self.unsupported: dict[AnyKnob, str] = queue_lacks(
            functools.partial(hasattr, client), functools.partial(hasattr, config)
        )
        self._clock = clock
        self._wanted = QueueLimits()
        self._expires = -math.inf
        self._start: dict[str, int | None] = {}
        if set(self.unsupported) == set(QueueKnob):
            return
        self._config = client.scheduler_config = copy.copy(config)
        names = (knob.name.lower() for knob in QueueKnob if knob not in self.unsupported)
        self._start = {name: getattr(config, name) for name in names}
        _listen(type(client), self, refused)

    def follow(self, setpoint: Setpoint) -> None:
        """Hold the limits of this setpoint until it expires; those it leaves out have their start values."""
        self._wanted = setpoint.queue
        self._expires = self._clock() + setpoint.expires_seconds
        self.hold()

    def limits(self) -> QueueLimits | None:
        """The limits in force, of all API servers; None where there are none to be moved."""
        if not self._start:
            return None
        self.hold()
        start = {
            name: None if value is None else min(LARGEST_LIMIT, value * self._servers)
            for name, value in self._start.items()
        }
        return QueueLimits(**(start | self._given()))

    def hold(self) -> None:
        """Put in place what holds now."""
        parts = {name: math.ceil(value / self._servers) for name, value in self._given().items()}
        for name, value in (self._start | parts).items():
            setattr(self._config, name, value)

    def _given(self) -> dict[str, int]:
        wanted = self._wanted if self._clock() < self._expires else QueueLimits()
        return {name: value for name, value in wanted if value is not None and name in self._start}


def _listen(server: Any, queue_limiter: QueueLimiter, refused: Callable[[], None]) -> None:
    """Have the limits in place whenever vLLM asks for them, and hear of those it refuses."""
    check = original(getattr(server, _CHECK))

    @functools.wraps(check)
    def check_admission(self: Any, *args: Any, **kwargs: Any) -> Any:
        queue_limiter.hold()
        try:
            return check(self, *args, **kwargs)
        except Exception:
            refused()
            raise

    wrap(server, _CHECK, check_admission)
