"""How `flyball size` shows a sizing: text with its arithmetic, JSON with units in the names. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from flyball_engine.figures import figure, format_duration
from flyball_lab.sizing.names import REMOVED, SETTINGS
from flyball_lab.sizing.request import USUAL_UTILIZATION
from flyball_lab.sizing.roofline import Cost
from flyball_lab.sizing.shape import Checkpoint, Heads
from flyball_lab.sizing.size import Sizing, Steps

_WIDTH = 100


def as_text(sizing: Sizing) -> str:
    """Some thirty lines: model, memory, cache, step, ceilings."""
    parts = (_model(sizing), _memory(sizing), _cache(sizing), _step(sizing), _ceilings(sizing))
    return "\n".join(line for part in parts for line in part)


def names_as_text() -> str:
    """One block per setting, then the names that are gone."""
    lines = []
    for row in SETTINGS:
        lines += [row.purpose, f"  vLLM          {row.vllm}", f"  TensorRT-LLM  {row.tensorrt_llm}"]
        lines += [f"  Triton        {row.triton}", f"  SGLang        {row.sglang}"]
    lines += ["", "not in vLLM 0.32, and what to say today"]
    lines += [f"  {row.name:<30} {row.today}" for row in REMOVED]
    return "\n".join(lines)


def as_json(sizing: Sizing) -> dict[str, Any]:
    """Bytes and seconds are those of each device."""
    memory, shape = sizing.memory, sizing.model
    return {
        "architecture": shape.name,
        "device": sizing.device.name,
        "tensor_parallel": sizing.tensor_parallel,
        "context_tokens": sizing.context,
        "dtype": shape.dtype,
        "kv_dtype": sizing.kv_dtype,
        "weights": shape.packing.name,
        "checkpoint": shape.checkpoint.value,
        "notes": list(_notes(sizing)),
        "not_counted": list(shape.left_out),
        "parameters": sizing.parameters,
        "active_parameters": sizing.active_parameters,
        "device_memory_bytes": memory.total,
        "utilization": sizing.utilization,
        "budget_bytes": memory.budget,
        "weight_bytes": memory.weights,
        "activation_bytes": memory.activations,
        "reserve_bytes": memory.reserve,
        "kv_cache_bytes": memory.cache,
        "kv_bytes_per_token": sizing.kv_bytes_per_token,
        "kv_cache_tokens": sizing.kv_tokens,
        "largest_batch_requests": int(sizing.concurrency),
        "step": None if sizing.steps is None else _steps_json(sizing.steps),
        "start": {
            "preset": sizing.preset.name,
            "why": sizing.preset.why,
            "max_num_seqs": sizing.ceilings.seqs,
            "max_num_batched_tokens": sizing.ceilings.tokens,
            "max_model_len": sizing.context,
            "long_prefill_token_threshold": sizing.ceilings.threshold,
            "performance_mode": sizing.preset.mode,
        },
        "spec": _spec(sizing),
    }


def _spec(sizing: Sizing) -> dict[str, Any]:
    """What the start values are in an InferenceService: ceilings are fields of its own there, refused as arguments."""
    return {
        "batching": {"maxNumSeqs": sizing.ceilings.seqs, "maxNumBatchedTokens": sizing.ceilings.tokens},
        "parallelism": {"tensor": sizing.tensor_parallel},
        "engine": {"args": list(_arguments(sizing))},
    }


def _arguments(sizing: Sizing) -> Iterator[str]:
    """What vLLM must be told beside ceilings and devices, for the sizing to hold of it."""
    shape, threshold = sizing.model, sizing.ceilings.threshold
    if sizing.context != shape.longest:
        # Of its own, vLLM takes the model's longest context, and does not start where that does not fit the cache.
        yield f"--max-model-len={sizing.context}"
    yield f"--performance-mode={sizing.preset.mode}"
    if threshold:
        yield f"--long-prefill-token-threshold={threshold}"
    if sizing.kv_dtype != shape.dtype:
        yield f"--kv-cache-dtype={sizing.kv_dtype}"
    if shape.checkpoint is Checkpoint.ON_LOAD:
        yield f"--quantization={shape.packing.on_load}"
    if sizing.utilization != USUAL_UTILIZATION:
        yield f"--gpu-memory-utilization={sizing.utilization:g}"


def _notes(sizing: Sizing) -> Iterator[str]:
    """What the user has to see to."""
    shape = sizing.model
    differs = f"weights in {shape.packing.name}, where the config states {shape.stated}"
    if shape.checkpoint is Checkpoint.ON_LOAD:
        yield f"{differs}: vLLM packs them as it loads them, with --quantization={shape.packing.on_load}"
    elif shape.checkpoint is Checkpoint.OTHER:
        yield f"{differs}: this needs a checkpoint with weights in {shape.packing.name}"


def _steps_json(steps: Steps) -> dict[str, Any]:
    model = steps.model
    return {
        "single_decode_seconds": steps.single.seconds,
        "full_decode_seconds": steps.decode.seconds,
        "full_decode_bound": steps.decode.bound,
        "full_prefill_seconds": steps.prefill.seconds,
        "full_prefill_bound": steps.prefill.bound,
        "model": {
            "t0_seconds": model.t0,
            "h_seconds": model.h,
            "c1_seconds_per_token": model.c1,
            "c2_seconds_per_token": model.c2,
            "beta_seconds_per_decode": model.beta,
            "g_seconds_per_token_squared": model.g,
            "d_seconds_per_kv_token": model.d,
            "kappa_tokens": model.kappa,
        },
    }


def _model(sizing: Sizing) -> Iterator[str]:
    shape = sizing.model
    active = sizing.active_parameters
    sparse = any(layer.experts for layer in shape.layers)
    share = f", {active / 1e9:.2f}B of them per token" if sparse else ""
    packing = "" if shape.packing.name == "bf16" else f", weights in {shape.packing.name}"
    yield f"{shape.name}: {sizing.parameters / 1e9:.2f}B parameters{share}; {shape.dtype}{packing}"
    if shape.left_out:
        yield f"  not counted: {', '.join(shape.left_out)}"
    yield from (f"  {note}" for note in _notes(sizing))


def _memory(sizing: Sizing) -> Iterator[str]:
    memory, ceilings = sizing.memory, sizing.ceilings
    device = sizing.device.name
    count = "" if sizing.tensor_parallel == 1 else f", of which there are {sizing.tensor_parallel}"
    yield f"memory of each {device}{count}" if device != "memory" else f"memory of each device{count}"
    yield _row(f"{_size(memory.total)} × {sizing.utilization:g}", memory.budget)
    mean = 8 * memory.weights * sizing.tensor_parallel / sizing.parameters
    split = "" if sizing.tensor_parallel == 1 else f" ÷ {sizing.tensor_parallel}"
    yield _row(f"− weights: {sizing.parameters:,} × {figure(mean)} bits{split}", memory.weights)
    yield _row(f"− activations: {ceilings.tokens:,} tokens, {_requests(ceilings.seqs)} sampled", memory.activations)
    yield _row("− runtime: context, libraries, graphs", memory.reserve)
    yield _row("= KV cache", memory.cache)


def _cache(sizing: Sizing) -> Iterator[str]:
    shape, number = sizing.model, sizing.kv_number_bytes
    kind = shape.attention
    if isinstance(kind, Heads):
        heads = sizing.cache.layer_bytes // (2 * kind.dim * number)
        product = f"2 (key, value) × {len(shape.layers)} layers × {heads} heads × {kind.dim} × {number} bytes"
    else:
        product = f"({kind.rank} latent + {kind.rope} rotary) × {len(shape.layers)} layers × {number} bytes"
    yield f"KV cache in {sizing.kv_dtype}"
    yield f"  a token: {product} = {sizing.kv_bytes_per_token:,} bytes"
    if shape.windowed:
        windows = ", ".join(str(window) for window in sorted({layer.window or 0 for layer in shape.layers} - {0}))
        yield f"  {shape.windowed} of {len(shape.layers)} layers keep only a window of {windows} tokens"
    yield f"  it holds {sizing.kv_tokens:,} tokens: {sizing.concurrency:.1f} requests of {sizing.context:,}"


def _step(sizing: Sizing) -> Iterator[str]:
    steps = sizing.steps
    if steps is None:
        yield "a step: unknown without --gpu"
        return
    yield "a step at the least, by roofline (kernels measured elsewhere take 1.3 to 1.6 times as long)"
    yield _cost(f"decode of 1 request at {sizing.context:,}", steps.single)
    if sizing.ceilings.seqs > 1:
        yield _cost(f"decode of {_requests(sizing.ceilings.seqs)} at {sizing.context:,}", steps.decode)
    yield _cost(f"prefill of {sizing.ceilings.tokens:,} tokens", steps.prefill)
    yield f"  below {steps.model.kappa} tokens, reading the weights takes longer than multiplying them"


def _ceilings(sizing: Sizing) -> Iterator[str]:
    yield f"start with (preset {sizing.preset.name})"
    yield from _wrapped(sizing.preset.why)
    split = [] if sizing.tensor_parallel == 1 else [f"--tensor-parallel-size={sizing.tensor_parallel}"]
    ceilings = [f"--max-num-seqs={sizing.ceilings.seqs}", f"--max-num-batched-tokens={sizing.ceilings.tokens}"]
    arguments = " ".join([*ceilings, *split, *_arguments(sizing)])
    yield from _wrapped(arguments)
    yield "  in an InferenceService:"
    yield "    spec:"
    # A JSON value is a YAML value.
    yield from (f"      {name}: {json.dumps(value)}" for name, value in _spec(sizing).items())


def _wrapped(words: str) -> list[str]:
    """Lines that break between words only: an argument with hyphens stays whole."""
    return textwrap.wrap(words, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def _row(words: str, amount: int) -> str:
    return f"  {words:<60} {_size(amount):>10}"


def _cost(words: str, cost: Cost) -> str:
    parts = f"weights {_time(cost.weights)} | products {_time(cost.compute)}, + attention {_time(cost.attention)}"
    return f"  {words:<34} {_time(cost.seconds):>9}: {parts} ({cost.bound}-bound)"


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _size(amount: int) -> str:
    return f"{amount / 2**30:.2f} GiB"


def _time(seconds: float) -> str:
    return format_duration(seconds, digits=3)
