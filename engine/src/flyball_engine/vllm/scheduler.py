"""The governed scheduler: whatever scheduler vLLM chose, with a governor looking on before and after each step.

A subclass is made of the class vLLM returns, so sync and async scheduling stay what they were. The methods only frame
those of the base class: what a step does is vLLM's.
"""

from __future__ import annotations

import functools
import logging
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
        output = base.schedule(self, *args, **kwargs)
        governor.after_schedule(output)
        return output

    def update_from_output(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        result = base.update_from_output(self, scheduler_output, *args, **kwargs)
        if self.flyball is not None:
            self.flyball.after_update(scheduler_output)
        return result

    def finish_requests(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = base.finish_requests(self, *args, **kwargs)
        if self.flyball is not None:
            self.flyball.after_finish()
        return result

    methods = (__init__, schedule, update_from_output, finish_requests)
    return type(f"Governed{base.__name__}", (base,), {method.__name__: method for method in methods})


def _attach(scheduler: Any) -> Governor | None:
    try:
        governor = Governor(scheduler, folder=ensure_state_dir())
    except Exception:  # noqa: BLE001 – plain vLLM is better than none
        _log.exception("Flyball: running as plain vLLM, the scheduler cannot be governed")
        return None
    _log.info("Flyball: governing the %s of engine core %d", type(scheduler).__name__, governor.engine)
    return governor
