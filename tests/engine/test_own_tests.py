"""vLLM's own tests of its scheduler pass with the governed scheduler in its place, whatever it was told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.harness.vllm_server import cache_beside
from flyball_lab.repository import ROOT

pytestmark = pytest.mark.engine

FILES = ("test_scheduler.py", "test_async_scheduler.py")
#: See `support.own_tests`. The on-time order has the budget and the ceilings, too.
SETPOINTS = (
    pytest.param("no setpoint", marks=pytest.mark.long),
    pytest.param("the ceilings", marks=pytest.mark.long),
    pytest.param("a wide budget", marks=pytest.mark.long),
    "the on-time order",
)
#: How many tests there are, by version: none may get lost.
NUMBER = {"0.32.0": 227, "0.33.0": 300}
#: The models that the tests name, as far as a scheduler asks for them; there is no network to ask the hub in.
MODELS: dict[str, dict[str, Any]] = {
    "facebook/opt-125m": {"architectures": ["OPTForCausalLM"], "model_type": "opt", "torch_dtype": "float16"},
    "llava-hf/llava-1.5-7b-hf": {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
        "vision_config": {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14},
        "torch_dtype": "float16",
    },
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_nextn_predict_layers": 1,
        "torch_dtype": "bfloat16",
    },
}


@dataclass(frozen=True)
class Outcomes:
    """What became of each test, and why those that failed did."""

    outcomes: Mapping[str, str]
    reasons: Mapping[str, str]


@pytest.fixture(scope="module")
def own_tests() -> Path:
    """The folder of vLLM's tests."""
    folder = os.environ.get("FLYBALL_VLLM_TESTS")
    if not folder:
        pytest.skip("FLYBALL_VLLM_TESTS is empty: requirements/vllm-tests.txt pins no tests of this vLLM, or hack/test")
    return Path(folder)


def place_models(folder: Path, *, tokenizer: Path) -> None:
    """A model is found by its name where that is a folder below the current one."""
    for name, config in MODELS.items():
        shutil.copytree(tokenizer, folder / name, ignore=lambda _, names: [n for n in names if "tokenizer" not in n])
        (folder / name / "config.json").write_text(json.dumps(config))


def outcomes(python: str, own_tests: Path, told: str, home: Path, *, cache: Path) -> Outcomes:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join(str(path) for path in (ROOT / "engine/src", ROOT / "tests", own_tests)),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CACHE_ROOT": str(cache),
        "VLLM_PLUGINS": "",
        "FLYBALL_STATE_DIR": str(home),
    }
    site, report = Path(pytest.__file__).parents[1], home / "report.json"
    command: list[str | Path] = [
        python,
        "-P",
        "-m",
        "support.own_tests",
        site,
        told,
        report,
        f"--basetemp={home / 'tmp'}",
        "--rootdir=.",
    ]
    files = [own_tests / "tests/v1/core" / file for file in FILES]
    ended = subprocess.run(
        [*command, *files], env=environment, cwd=home, capture_output=True, text=True, timeout=1700, check=False
    )
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    return Outcomes(**json.loads(report.read_text()))


@pytest.mark.parametrize("told", SETPOINTS)
def test_all_pass(vllm_python: str, model: Path, own_tests: Path, tmp_path: Path, told: str) -> None:
    place_models(tmp_path, tokenizer=model)
    found = outcomes(vllm_python, own_tests, told, tmp_path, cache=cache_beside(model))
    assert found.reasons == {}
    assert set(found.outcomes.values()) == {"passed"}
    assert len(found.outcomes) == NUMBER[own_tests.name.rpartition("-")[0]]
