"""What `flyball size` cannot size: a configuration, options, and words of the answer."""

from __future__ import annotations

from typing import Any

from support import model_configs as models
from support.model_configs import Config

GPU = ("--gpu", "H100-SXM")


def llama(**changed: Any) -> Config:
    return {key: value for key, value in (models.LLAMA3_8B | changed).items() if value != "absent"}


WRONG: dict[str, tuple[object, tuple[str, ...], tuple[str, ...]]] = {
    "not JSON": ("{", GPU, ("is not JSON", "config.json")),
    "JSON too deep": ("[" * 100_000, GPU, ("is not JSON",)),
    "not an object": ([1], GPU, ("is not an object",)),
    "no architectures": (llama(architectures="absent"), GPU, ("architectures", "LlamaForCausalLM")),
    "empty architectures": (llama(architectures=[]), GPU, ("architectures",)),
    "a family not sized": (llama(model_type="mamba"), GPU, ("model_type", "'mamba'", "llama, mistral")),
    "text_config no object": (llama(text_config=3), GPU, ("text_config", "an object")),
    "no layers": (llama(num_hidden_layers="absent"), GPU, ("num_hidden_layers", "is missing")),
    "layers below one": (llama(num_hidden_layers=0), GPU, ("num_hidden_layers", "1 to 10000")),
    "a size in words": (llama(hidden_size="large"), GPU, ("hidden_size", "'large'", "whole number")),
    "a size true": (llama(vocab_size=True), GPU, ("vocab_size",)),
    "a fraction": (llama(intermediate_size=2.5), GPU, ("intermediate_size", "2.5")),
    "hidden by heads": (llama(num_attention_heads=30), GPU, ("num_attention_heads", "head_dim")),
    "key heads beyond heads": (llama(num_key_value_heads=64), GPU, ("num_key_value_heads", "1 to 32")),
    "key heads not dividing": (llama(num_key_value_heads=5), GPU, ("num_key_value_heads", "divisor of the 32")),
    "experts beyond count": (
        models.MIXTRAL | {"num_experts_per_tok": 9},
        GPU,
        ("num_experts_per_tok", "1 to 8"),
    ),
    "layer kinds too few": (llama(layer_types=["full_attention"]), GPU, ("layer_types", "each of 32 layers")),
    "layer kinds unknown": (llama(layer_types=["linear_attention"] * 32), GPU, ("layer_types", "sliding_attention")),
    "window missing": (llama(layer_types=["sliding_attention"] * 32), GPU, ("sliding_window", "is missing")),
    "packing unknown": (llama(quantization_config={"quant_method": "exl3"}), GPU, ("quant_method", "--weights")),
    "packing bits": (llama(quantization_config={"quant_method": "gptq", "bits": 5}), GPU, ("bits", "2, 3, 4 or 8")),
    "checkpoint dtype": (llama(torch_dtype="int3"), GPU, ("torch_dtype", "--dtype")),
    "no device": (llama(), (), ("--gpu", "--memory", "H100-SXM")),
    "GPU unknown": (llama(), ("--gpu", "H1000"), ("--gpu", "'H1000'", "H100-SXM, H200")),
    "memory in words": (llama(), ("--memory", "lots"), ("--memory", "80GiB")),
    "memory zero": (llama(), ("--memory", "0GiB"), ("--memory", "0 bytes")),
    "memory without a unit": (llama(), ("--memory", "80"), ("--memory", "'80'", "80 bytes without a unit", "80GiB")),
    "memory below weights": (
        llama(),
        ("--memory", "16GiB"),
        ("--memory", "14.4 GiB", "weights take 15.0 GiB", "--tensor-parallel 2, --weights fp8 or a larger --memory"),
    ),
    "a GPU below weights": (
        models.LLAMA3_70B,
        ("--gpu", "L4"),
        ("--gpu: 20.2 GiB of each device", "weights take 131.4 GiB", "--tensor-parallel 8 or a larger --gpu"),
    ),
    "memory that no option mends": (
        models.DEEPSEEK_V3,
        ("--memory", "1GiB"),
        ("--memory", "a larger --memory: no other option alone"),
    ),
    "a cache a little small": (
        llama(),
        ("--memory", "19GiB"),
        ("--context 7", "--preset latency", "--utilization 0.91", "--kv-dtype fp8", "--tensor-parallel 2"),
    ),
    "width not dividing": (
        llama(num_attention_heads=24, num_key_value_heads=24, hidden_size=3072, intermediate_size=8192),
        (*GPU, "--tensor-parallel", "3"),
        ("--tensor-parallel", "feed-forward parts 8192 wide", "accepted: 1, 2, 4, 8"),
    ),
    "heads not dividing": (llama(), (*GPU, "--tensor-parallel", "3"), ("--tensor-parallel", "1, 2, 4, 8, 16, 32")),
    "no devices": (llama(), (*GPU, "--tensor-parallel", "0"), ("--tensor-parallel", "is 0")),
    "context zero": (llama(), (*GPU, "--context", "0"), ("--context", "1 to 8192")),
    "context too long": (llama(), (*GPU, "--context", "9000"), ("--context", "1 to 8192")),
    "context beyond the cache": (
        llama(max_position_embeddings=10**6),
        ("--memory", "20GiB", "--context", "1000000"),
        ("--context: of 1000000 tokens", "--context 14", "--tensor-parallel 8 or a larger --memory"),
    ),
    "dtype unknown": (llama(), (*GPU, "--dtype", "int8"), ("--dtype", "bfloat16")),
    "cache dtype unknown": (llama(), (*GPU, "--kv-dtype", "int2"), ("--kv-dtype", "fp8")),
    "weights unknown": (llama(), (*GPU, "--weights", "int1"), ("--weights", "awq")),
    "utilization zero": (llama(), (*GPU, "--utilization", "0"), ("--utilization", "at most 1")),
    "utilization no number": (llama(), (*GPU, "--utilization", "nan"), ("--utilization",)),
    "preset unknown": (llama(), (*GPU, "--preset", "fast"), ("--preset", "throughput, latency")),
}
