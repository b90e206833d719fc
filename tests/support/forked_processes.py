"""A vLLM plugin for tests alone: an engine's processes are forked, as vLLM does by itself where no device forbids it.

The CPU platform has each of them load vLLM anew, most of what a start takes on one processor. For servers of tests
that are not about the start.
"""

from __future__ import annotations

import os
from typing import Any


def register() -> None:
    """Entry point `vllm.general_plugins`."""
    from vllm.platforms.cpu import CpuPlatform  # noqa: PLC0415 – only there to be changed

    original = CpuPlatform.check_and_update_config.__func__
    if original.__name__ == "forking":
        return

    def forking(cls: Any, config: Any) -> None:
        original(cls, config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    CpuPlatform.check_and_update_config = classmethod(forking)
