"""The general plugin: what vLLM calls in each of its processes before it makes an engine.

It puts the governed scheduler around the one vLLM would use. It gives the engine core two methods that the API server
can call between steps. vLLM loads plugins in the API server, the engine core and every worker, and ends if one raises.
So `register` may run several times, does nothing heavy, and catches everything. Where it cannot do its work, plain vLLM
runs, and `failure` says why.

The governed scheduler is a subclass of the class that vLLM returns, so sync and async scheduling stay what they were.
Its methods only frame those of the base class: what a step does is vLLM's. The API server calls `flyball_apply` and
`flyball_read` by name, as utility calls: they run on the core's own thread between two steps. Arguments and results are
plain types, since vLLM carries them as msgpack.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from flyball_engine.contract import Setpoint
from flyball_engine.log_events import EngineLogEvent, EventLog
from flyball_engine.vllm.attributes import first_lack
from flyball_engine.vllm.compat import STEP
from flyball_engine.vllm.scheduler_adapter import UngovernableError
from flyball_engine.vllm.state_dir import ensure_state_dir
from flyball_engine.vllm.step_hooks import StepHooks

_log = EventLog(__name__)
_MARK: Final = "_flyball_wrapped"


class _Registration:
    """Why this process could not register, if it could not."""

    failure: str | None = None


def failure() -> str | None:
    """Why the governed scheduler could not be put in place in this process; None if it could."""
    return _Registration.failure


def register() -> None:
    """Put it in place: idempotent, never raises. `entry.load` calls it."""
    try:
        ensure_state_dir()
        _expect_readable_steps()
        _wrap_scheduler()
        _extend_core()
    except Exception as error:  # noqa: BLE001 – vLLM would end; plain vLLM is better than none
        _Registration.failure = f"{type(error).__name__}: {error}"
        _log.warning(EngineLogEvent.NOT_GOVERNED, "the plugin could not register: %s", _Registration.failure)


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
            _log.exception(EngineLogEvent.NOT_GOVERNED, "cannot govern %r", chosen)
            return chosen

    setattr(get_scheduler_cls, _MARK, True)
    SchedulerConfig.get_scheduler_cls = get_scheduler_cls


def _extend_core() -> None:
    from vllm.v1.engine.core import EngineCore  # noqa: PLC0415 – as above

    EngineCore.flyball_apply = flyball_apply
    EngineCore.flyball_read = flyball_read


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
        **_followed(base),
    }
    return type(f"Governed{base.__name__}", (base,), methods)


def _followed(base: Any) -> dict[str, Any]:
    """The methods after which our hooks have something to do."""

    @functools.wraps(base.add_request)
    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = base.add_request(self, request, *args, **kwargs)
        if self.flyball is not None:
            self.flyball.received(request)
        return result

    @functools.wraps(base.update_from_output)
    def update_from_output(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = base.update_from_output(self, scheduler_output, *args, **kwargs)
        if self.flyball is not None:
            self.flyball.after_update(scheduler_output)
            self.flyball.refuse_late(outputs)
        return outputs

    @functools.wraps(base.finish_requests)
    def finish_requests(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = base.finish_requests(self, *args, **kwargs)
        if self.flyball is not None:
            self.flyball.after_finish()
        return result

    return {"add_request": add_request, "update_from_output": update_from_output, "finish_requests": finish_requests}


def _attach(scheduler: Any) -> StepHooks | None:
    try:
        hooks = StepHooks(scheduler, folder=ensure_state_dir())
    except Exception:  # noqa: BLE001 – plain vLLM is better than none
        _log.exception(EngineLogEvent.NOT_GOVERNED, "the scheduler cannot be governed")
        return None
    _log.info(EngineLogEvent.GOVERNING, "the %s of engine core %d", type(scheduler).__name__, hooks.engine)
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
