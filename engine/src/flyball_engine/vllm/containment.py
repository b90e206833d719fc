"""Keeps our faults out of vLLM's step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from flyball_engine.log_events import EngineLogEvent, EventLog

_log = EventLog(__name__)


class Governs(Protocol):
    """What governs an engine core, and may give that up."""

    governing: bool

    def give_up(self) -> None:
        """Restore the start values and govern no more. Never raises."""
        ...


_G = TypeVar("_G", bound=Governs)
_P = ParamSpec("_P")


def contained(method: Callable[Concatenate[_G, _P], None]) -> Callable[Concatenate[_G, _P], None]:
    """Let no fault of ours reach vLLM's step: give up governing instead."""

    def kept_in(self: _G, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if not self.governing:
            return
        try:
            method(self, *args, **kwargs)
        except Exception:  # noqa: BLE001 – see above
            _log.exception(EngineLogEvent.GOVERNING_ENDED, "a fault in %s; start values hold", method.__name__)
            self.give_up()

    functools.update_wrapper(kept_in, method)
    return kept_in
