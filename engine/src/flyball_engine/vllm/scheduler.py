"""The governed scheduler, with our hooks before and after each step, and what the engine core is asked between steps.

A subclass is made of the class vLLM returns, so sync and async scheduling stay what they were. The methods only frame
those of the base class: what a step does is vLLM's.

The API server calls `flyball_apply` and `flyball_read` by name, as utility calls: they run on the core's own thread
between two steps. Arguments and results are plain types, since vLLM carries them as msgpack.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from flyball_engine.contract import Setpoint
from flyball_engine.vllm.state_dir import ensure_state_dir
from flyball_engine.vllm.step_hooks import StepHooks

_log = logging.getLogger(__name__)


@functools.cache
def governed_class(base: type[Any]) -> type[Any]:
    """A subclass of vLLM's scheduler class `base` with our hooks; raises TypeError if it is no class."""
    if not isinstance(base, type):
        raise TypeError(f"the scheduler {base!r} is no class")

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 – it becomes a class's
        base.__init__(self, *args, **kwargs)
        self.flyball = _attach(self)

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        hooks = self.flyball
        if hooks is None:
            return base.schedule(self, *args, **kwargs)
        hooks.before_schedule()
        try:
            output = base.schedule(self, *args, **kwargs)
        except BaseException:
            hooks.abandoned()
            raise
        hooks.after_schedule(output)
        return output

    methods = {
        # For what is made past the constructor, as some of vLLM's own tests do.
        "flyball": None,
        "__init__": __init__,
        "schedule": schedule,
        "add_request": _followed(base.add_request, lambda hooks, request, _: hooks.received(request)),
        "update_from_output": _followed(base.update_from_output, _updated),
        "finish_requests": _followed(base.finish_requests, lambda hooks, *_: hooks.after_finish()),
    }
    return type(f"Governed{base.__name__}", (base,), methods)


def _updated(hooks: StepHooks, output: Any, outputs: Any) -> None:
    hooks.after_update(output)
    hooks.refuse_late(outputs)


def _followed(method: Any, after: Callable[[StepHooks, Any, Any], None]) -> Any:
    """The scheduler's method, and then what our hooks do with its first argument and its result."""

    @functools.wraps(method)
    def followed(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        if self.flyball is not None:
            after(self.flyball, args[0] if args else next(iter(kwargs.values())), result)
        return result

    return followed


def _attach(scheduler: Any) -> StepHooks | None:
    try:
        hooks = StepHooks(scheduler, folder=ensure_state_dir())
    except Exception:  # noqa: BLE001 – plain vLLM is better than none
        _log.exception("Flyball: running as plain vLLM, the scheduler cannot be governed")
        return None
    _log.info("Flyball: governing the %s of engine core %d", type(scheduler).__name__, hooks.engine)
    return hooks


def flyball_apply(core: Any, setpoint: str) -> dict[str, int | None]:
    """Apply a setpoint, given as JSON; answers with the generation that is applied now. Raises without hooks."""
    hooks = _hooks(core)
    hooks.apply(Setpoint.model_validate_json(setpoint))
    return _echo(hooks)


def flyball_read(core: Any) -> dict[str, int | None]:
    """Look at the clock and publish; answers with the generation that is applied now. Raises without hooks."""
    hooks = _hooks(core)
    hooks.touch()
    return _echo(hooks)


def _hooks(core: Any) -> StepHooks:
    hooks: StepHooks | None = getattr(core.scheduler, "flyball", None)
    if hooks is None:
        raise RuntimeError("this engine core runs without Flyball's scheduler")
    return hooks


def _echo(hooks: StepHooks) -> dict[str, int | None]:
    applied = hooks.applied
    return {
        "engine": hooks.engine,
        "epoch": applied.epoch if applied else None,
        "generation": applied.generation if applied else None,
    }
