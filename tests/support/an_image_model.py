"""The image model that vLLM's tests of its scheduler name, as far as a scheduler asks it anything.

vLLM's own class of that name cannot be loaded without torchvision, and asks the model hub for a processor. A scheduler
asks a model for one thing: how many tokens an image has at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from vllm.model_executor.models.interfaces import SupportsMultiModal
from vllm.model_executor.models.registry import ModelRegistry
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import BaseProcessingInfo

#: Of LLaVA 1.5: 336 pixels in patches of 14, squared.
IMAGE_TOKENS = 576


class _Info(BaseProcessingInfo):  # type: ignore[misc] # vLLM is not in the development environment
    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {"image": None}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        return {"image": IMAGE_TOKENS}


class _Processor:
    def __init__(self, info: _Info, _: Any, **kwargs: Any) -> None:
        self.info = info


class LlavaForConditionalGeneration(nn.Module, SupportsMultiModal):  # type: ignore[misc] # as above
    """It makes text of text and images, and computes nothing."""

    def __init__(self, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()

    def embed_input_ids(self, input_ids: Any) -> Any: ...

    def forward(self, input_ids: Any, positions: Any) -> Any: ...

    def compute_logits(self, hidden_states: Any) -> Any: ...


def register() -> None:
    """From now on the name means this one."""
    made: Any = MULTIMODAL_REGISTRY.register_processor(_Processor, info=_Info, dummy_inputs=lambda _: None)
    ModelRegistry.register_model("LlavaForConditionalGeneration", made(LlavaForConditionalGeneration))
