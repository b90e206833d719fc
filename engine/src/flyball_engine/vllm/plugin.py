"""The general plugin: what vLLM calls in each of its processes before it makes an engine.

It puts the governed scheduler around the one vLLM would use, and gives the engine core two methods that the API server
can call between steps. vLLM loads plugins in the API server, the engine core and every worker, and ends if one raises:
so `register` may run several times, does nothing heavy, and catches everything. Where it cannot do its work, plain vLLM
runs, and `failure` says why.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Final

from flyball_engine.vllm.attributes import first_lack
from flyball_engine.vllm.compat import STEP
from flyball_engine.vllm.scheduler import flyball_apply, flyball_read, governed_class
from flyball_engine.vllm.scheduler_adapter import UngovernableError
from flyball_engine.vllm.state_dir import ensure_state_dir

_log = logging.getLogger(__name__)
_MARK: Final = "_flyball_wrapped"


class _Registration:
    """Why this process could not register, if it could not."""

    failure: str | None = None


def failure() -> str | None:
    """Why the governed scheduler could not be put in place in this process; None if it could."""
    return _Registration.failure


def register() -> None:
    """Entry point `vllm.general_plugins`: idempotent, never raises."""
    try:
        _log_with_vllm()
        ensure_state_dir()
        _expect_readable_steps()
        _wrap_scheduler()
        _extend_core()
    except Exception as error:  # noqa: BLE001 – vLLM would end; plain vLLM is better than none
        _Registration.failure = f"{type(error).__name__}: {error}"
        _log.warning("Flyball: running as plain vLLM, the plugin could not register: %s", _Registration.failure)


def _log_with_vllm() -> None:
    """Give our loggers vLLM's handlers and level: its configuration knows only its own."""
    ours, theirs = logging.getLogger("flyball_engine"), logging.getLogger("vllm")
    ours.handlers, ours.propagate = theirs.handlers, theirs.propagate
    ours.setLevel(theirs.level)


def _expect_readable_steps() -> None:
    """Raises UngovernableError if the step hooks could not read a request or a step: no scheduler has one yet."""
    if (lack := first_lack(STEP)) is not None:
        raise UngovernableError(lack)


def _wrap_scheduler() -> None:
    from vllm.config.scheduler import SchedulerConfig  # noqa: PLC0415 – what it imports is none of the plugin's to load early

    original = SchedulerConfig.get_scheduler_cls
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def get_scheduler_cls(config: Any) -> Any:
        chosen = original(config)
        try:
            return governed_class(chosen)
        except Exception:  # noqa: BLE001 – as in `register`
            _log.exception("Flyball: running as plain vLLM, cannot govern %r", chosen)
            return chosen

    setattr(get_scheduler_cls, _MARK, True)
    SchedulerConfig.get_scheduler_cls = get_scheduler_cls


def _extend_core() -> None:
    from vllm.v1.engine.core import EngineCore  # noqa: PLC0415 – as above

    EngineCore.flyball_apply = flyball_apply
    EngineCore.flyball_read = flyball_read
