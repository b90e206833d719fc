"""What published config.json files say of a model's shape, with the parameter counts their authors publish.

Each is huggingface.co/<repository>/resolve/main/config.json, cut to what decides the size; counts are the model card's,
or the paper's where named.
"""

from __future__ import annotations

from typing import Any, Final

Config = dict[str, Any]


def llama(hidden: int, width: int, layers: int, heads: int, kv: int, **other: Any) -> Config:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    } | other


#: meta-llama/Meta-Llama-3-8B, -70B; meta-llama/Llama-2-7b-hf; counts: arXiv 2407.21783 table 3, arXiv 2307.09288
LLAMA3_8B: Final = llama(4096, 14336, 32, 32, 8)
LLAMA3_70B: Final = llama(8192, 28672, 80, 64, 8)
LLAMA2_7B: Final = llama(4096, 11008, 32, 32, 32, vocab_size=32000, max_position_embeddings=4096)
#: Qwen/Qwen2.5-7B-Instruct: 7.61B, 6.53B without embeddings; windows switched off
QWEN25_7B: Final = llama(
    3584,
    18944,
    28,
    28,
    4,
    architectures=["Qwen2ForCausalLM"],
    model_type="qwen2",
    vocab_size=152064,
    max_position_embeddings=32768,
    sliding_window=131072,
    use_sliding_window=False,
    max_window_layers=28,
)
#: Qwen/Qwen3-8B: 8.2B; 6.95B without embeddings
QWEN3_8B: Final = llama(
    4096,
    12288,
    36,
    32,
    8,
    architectures=["Qwen3ForCausalLM"],
    model_type="qwen3",
    head_dim=128,
    vocab_size=151936,
    max_position_embeddings=40960,
    sliding_window=None,
    use_sliding_window=False,
)
#: Qwen/Qwen3-30B-A3B: 30.5B, 3.3B active
QWEN3_30B: Final = QWEN3_8B | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
#: Qwen/Qwen1.5-MoE-A2.7B: 14.3B, 2.7B active
QWEN15_MOE: Final = llama(
    2048,
    5632,
    24,
    16,
    16,
    architectures=["Qwen2MoeForCausalLM"],
    model_type="qwen2_moe",
    vocab_size=151936,
    moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632,
    num_experts=60,
    num_experts_per_tok=4,
    decoder_sparse_step=1,
    sliding_window=32768,
    use_sliding_window=False,
)
#: mistralai/Mistral-7B-v0.1: 7.24B (arXiv 2310.06825), every layer with a window of 4096
MISTRAL_7B: Final = llama(
    4096,
    14336,
    32,
    32,
    8,
    architectures=["MistralForCausalLM"],
    model_type="mistral",
    vocab_size=32000,
    max_position_embeddings=32768,
    sliding_window=4096,
)
#: mistralai/Mixtral-8x7B-v0.1: 46.7B, 12.9B active (arXiv 2401.04088)
MIXTRAL: Final = MISTRAL_7B | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "sliding_window": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
#: google/gemma-2-9b: 9.24B (arXiv 2408.00118 table 2), every other layer with a window of 4096
GEMMA2_9B: Final = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "num_hidden_layers": 42,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "torch_dtype": "float32",
}
#: google/gemma-3-27b-it: 25.6B + 1.4B embeddings, the language model (arXiv 2503.19786 table 1); five of six layers
#: have a window of 1024; the published config leaves vocabulary and context to the family's defaults
GEMMA3_27B: Final[Config] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"model_type": "siglip_vision_model"},
}
#: microsoft/Phi-3-mini-4k-instruct: 3.8B (arXiv 2404.14219); microsoft/phi-2: 2.7B
PHI3_MINI: Final = llama(
    3072,
    8192,
    32,
    32,
    32,
    architectures=["Phi3ForCausalLM"],
    model_type="phi3",
    vocab_size=32064,
    max_position_embeddings=4096,
    sliding_window=2047,
)
PHI2: Final = llama(
    2560,
    10240,
    32,
    32,
    32,
    architectures=["PhiForCausalLM"],
    model_type="phi",
    vocab_size=51200,
    max_position_embeddings=2048,
    torch_dtype="float16",
)
#: openai/gpt-oss-20b: 20.9B, 3.6B active (model card, table 1); every other layer with a window of 128; MXFP4 experts
GPT_OSS_20B: Final = llama(
    2880,
    2880,
    24,
    64,
    8,
    architectures=["GptOssForCausalLM"],
    model_type="gpt_oss",
    head_dim=64,
    vocab_size=201088,
    max_position_embeddings=131072,
    num_local_experts=32,
    num_experts_per_tok=4,
    sliding_window=128,
    layer_types=["sliding_attention", "full_attention"] * 12,
    quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
)
#: deepseek-ai/DeepSeek-V3: 671B, 37B active (arXiv 2412.19437); fp8 in blocks of 128
DEEPSEEK_V3: Final = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
#: deepseek-ai/DeepSeek-V2-Lite: 15.7B, 2.4B active (arXiv 2405.04434 appendix B); queries not compressed
DEEPSEEK_V2_LITE: Final = DEEPSEEK_V3 | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "q_lora_rank": None,
    "vocab_size": 102400,
    "quantization_config": None,
}
#: openai-community/gpt2: 124M; its config says no dtype
GPT2: Final = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
#: bigcode/starcoder: 15.5B (arXiv 2305.06161), multi-query
STARCODER: Final = {
    "architectures": ["GPTBigCodeForCausalLM"],
    "model_type": "gpt_bigcode",
    "n_embd": 6144,
    "n_head": 48,
    "n_inner": 24576,
    "n_layer": 40,
    "n_positions": 8192,
    "multi_query": True,
    "vocab_size": 49152,
    "torch_dtype": "float32",
}
#: facebook/opt-125m: 125M (arXiv 2205.01068); EleutherAI/pythia-6.9b: 6,857,302,016 (its model card)
OPT_125M: Final = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 768,
    "ffn_dim": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "max_position_embeddings": 2048,
    "vocab_size": 50272,
    "word_embed_proj_dim": 768,
    "torch_dtype": "float16",
}
PYTHIA_69B: Final = {
    "architectures": ["GPTNeoXForCausalLM"],
    "model_type": "gpt_neox",
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "max_position_embeddings": 2048,
    "vocab_size": 50432,
    "torch_dtype": "float16",
}

