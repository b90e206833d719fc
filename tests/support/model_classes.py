"""vLLM looks a model's class up in a process of its own, in which it loads itself; it can be had without."""

from __future__ import annotations

from vllm.model_executor.models.registry import ModelRegistry


def look_up_here(architecture: str) -> None:
    """Look the class up in this process."""
    model = ModelRegistry.models[architecture]
    if hasattr(model, "module_name"):
        ModelRegistry.register_model(architecture, model.load_model_cls())
