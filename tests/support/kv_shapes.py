"""Published attention on small models: heads, head sizes, windows and layers as in the originals, everything else cut.

What decides a cache is kept, so that vLLM on a CPU starts an engine of each in a second. Layers are fewer where all are
alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from support.model_configs import (
    DEEPSEEK_V3,
    GEMMA2_9B,
    GEMMA3_27B,
    GPT_OSS_20B,
    LLAMA2_7B,
    LLAMA3_8B,
    MISTRAL_7B,
    PHI2,
    QWEN3_8B,
    STARCODER,
    Config,
)

_SMALL: Final[Config] = {"hidden_size": 256, "intermediate_size": 256, "vocab_size": 1024, "torch_dtype": "bfloat16"}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model, and how it is started; `tokens` is max_num_batched_tokens, `megabytes` the cache's."""

    config: Config
    context: int = 8192
    tokens: int = 1024
    kv_dtype: str = "auto"
    megabytes: int = 512


def _cut(config: Config, **other: object) -> Config:
    return config | _SMALL | {"quantization_config": None} | other


SHAPES: Final = {
    "MHA (Llama 2)": Shape(config=_cut(LLAMA2_7B, num_hidden_layers=2, head_dim=128), context=4096),
    "MHA, heads of 80 (phi-2)": Shape(
        config=_cut(PHI2, num_hidden_layers=4, hidden_size=2560, num_attention_heads=32), context=2048
    ),
    "GQA (Llama 3)": Shape(config=_cut(LLAMA3_8B, num_hidden_layers=4, head_dim=128)),
    "GQA, fp8 (Llama 3)": Shape(config=_cut(LLAMA3_8B, num_hidden_layers=4, head_dim=128), kv_dtype="fp8"),
    "GQA (Qwen 3)": Shape(config=_cut(QWEN3_8B, num_hidden_layers=4)),
    "MQA (StarCoder)": Shape(
        config=STARCODER | {"n_embd": 512, "n_head": 4, "n_inner": 512, "n_layer": 8, "vocab_size": 1024}
    ),
    "MLA (DeepSeek V3)": Shape(
        config=_cut(
            DEEPSEEK_V3,
            num_hidden_layers=6,
            num_attention_heads=8,
            num_key_value_heads=8,
            first_k_dense_replace=6,
            q_lora_rank=64,
        )
    ),
    "windows in all layers (Mistral)": Shape(
        config=_cut(MISTRAL_7B, num_hidden_layers=4, head_dim=128), context=32_768
    ),
    "windows in every other layer (Gemma 2)": Shape(config=_cut(GEMMA2_9B, num_hidden_layers=6)),
    "windows in five of six layers (Gemma 3)": Shape(
        config=_cut(
            GEMMA3_27B["text_config"],
            architectures=["Gemma3ForCausalLM"],
            num_hidden_layers=14,
            num_attention_heads=2,
            num_key_value_heads=1,
        ),
        context=32_768,
    ),
    "small windows in every other layer (gpt-oss)": Shape(
        config=_cut(
            GPT_OSS_20B,
            num_hidden_layers=6,
            layer_types=GPT_OSS_20B["layer_types"][:6],
            num_local_experts=4,
            num_experts_per_tok=2,
        )
    ),
}