#: Config, parameters, and active ones where published.
PUBLISHED: Final[dict[str, tuple[Config, float, float | None]]] = {
    "Llama-3-8B": (LLAMA3_8B, 8.03e9, None),
    "Llama-3-70B": (LLAMA3_70B, 70.6e9, None),
    "Llama-2-7B": (LLAMA2_7B, 6.74e9, None),
    "Qwen2.5-7B": (QWEN25_7B, 7.61e9, None),
    "Qwen3-8B": (QWEN3_8B, 8.2e9, None),
    "Qwen3-30B-A3B": (QWEN3_30B, 30.5e9, 3.3e9),
    "Qwen1.5-MoE-A2.7B": (QWEN15_MOE, 14.3e9, 2.7e9),
    "Mistral-7B": (MISTRAL_7B, 7.24e9, None),
    "Mixtral-8x7B": (MIXTRAL, 46.7e9, 12.9e9),
    "Gemma-2-9B": (GEMMA2_9B, 9.24e9, None),
    "Gemma-3-27B": (GEMMA3_27B, 25.6e9 + 1.416e9, None),
    "Phi-3-mini": (PHI3_MINI, 3.8e9, None),
    "phi-2": (PHI2, 2.78e9, None),
    "gpt-oss-20b": (GPT_OSS_20B, 20.91e9, 3.61e9),
    "DeepSeek-V3": (DEEPSEEK_V3, 671e9, 37e9),
    "DeepSeek-V2-Lite": (DEEPSEEK_V2_LITE, 15.7e9, 2.4e9),
    "GPT-2": (GPT2, 124.4e6, None),
    "StarCoder": (STARCODER, 15.5e9, None),
    "OPT-125M": (OPT_125M, 125.2e6, None),
    "Pythia-6.9B": (PYTHIA_69B, 6_857_302_016, None),
}
