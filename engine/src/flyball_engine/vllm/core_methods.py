"""The two methods that the plugin adds to vLLM's engine core.

The API server calls them by name as utility calls: they run on the core's own thread between two steps. Arguments and
results are plain types, since vLLM carries them as msgpack.
"""

from __future__ import annotations

from typing import Any

from flyball_engine.contract import Setpoint
from flyball_engine.vllm.governor import Governor


def flyball_apply(core: Any, setpoint: str) -> dict[str, int | None]:
    """Apply a setpoint, given as JSON; answers with the generation that is applied now. Raises without a governor."""
    governor = _governor(core)
    governor.apply(Setpoint.model_validate_json(setpoint))
    return _echo(governor)


def flyball_read(core: Any) -> dict[str, int | None]:
    """Look at the clock and publish; answers with the generation that is applied now. Raises without a governor."""
    governor = _governor(core)
    governor.touch()
    return _echo(governor)


def _governor(core: Any) -> Governor:
    governor: Governor | None = getattr(core.scheduler, "flyball", None)
    if governor is None:
        raise RuntimeError("this engine core runs without Flyball's scheduler")
    return governor


def _echo(governor: Governor) -> dict[str, int | None]:
    applied = governor.applied
    return {
        "engine": governor.engine,
        "epoch": applied.epoch if applied else None,
        "generation": applied.generation if applied else None,
    }
