"""An encoder under vLLM's pooling runner, governed as a service has it: vectors, scores, and limits that move."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from flyball_lab.harness import cpu_image
from flyball_lab.harness.engine import ControlClient
from flyball_lab.harness.vllm_server import MODEL_NAME, make_model, started
from flyball_lab.repository import ROOT
from support.served import Served

pytestmark = [pytest.mark.engine, pytest.mark.long]

#: Tokens that the encoder takes at most.
CONTEXT = 512


@pytest.fixture(scope="module")
def encoder(server_python: str, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("encoder")
    # The small model's tokenizer stays.
    model = make_model(server_python, folder / "model")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "engine/lab/src")}
    subprocess.run(
        [server_python, "-P", "-m", "flyball_lab.tools.make_encoder", model], env=environment, check=True, timeout=300
    )
    # Nothing is said of prefix caching, as in a service without `prefixCaching`: an encoder has no KV cache.
    owned = ["--max-num-seqs=64", "--max-num-batched-tokens=2048"]
    size = (*cpu_image.arguments(), f"--max-model-len={CONTEXT}")
    with started(
        server_python, folder, model=model, plugin=plugin, user=["--runner=pooling"], owned=owned, size=size
    ) as server:
        server.expect_ready()
        with closing(ControlClient(server.control_url, server.signer)) as control:
            yield Served(server, control)


def asked(encoder: Served, path: str, **body: Any) -> Any:
    answer = httpx.post(f"{encoder.server.url}{path}", json={"model": MODEL_NAME, **body}, timeout=120, trust_env=False)
    return answer.raise_for_status().json()["data"]


def vectors(encoder: Served, *prompts: Sequence[int]) -> list[list[float]]:
    return [one["embedding"] for one in asked(encoder, "/v1/embeddings", input=prompts)]


def test_a_vector_is_the_same_alone_and_beside_others(encoder: Served) -> None:
    short, long = [*range(1000, 1020)], [*range(2000, 2500)]
    first, second = vectors(encoder, short, long)
    (alone,) = vectors(encoder, short)
    assert first == pytest.approx(alone, abs=1e-4)
    assert first != pytest.approx(second, abs=1e-2)


def test_texts_are_scored(encoder: Served) -> None:
    same, other = asked(encoder, "/score", text_1="def main():", text_2=["def main():", "class Engine: pass"])
    assert same["score"] == pytest.approx(1.0, abs=1e-4)
    assert other["score"] < same["score"]


def test_all_are_served_under_limits_below_a_prompt_which_cannot_be_split(encoder: Served) -> None:
    answer = encoder.set(limits={"max_num_active_seqs": 1, "max_num_scheduled_tokens": 16})
    (core,) = answer.cores
    assert core.effective.max_num_scheduled_tokens is not None
    assert core.effective.max_num_scheduled_tokens >= CONTEXT
    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(lambda start: vectors(encoder, [*range(start, start + 300)]), range(1000, 9000, 1000)))
    assert len(found) == 8
    encoder.set()
