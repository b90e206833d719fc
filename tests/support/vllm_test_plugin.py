"""A vLLM plugin for tests alone, loaded beside Flyball's: what no option of vLLM can bring about.

`FLYBALL_TEST_ASYNC=1` turns asynchronous scheduling on, which the CPU platform turns off and GPUs run with. While the
file `FLYBALL_TEST_NO_FLOORS` exists, the floor under the token limit is gone, so that only the watchdog is left.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def register() -> None:
    """Entry point `vllm.general_plugins`."""
    if os.environ.get("FLYBALL_TEST_ASYNC") == "1":
        _schedule_asynchronously()
    if flag := os.environ.get("FLYBALL_TEST_NO_FLOORS"):
        _make_floors_removable(Path(flag))


def _schedule_asynchronously() -> None:
    from vllm.platforms.cpu import CpuPlatform  # noqa: PLC0415 – only there to be changed

    original = CpuPlatform.check_and_update_config.__func__
    if original.__name__ == "asynchronous":
        return

    def asynchronous(cls: Any, config: Any) -> None:
        original(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(asynchronous)


def _make_floors_removable(flag: Path) -> None:
    from flyball_engine.batching import setpoint_enforcer  # noqa: PLC0415
    from flyball_engine.batching.setpoint_enforcer import Limited  # noqa: PLC0415 – as above

    original = vars(setpoint_enforcer)["token_limit"]
    if original.__name__ == "token_limit_or_not":
        return

    def token_limit_or_not(wanted: int, **batch: Any) -> Limited:
        return Limited(wanted) if flag.exists() else original(wanted, **batch)

    vars(setpoint_enforcer)["token_limit"] = token_limit_or_not
