"""The two methods that the plugin adds to vLLM's engine core.

The API server calls them by name as utility calls: they run on the core's own thread between two steps. Arguments and
results are plain types, since vLLM carries them as msgpack.
"""

from __future__ import annotations

from typing import Any

from flyball_engine.contract import Setpoint
from flyball_engine.vllm.step_hooks import StepHooks


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
