"""Sizes of published models against published figures."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flyball_lab.sizing.config import read
from flyball_lab.sizing.devices import GIB, GPUS, Device, gpu, plain
from flyball_lab.sizing.errors import SizingError
from flyball_lab.sizing.memory import activation_bytes, cache_shape, capacity, request_blocks
from flyball_lab.sizing.names import NONE, SETTINGS
from flyball_lab.sizing.presets import PRESETS
from flyball_lab.sizing.request import SizingRequest, degrees
from flyball_lab.sizing.roofline import Roofline
from flyball_lab.sizing.shape import Checkpoint, Layer
from flyball_lab.sizing.size import Sizing, size
from flyball_lab.sizing.weights import active_parameters, parameters, weight_bytes
from support import model_configs as models
from support.model_configs import PUBLISHED, Config

H100 = gpu("H100-SXM")
ROOMY = plain(4096 * GIB)


def sized(config: Config, device: Device = ROOMY, **asked: Any) -> Sizing:
    return size(config, device, SizingRequest(**asked))


def roofline(config: Config, name: str, *, tensor_parallel: int = 1, weights: str = "auto") -> Roofline:
    compute = gpu(name).compute
    assert compute is not None
    model = read(config, weights=weights)
    return Roofline(model=model, compute=compute, tensor_parallel=tensor_parallel, kv_bytes=2)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_the_authors_publish(name: str) -> None:
    config, published, _ = PUBLISHED[name]
    assert parameters(read(config)) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("name", [name for name, (_, _, active) in PUBLISHED.items() if active])
def test_active_parameters_are_those_that_the_authors_publish(name: str) -> None:
    # Some authors count the input embedding as active, some do not; published with two digits.
    config, _, published = PUBLISHED[name]
    model = read(config)
    ours = active_parameters(model)
    assert published is not None
    off = min(abs(count / published - 1) for count in (ours, ours + model.vocabulary * model.hidden))
    assert off < 0.03


@pytest.mark.parametrize(
    ("config", "asked", "expected"),
    [
        # 2 · layers · heads · head size · bytes: arXiv 2305.13245 (grouped-query), 1911.02150 (multi-query).
        (models.LLAMA3_8B, {}, 131_072),
        (models.LLAMA3_70B, {}, 327_680),
        (models.LLAMA2_7B, {}, 524_288),
        (models.LLAMA3_8B, {"kv_dtype": "fp8"}, 65_536),
        (models.STARCODER, {}, 2 * 40 * 1 * 128 * 2),
        (models.GPT2, {}, 2 * 12 * 12 * 64 * 2),
        # One latent and one rotary key per layer: arXiv 2405.04434, section 2.1.4.
        (models.DEEPSEEK_V3, {}, (512 + 64) * 2 * 61),
        (models.DEEPSEEK_V3, {"tensor_parallel": 8}, (512 + 64) * 2 * 61),
        # Split until one head is left on each device, then replicated.
        (models.LLAMA3_70B, {"tensor_parallel": 4}, 327_680 // 4),
        (models.LLAMA3_70B, {"tensor_parallel": 8}, 327_680 // 8),
        (models.LLAMA3_70B, {"tensor_parallel": 16}, 327_680 // 8),
        (models.QWEN3_8B, {"dtype": "float32"}, 2 * 36 * 8 * 128 * 4),
    ],
)
def test_a_cached_token_costs(config: Config, asked: dict[str, Any], expected: int) -> None:
    assert sized(config, **asked).kv_bytes_per_token == expected


def test_windowed_layers_are_found_in_every_spelling() -> None:
    windowed = {name: read(config).windowed for name, (config, _, _) in PUBLISHED.items()}
    assert {name: count for name, count in windowed.items() if count} == {
        "Mistral-7B": 32,
        "Gemma-2-9B": 21,
        "Gemma-3-27B": 52,
        "Phi-3-mini": 32,
        "gpt-oss-20b": 12,
    }


def test_a_config_may_switch_windows_on_from_a_layer() -> None:
    model = read(models.QWEN25_7B | {"use_sliding_window": True, "max_window_layers": 20, "sliding_window": 512})
    assert model.layers == (Layer(),) * 20 + (Layer(window=512),) * 8


def test_windows_bound_what_a_long_request_holds() -> None:
    # Gemma 3 in groups of ten layers: one full, six of windows, the last of them padded.
    cache = cache_shape(read(models.GEMMA3_27B), tensor_parallel=1, kv_bytes=2)
    assert (len(cache.groups), cache.group_layers) == (7, 10)
    short, long = (request_blocks(cache, context=context, batched_tokens=512) for context in (1024, 131_072))
    assert short == 1024 // 16 + 6 * (1024 // 16 + 1)
    assert long == 131_072 // 16 + 6 * (2047 // 16 + 1 + 1)


def test_a_cache_of_few_more_windows_than_full_layers_is_padded_to_two_groups() -> None:
    config = models.GPT_OSS_20B | {"layer_types": ["sliding_attention"] * 11 + ["full_attention"] * 13}
    cache = cache_shape(read(config), tensor_parallel=1, kv_bytes=2)
    assert (sorted(map(str, cache.groups)), cache.group_layers) == (["128", "None"], 13)


def test_packed_weights_take_what_their_checkpoints_take() -> None:
    # Sum of file sizes in the repositories: openai/gpt-oss-20b 13.8 GB; Qwen/Qwen2.5-7B-Instruct-AWQ 5.57 GB;
    # neuralmagic/Meta-Llama-3-8B-Instruct-FP8 9.1 GB; meta-llama/Meta-Llama-3-8B 16.1 GB.
    qwen = models.QWEN25_7B | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    assert weight_bytes(read(models.GPT_OSS_20B), 1) == pytest.approx(13.8e9, rel=0.02)
    assert weight_bytes(read(qwen), 1) == pytest.approx(5.57e9, rel=0.02)
    assert weight_bytes(read(models.LLAMA3_8B, weights="fp8"), 1) == pytest.approx(9.1e9, rel=0.02)
    assert weight_bytes(read(models.LLAMA3_8B), 1) == pytest.approx(16.1e9, rel=0.02)


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        ({"quant_method": "gptq", "bits": 4}, 4 + 20 / 128),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 64}}},
            },
            4 + 20 / 64,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "group_size": None}}},
            },
            8,
        ),
    ],
)
def test_a_stated_packing_is_read(quantization: Config, bits: float) -> None:
    assert read(models.LLAMA3_8B | {"quantization_config": quantization}).packing.bits == bits


def test_weights_split_over_devices_but_for_what_is_replicated() -> None:
    llama, deepseek = read(models.LLAMA3_70B), read(models.DEEPSEEK_V3)
    assert weight_bytes(llama, 8) * 8 == weight_bytes(llama, 1)
    assert weight_bytes(llama, 16) * 16 > weight_bytes(llama, 1), "eight key heads on sixteen devices"
    assert 1.01 < weight_bytes(deepseek, 8) * 8 / weight_bytes(deepseek, 1) < 1.03, "the latent's projections"


def test_the_cache_is_what_vllm_reported() -> None:
    # vLLM's profile of Llama-3-8B on one H100, 0.9, 8192 tokens, 256 requests: github.com/vllm-project/vllm/pull/10511
    # (weights 14.96, activations 1.26, cache 53.29 GiB).
    model = read(models.LLAMA3_8B)
    activations = activation_bytes(model, tensor_parallel=1, batched_tokens=8192, seqs=256)
    left = 0.9 * H100.memory - H100.reserve - activations - weight_bytes(model, 1)
    assert weight_bytes(model, 1) / GIB == pytest.approx(14.96, rel=0.005)
    assert activations / GIB == pytest.approx(1.26, rel=0.05)
    assert left / GIB == pytest.approx(53.29, rel=0.05)


def test_tokens_that_fit_are_the_cache_over_a_tokens_cost() -> None:
    cache = cache_shape(read(models.LLAMA3_8B), tensor_parallel=1, kv_bytes=2)
    assert capacity(cache, cache_bytes=8 * GIB, context=4096, batched_tokens=8192) == 8 * GIB / 131_072 / 4096


def test_the_ceiling_on_requests_costs_cache() -> None:
    model = read(models.QWEN25_7B)
    few, many = (activation_bytes(model, tensor_parallel=1, batched_tokens=512, seqs=seqs) for seqs in (64, 1024))
    assert many - few > 2 * GIB


@pytest.mark.parametrize(
    ("config", "name", "floor_ms", "slope_us"),
    [
        # Fits of public kernel profiles, github.com/microsoft/vidur: one token's step, and each token beyond 512.
        (models.LLAMA3_8B, "A100-80GB", 9.7, 66.0),
        (models.LLAMA2_7B, "A100-80GB", 9.3, 64.0),
        (models.LLAMA2_7B, "H100-SXM", 5.6, 20.0),
    ],
)
def test_the_roofline_is_a_floor_under_measured_kernels(
    config: Config, name: str, floor_ms: float, slope_us: float
) -> None:
    model = roofline(config, name).step_model(context=1)
    assert 1.2 < floor_ms * 1e-3 / model.t0 < 1.6
    assert 1.2 < slope_us * 1e-6 / model.c2 < 1.7


def test_small_batches_wait_for_memory_and_prompts_for_arithmetic() -> None:
    here = roofline(models.LLAMA3_8B, "H100-SXM")
    assert here.decode(batch=8, context=1024).bound == "memory"
    assert here.prefill(tokens=4096).bound == "compute"
    # Bytes over bandwidth, by hand: 15.01 GB of weights but the embedding, 131072 bytes a token.
    assert here.decode(batch=8, context=1024).weights == pytest.approx(15.01e9 / 3.35e12, rel=0.001)
    assert here.decode(batch=8, context=1024).attention == pytest.approx(8 * 1024 * 131_072 / 3.35e12)


def test_fp8_halves_the_reading_and_doubles_the_rate_where_the_device_has_it() -> None:
    hopper, ampere = (roofline(models.LLAMA3_70B, name, weights="fp8") for name in ("H100-SXM", "A100-80GB"))
    plain_hopper = roofline(models.LLAMA3_70B, "H100-SXM")
    assert 1.9 < plain_hopper.decode(batch=1, context=1).weights / hopper.decode(batch=1, context=1).weights < 2.0
    assert (hopper.peak, ampere.peak) == (1979e12, 312e12)


def test_few_tokens_read_few_experts() -> None:
    here = roofline(models.QWEN3_30B, "H100-SXM")
    one, many = here.decode(batch=1, context=1).weights, here.decode(batch=256, context=1).weights
    assert one < 0.15 * many
    assert many == pytest.approx(here.step_model(context=1).t0, rel=1e-5)


def test_a_window_bounds_what_a_decode_reads() -> None:
    here = roofline(models.MISTRAL_7B, "H100-SXM")
    assert here.decode_attention(32_000) == here.decode_attention(4096) == 2 * here.decode_attention(2048)


def test_a_latent_is_cheap_to_read_but_not_to_multiply() -> None:
    here = roofline(models.DEEPSEEK_V3, "A100-80GB", weights="bf16")
    reading = 8192 * 70_272 / here.compute.bandwidth
    assert here.decode_attention(8192) > reading, "128 heads multiply each latent"


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("device", ["H100-SXM", "A100-80GB", "L40S"])
def test_every_preset_starts_what_fits(name: str, device: str) -> None:
    found = sized(models.LLAMA3_8B, gpu(device), preset=name, context=4096)
    assert 1 <= found.ceilings.seqs <= min(found.concurrency, found.preset.seqs)
    assert found.ceilings.seqs <= found.ceilings.tokens
    assert found.preset.tokens[0] <= found.ceilings.tokens <= found.preset.tokens[1]
    assert found.preset.why


def test_presets_differ_as_they_say() -> None:
    each = {name: sized(models.LLAMA3_8B, H100, preset=name, context=2048).ceilings for name in PRESETS}
    assert each["latency"].tokens < each["decode-heavy"].tokens < each["throughput"].tokens
    assert each["throughput"].tokens < each["prefill-heavy"].tokens
    assert each["latency"].seqs < each["throughput"].seqs <= each["decode-heavy"].seqs
    assert each["latency"].threshold == each["latency"].tokens // 2
    assert each["throughput"].threshold == 0


def test_the_latency_preset_bounds_its_full_decode() -> None:
    found = sized(models.LLAMA3_8B, H100, preset="latency", context=2048)
    assert found.steps is not None
    assert found.steps.decode.seconds <= 2 * found.steps.model.seconds(decodes=1)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("device", "context"), [("L4", 8192), ("L4", 256), ("H100-SXM", 1), ("H200", 16)])
def test_a_step_is_no_larger_than_the_requests_can_fill(name: str, device: str, context: int) -> None:
    found = sized(models.LLAMA3_8B, gpu(device), preset=name, context=context)
    assert found.ceilings.seqs <= found.ceilings.tokens <= found.ceilings.seqs * context


def test_a_small_cache_is_not_spent_on_long_steps() -> None:
    few, many = (sized(models.LLAMA3_8B, gpu(name), context=8192).ceilings for name in ("L4", "H100-SXM"))
    assert (few.seqs, few.tokens) == (3, 8192)
    assert many.tokens == 16384


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (models.LLAMA3_8B, (1, 2, 4, 8, 16, 32)),
        # Of twelve heads, but the width or the vocabulary does not divide by three.
        (models.GPT2, (1, 2, 3, 4, 6, 12)),
        (models.GPT2 | {"n_inner": 2048}, (1, 2, 4)),
        (models.GPT2 | {"vocab_size": 50_176}, (1, 2, 4)),
        # Twenty-eight heads over four key heads; the width is 2⁹ · 37, the vocabulary 2⁹ · 297.
        (models.QWEN25_7B, (1, 2, 4)),
        # Experts 1408 wide and shared ones: 2⁷ · 11.
        (models.QWEN15_MOE, (1, 2, 4, 8, 16)),
        (models.QWEN15_MOE | {"shared_expert_intermediate_size": 5640}, (1, 2, 4, 8)),
        # No layer is dense, so that the dense width does not matter.
        (models.QWEN3_30B | {"intermediate_size": 6145}, (1, 2, 4, 8, 16, 32)),
        (models.QWEN3_30B | {"moe_intermediate_size": 776}, (1, 2, 4, 8)),
    ],
)
def test_a_model_is_split_as_vllm_divides_it(config: Config, expected: tuple[int, ...]) -> None:
    assert degrees(read(config)) == expected


@pytest.mark.parametrize(
    ("stated", "asked", "expected"),
    [
        (None, "auto", Checkpoint.STATED),
        (None, "bf16", Checkpoint.STATED),
        (None, "fp8", Checkpoint.ON_LOAD),
        (None, "int8", Checkpoint.OTHER),
        (None, "awq", Checkpoint.OTHER),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "awq", Checkpoint.STATED),
        ({"quant_method": "gptq", "bits": 4}, "int4", Checkpoint.STATED),
        ({"quant_method": "gptq", "bits": 8}, "gptq", Checkpoint.OTHER),
        ({"quant_method": "awq"}, "fp8", Checkpoint.OTHER),
        ({"quant_method": "fp8"}, "int8", Checkpoint.OTHER),
        ({"quant_method": "fp8"}, "bf16", Checkpoint.OTHER),
        ({"quant_method": "mxfp4"}, "int4", Checkpoint.OTHER),
        # Not sized, so that the user's word is taken.
        ({"quant_method": "exl3"}, "int4", Checkpoint.STATED),
    ],
)
def test_weights_that_the_config_does_not_state_need_another_checkpoint(
    stated: Config | None, asked: str, expected: Checkpoint
) -> None:
    assert read(models.LLAMA3_8B | {"quantization_config": stated}, weights=asked).checkpoint is expected


def test_plain_memory_is_sized_without_costs() -> None:
    found = sized(models.LLAMA3_8B, plain(80 * GIB))
    assert found.steps is None
    assert found.ceilings.tokens == 8192
    assert found.memory.reserve == 0


def test_vision_towers_are_named_as_not_counted() -> None:
    assert read(models.GEMMA3_27B).left_out == ("vision_config",)


def test_a_stretched_context_is_accepted() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert read(models.QWEN25_7B | {"rope_scaling": scaling}).longest == 131_072


def test_every_gpu_has_sensible_figures() -> None:
    for device in GPUS.values():
        assert device.compute is not None
        assert 16 * GIB < device.memory < 256 * GIB
        assert 100 < device.compute.half / device.compute.bandwidth < 450, device.name
        assert device.compute.fp8 is None or 1.9 < device.compute.fp8 / device.compute.half < 2.1


def test_every_setting_has_a_name_in_each_engine_or_says_none() -> None:
    for row in SETTINGS:
        assert all((row.purpose, row.vllm, row.tensorrt_llm, row.triton, row.sglang))
        assert [row.vllm, row.tensorrt_llm, row.triton, row.sglang].count(NONE) < 3


@pytest.mark.parametrize("asked", [{"utilization": math.nan}, {"utilization": 0.0}, {"utilization": 1.01}])
def test_shares_of_memory_are_shares(asked: dict[str, Any]) -> None:
    with pytest.raises(SizingError, match="utilization"):
        sized(models.LLAMA3_8B, **asked)
