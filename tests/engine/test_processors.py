"""What the small model costs on processors that lack what newer ones have."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from flyball_lab.harness.vllm_server import MODEL_NAME, started

pytestmark = pytest.mark.engine

#: What multiplied matrices, as oneDNN's log of what it ran names it.
MULTIPLIED = re.compile(r"^onednn_verbose,.*exec,cpu,matmul,([^,]+),", re.MULTILINE)


def test_without_avx512_the_small_model_has_kernels_of_its_numbers(
    server_python: str, plugin: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    with started(server_python, tmp_path, model=model, plugin=plugin, ONEDNN_VERBOSE="1") as server:
        server.expect_ready()
        body = {"model": MODEL_NAME, "prompt": "hello", "max_tokens": 3, "ignore_eos": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120, trust_env=False)
        assert answer.status_code == 200, server.tail()
    used = set(MULTIPLIED.findall(server.log.read_text(errors="replace")))
    # Of bfloat16 oneDNN multiplies nothing there: torch does, in plain loops.
    assert used, "none of oneDNN's multiplications"
    assert all(each.endswith("avx2") for each in used), used
