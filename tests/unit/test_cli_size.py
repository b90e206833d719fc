"""`flyball size`: its text, its JSON, and its answers to wrong input."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyball_lab.harness.manifests import good
from flyball_operator.api.parse import parse_service
from flyball_operator.cli.entry import main
from support import model_configs as models
from support.wrong_inputs.sizing import GPU, WRONG


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
    assert len(text.splitlines()) < 35


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
    assert (
        main(["size", write(models.LLAMA3_70B), *GPU, "--tensor-parallel", "4", "--kv-dtype", "fp8", "-o", "json"]) == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["kv_bytes_per_token"] == 327_680 // 2 // 4
    assert said["kv_dtype"] == "fp8"
    taken = said["weight_bytes"] + said["activation_bytes"] + said["reserve_bytes"] + said["kv_cache_bytes"]
    assert taken == said["budget_bytes"]
    assert said["start"]["max_num_seqs"] <= said["largest_batch_requests"]
    assert said["step"]["model"]["kappa_tokens"] > 0


def test_the_start_values_can_be_pasted_into_an_inference_service(
    write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "size",
        write(models.LLAMA3_70B),
        *GPU,
        "--tensor-parallel",
        "4",
        "--kv-dtype",
        "fp8",
        "--preset",
        "latency",
    ]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert main([*command, "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    pasted = yaml.safe_load(textwrap.dedent(text.partition("in an InferenceService:\n")[2]))["spec"]
    assert pasted == said["spec"]
    gpu = {"resourceName": "nvidia.com/gpu"}
    manifest = good(metadata__namespace="team", metadata__uid="uid-1", spec__accelerator=gpu)
    for part, fields in pasted.items():
        manifest["spec"][part] = manifest["spec"].get(part, {}) | fields
    spec = parse_service(manifest).spec
    start = said["start"]
    assert (spec.batching.max_num_seqs, spec.batching.max_num_batched_tokens) == (
        start["max_num_seqs"],
        start["max_num_batched_tokens"],
    )
    assert spec.parallelism.tensor == 4
    assert list(spec.engine.args) == [
        "--performance-mode=interactivity",
        f"--long-prefill-token-threshold={start['long_prefill_token_threshold']}",
        "--kv-cache-dtype=fp8",
    ]


def test_a_context_below_the_models_is_among_the_arguments(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    said, text = both(["size", write(models.LLAMA3_8B), *GPU, "--context", "4096"], capsys)
    assert "--max-model-len=4096" in said["spec"]["engine"]["args"]
    assert said["start"]["max_model_len"] == 4096
    command = text.partition("start with")[2].partition("in an InferenceService")[0]
    assert "--max-model-len=4096" in command.split()
    said, text = both(["size", write(models.LLAMA3_8B), *GPU, "--context", "8192"], capsys)
    assert "--max-model-len" not in text, "the model's own"
    assert "--max-model-len" not in str(said["spec"])


def test_the_command_line_has_what_the_sizing_holds_for(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--tensor-parallel", "2", "--kv-dtype", "fp8", "--utilization", "0.95", "--context", "4096")
    said, text = both(["size", write(models.LLAMA3_8B), *GPU, *options], capsys)
    command = text.partition("start with")[2].partition("in an InferenceService")[0].split()
    assert {"--tensor-parallel-size=2", *said["spec"]["engine"]["args"]} <= set(command)
    assert {"--kv-cache-dtype=fp8", "--gpu-memory-utilization=0.95"} <= set(command)


def test_weights_that_are_not_the_checkpoints_are_said_to_be_needed(
    write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    said, text = both(["size", write(models.LLAMA3_8B), *GPU, "--weights", "awq"], capsys)
    (note,) = said["notes"]
    assert note == "weights in awq, where the config states bf16: this needs a checkpoint with weights in awq"
    assert f"\n  {note}\n" in text
    assert said["checkpoint"] == "other"
    assert "--quantization" not in text
    said, text = both(["size", write(models.LLAMA3_8B), *GPU, "--weights", "fp8"], capsys)
    assert "vLLM packs them as it loads them, with --quantization=fp8_per_tensor" in said["notes"][0]
    assert "--quantization=fp8_per_tensor" in said["spec"]["engine"]["args"]
    said, text = both(["size", write(models.LLAMA3_8B), *GPU], capsys)
    assert (said["notes"], said["checkpoint"]) == ([], "stated")


def test_one_request_is_shown_once(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    # Weights of 70.6 GB in fp8 leave a GPU of 79.6 GiB room for few.
    options = ("--weights", "fp8", "--utilization", "0.94")
    said, text = both(["size", write(models.LLAMA3_70B), *GPU, *options], capsys)
    assert said["start"]["max_num_seqs"] == 1
    assert text.count("decode of 1 request at 8,192") == 1


def both(command: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """What a command says as JSON, and as text."""
    assert main([*command, "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert main(command) == 0
    return said, capsys.readouterr().out


def test_memory_alone_sizes_without_a_step(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    held = []
    for amount in ("24GiB", "24Gi", "25769803776", "25769803776 B"):
        assert main(["size", write(models.LLAMA3_8B), "--memory", amount, "-o", "json"]) == 0
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
    assert main(["size", "--names", "-o", "json"]) == 0
    assert {"purpose", "vllm", "tensorrt_llm", "triton", "sglang"} == json.loads(capsys.readouterr().out)["settings"][
        0
    ].keys()


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
