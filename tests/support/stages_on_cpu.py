"""vLLM's CPU runner makes the buffers between stages only where it compiles: this makes them before the first step.

vLLM 0.32; its GPU runner makes them when it profiles memory. Loaded by vLLM as a plugin of its own.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Let the runner profile, as on other devices, once its cache is there."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner  # noqa: PLC0415

    initialize = CPUModelRunner.initialize_kv_cache

    def with_buffers(self: Any, *args: Any, **given: Any) -> None:
        initialize(self, *args, **given)
        self.profile_run()

    CPUModelRunner.initialize_kv_cache = with_buffers
