"""`flyball size`: its text, its JSON, and its answers to wrong input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flyball_operator.cli import main
from support import model_configs as models
from support.model_configs import Config

GPU = ("--gpu", "H100-SXM")


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def _write(config: object) -> str:
        path = tmp_path / "config.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return str(path)

    return _write


def test_the_text_shows_its_arithmetic(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", write(models.LLAMA3_8B), *GPU, "--context", "4096", "--preset", "decode-heavy"]) == 0
    text = capsys.readouterr().out
    assert "8.03B parameters; bfloat16" in text
    assert "2 (key, value) × 32 layers × 8 heads × 128 × 2 bytes = 131,072 bytes" in text
    assert "weights: 8,029,995,008 × 16 bits" in text
    assert "--max-num-batched-tokens=4096" in text
    assert "(memory-bound)" in text
    assert len(text.splitlines()) < 30


def test_the_text_names_windows_experts_packing_and_what_it_leaves_out(
    write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["size", write(models.GPT_OSS_20B), "--gpu", "l40s"]) == 0
    assert "3.61B of them per token; bfloat16, weights in mxfp4" in (text := capsys.readouterr().out)
    assert "12 of 24 layers keep only a window of 128 tokens" in text
    assert main(["size", write(models.GEMMA3_27B), *GPU]) == 0
    assert "not counted: vision_config" in capsys.readouterr().out
    assert main(["size", write(models.DEEPSEEK_V3), "--gpu", "H200", "--tensor-parallel", "8"]) == 0
    assert "(512 latent + 64 rotary) × 61 layers × 2 bytes = 70,272 bytes" in capsys.readouterr().out


def test_the_json_says_the_same_with_units(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", write(models.LLAMA3_70B), *GPU, "--tensor-parallel", "4", "--kv-dtype", "fp8", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["kv_bytes_per_token"] == 327_680 // 2 // 4
    assert said["kv_dtype"] == "fp8"
    taken = said["weight_bytes"] + said["activation_bytes"] + said["reserve_bytes"] + said["kv_cache_bytes"]
    assert taken == said["budget_bytes"]
    assert said["start"]["max_num_seqs"] <= said["largest_batch_requests"]
    assert said["step"]["model"]["kappa_tokens"] > 0


def test_memory_alone_sizes_without_a_step(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    held = []
    for amount in ("24GiB", "24Gi", "25769803776", "25769803776 B"):
        assert main(["size", write(models.LLAMA3_8B), "--memory", amount, "--json"]) == 0
        held.append(json.loads(capsys.readouterr().out))
    assert held[0]["step"] is None
    assert held[0] == held[1] == held[2] == held[3]
    assert main(["size", write(models.LLAMA3_8B), "--memory", "24GB"]) == 0
    assert "a step: unknown without --gpu" in capsys.readouterr().out


def test_a_folder_is_its_config(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", str(Path(write(models.GPT2)).parent), "--memory", "4GiB"]) == 0
    assert "0.12B parameters" in capsys.readouterr().out


def test_the_names_of_each_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "--names"]) == 0
    text = capsys.readouterr().out
    for name in ("--max-num-seqs", "max_batch_size", "triton_max_batch_size", "--max-running-requests"):
        assert name in text
    assert "--num-scheduler-steps" in text.split("not in vLLM 0.32")[1]
    assert main(["size", "--names", "--json"]) == 0
    assert {"purpose", "vllm", "tensorrt_llm", "triton", "sglang"} == json.loads(capsys.readouterr().out)["settings"][
        0
    ].keys()


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
    "memory zero": (llama(), ("--memory", "0"), ("--memory", "0 bytes")),
    "memory below weights": (llama(), ("--memory", "16GiB"), ("--memory", "14.4 GiB", "weights take 15.0 GiB")),
    "heads not dividing": (llama(), (*GPU, "--tensor-parallel", "3"), ("--tensor-parallel", "1, 2, 4, 8, 16, 32")),
    "no devices": (llama(), (*GPU, "--tensor-parallel", "0"), ("--tensor-parallel", "is 0")),
    "context zero": (llama(), (*GPU, "--context", "0"), ("--context", "1 to 8192")),
    "context too long": (llama(), (*GPU, "--context", "9000"), ("--context", "1 to 8192")),
    "context beyond the cache": (
        llama(max_position_embeddings=10**6),
        ("--memory", "20GiB", "--context", "1000000"),
        ("--context", "at most about"),
    ),
    "dtype unknown": (llama(), (*GPU, "--dtype", "int8"), ("--dtype", "bfloat16")),
    "cache dtype unknown": (llama(), (*GPU, "--kv-dtype", "int2"), ("--kv-dtype", "fp8")),
    "weights unknown": (llama(), (*GPU, "--weights", "int1"), ("--weights", "awq")),
    "utilization zero": (llama(), (*GPU, "--utilization", "0"), ("--utilization", "at most 1")),
    "utilization no number": (llama(), (*GPU, "--utilization", "nan"), ("--utilization",)),
    "preset unknown": (llama(), (*GPU, "--preset", "fast"), ("--preset", "throughput, latency")),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_answered_in_words(case: str, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    config, options, expected = WRONG[case]
    assert main(["size", write(config), *options]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("flyball size: ")
    assert "accepted: " in shown.err
    assert len(shown.err.splitlines()) == 1
    for words in expected:
        assert words in shown.err


def test_files_that_cannot_be_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary, huge = tmp_path / "weights.bin", tmp_path / "huge.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with huge.open("wb") as file:
        file.truncate(20_000_000)
    for path, words in (("nowhere.json", "No such file"), (str(tmp_path), "No such file"), ("", "is not JSON")):
        assert main(["size", path or str(binary), *GPU]) == 2
        assert words in capsys.readouterr().err
    assert main(["size", str(huge), *GPU]) == 2
    assert "larger than any config.json" in capsys.readouterr().err
    assert main(["size", *GPU]) == 2
    assert "CONFIG: is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x", "--gpu", "L4", "--memory", "1GiB"], "not allowed with"),
        (["x", "--context", "many"], "--context"),
        (["x", "--utilization", "most"], "--utilization"),
    ],
)
def test_the_parser_names_the_option(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["size", *arguments])
    assert end.value.code == 2
    assert words in capsys.readouterr().err
