"""The governed scheduler: whatever scheduler vLLM chose, with a governor looking on before and after each step.

A subclass is made of the class vLLM returns, so sync and async scheduling stay what they were. The methods only frame
those of the base class: what a step does is vLLM's.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from flyball_engine.vllm.governor import Governor
from flyball_engine.vllm.state_dir import ensure_state_dir

_log = logging.getLogger(__name__)


@functools.cache
def governed_class(base: type[Any]) -> type[Any]:
    """A subclass of vLLM's scheduler class `base` that a governor looks after; raises TypeError if it is no class."""
    if not isinstance(base, type):
        raise TypeError(f"the scheduler {base!r} is no class")

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 – it becomes a class's
        base.__init__(self, *args, **kwargs)
        self.flyball = _attach(self)

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        governor = self.flyball
        if governor is None:
            return base.schedule(self, *args, **kwargs)
        governor.before_schedule()
        try:
            output = base.schedule(self, *args, **kwargs)
        except BaseException:
            governor.abandoned()
            raise
        governor.after_schedule(output)
        return output

    methods = {
        # For what is made past the constructor, as some of vLLM's own tests do.
        "flyball": None,
        "__init__": __init__,
        "schedule": schedule,
        "add_request": _followed(base.add_request, lambda governor, request, _: governor.received(request)),
        "update_from_output": _followed(base.update_from_output, _updated),
        "finish_requests": _followed(base.finish_requests, lambda governor, *_: governor.after_finish()),
    }
    return type(f"Governed{base.__name__}", (base,), methods)


def _updated(governor: Governor, output: Any, outputs: Any) -> None:
    governor.after_update(output)
    governor.refuse_late(outputs)


def _followed(method: Any, after: Callable[[Governor, Any, Any], None]) -> Any:
    """The scheduler's method, and then what the governor does with its first argument and its result."""

    @functools.wraps(method)
    def followed(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        if self.flyball is not None:
            after(self.flyball, args[0] if args else next(iter(kwargs.values())), result)
        return result

    return followed


def _attach(scheduler: Any) -> Governor | None:
    try:
        governor = Governor(scheduler, folder=ensure_state_dir())
    except Exception:  # noqa: BLE001 – plain vLLM is better than none
        _log.exception("Flyball: running as plain vLLM, the scheduler cannot be governed")
        return None
    _log.info("Flyball: governing the %s of engine core %d", type(scheduler).__name__, governor.engine)
    return governor
