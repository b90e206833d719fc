"""The padded engine before a real model: what its batches compute, how it is switched, what it counts."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flyball_engine.contract import Batching
from flyball_engine.knobs import Bucketed, Dynamic, Static
from flyball_lab.harness.engine import ControlClient
from flyball_lab.harness.padded_server import padded
from flyball_lab.harness.vllm_server import VllmServer
from flyball_lab.padded.metrics import COMPUTED_TOKENS
from support.counted import Counted, expect_all_counted
from support.greedy import Prompts, greedy, some_prompts
from support.measured import Wish
from support.served import Served

pytestmark = pytest.mark.engine

TOKENS = 12
STREAMS = 8
REQUESTS = 40


@pytest.fixture(scope="module")
def server(server_python: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """Batches of up to eight that wait for each other."""
    options = ["--batch-size=8", "--max-num-seqs=16", "--max-delay=0.05", "--max-model-len=2048"]
    with padded(server_python, tmp_path_factory.mktemp("server"), model=model, options=options) as running:
        yield running


@pytest.fixture(scope="module")
def counted(server: VllmServer) -> Counted:
    """The counts; the setpoints of all tests are one sequence."""
    return Counted(Served(server, ControlClient(server.control_url, server.signer)))


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    """Of many lengths, no two alike."""
    return some_prompts(12)


@pytest.fixture(scope="module")
def alone(server_python: str, model: Path, prompts: Prompts) -> list[list[int]]:
    """What each prompt comes to by itself."""
    script = Path(__file__).parents[1] / "support/generated_alone.py"
    wishes = json.dumps([[list(prompt), TOKENS] for prompt in prompts])
    done = subprocess.run(
        [server_python, script, model], check=True, input=wishes.encode(), stdout=subprocess.PIPE, timeout=300
    )
    answers: list[list[int]] = json.loads(done.stdout)
    return answers


def test_a_prompt_in_a_padded_batch_comes_to_what_it_comes_to_alone(
    server: VllmServer, counted: Counted, prompts: Prompts, alone: list[list[int]]
) -> None:
    counted.against(())
    assert greedy(server.url, prompts, max_tokens=TOKENS) == alone
    assert counted.total(f'{COMPUTED_TOKENS}{{phase="prompt",use="padding"}}') > 0, "they were padded"


def test_switches_under_load_lose_nothing(
    server: VllmServer, counted: Counted, prompts: Prompts, alone: list[list[int]]
) -> None:
    ways: list[dict[str, Any]] = [
        {"batching": Batching(strategy=Static(batch_size=2))},
        {"batching": Batching(strategy=Dynamic(batch_size=16, max_delay_seconds=0.2))},
        {"batching": Batching(strategy=Bucketed(batch_size=5, boundaries=(100, 250)))},
        {"limits": {"max_num_active_seqs": 3}},
        {},
    ]

    async def load() -> list[list[int]]:
        answering = asyncio.create_task(asyncio.to_thread(greedy, server.url, prompts, max_tokens=TOKENS))
        for way in ways:
            await asyncio.to_thread(counted.put, **way)
        return await answering

    assert asyncio.run(load()) == alone


def test_a_seed_draws_the_same_in_any_batch(server: VllmServer, prompts: Prompts) -> None:
    body = {"prompt": list(prompts[3]), "max_tokens": TOKENS, "seed": 11, "temperature": 0.8, "top_p": 0.9}

    def drawn(**more: object) -> list[list[int]]:
        body_sent = body | {"return_token_ids": True, "ignore_eos": True} | more
        answer = httpx.post(f"{server.url}/v1/completions", json=body_sent, timeout=300, trust_env=False).json()
        return [choice["token_ids"] for choice in answer["choices"]]

    [first] = drawn()
    several = drawn(prompt=[list(prompts[5]), list(prompts[3])], n=2)
    assert several[2] == first
    assert several[3] != first, "each answer has a seed of its own"
    assert drawn(seed=12) != [first]


@pytest.mark.parametrize(("threshold", "met"), [(1000.0, 1.0), (1e-6, 0.0)])
async def test_requests_are_counted_against_every_objective(counted: Counted, threshold: float, met: float) -> None:
    # No thresholds amid the latencies, as for vLLM: those of a padded batch are one, and move by a batch at a time.
    draw = random.Random(4)
    wishes = [
        Wish(prompt_tokens=draw.choice([10, 40, 120]), max_tokens=draw.choice([4, 8, 16]), n=draw.choice([1, 1, 2]))
        for _ in range(REQUESTS)
    ]
    await expect_all_counted(counted, wishes, concurrency=STREAMS, threshold=threshold, met=met)


def test_text_comes_in_pieces_that_are_the_whole(server: VllmServer) -> None:
    body = {"messages": [{"role": "user", "content": "def main():"}], "max_tokens": 24, "temperature": 0, "seed": 1}
    whole = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300, trust_env=False).json()
    streamed = httpx.post(
        f"{server.url}/v1/chat/completions", json=body | {"stream": True}, timeout=300, trust_env=False
    )
    lines = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
    pieces = [json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines]
    assert "".join(pieces) == whole["choices"][0]["message"]["content"]
    assert len(pieces) == 1 + whole["usage"]["completion_tokens"], "the first names the role"
