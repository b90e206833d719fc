"""Greedy completions of many prompts at once, and the tokens they came to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx

from flyball_lab.harness.vllm_server import MODEL_NAME

Prompts = Sequence[Sequence[int]]


def some_prompts(count: int) -> Prompts:
    """Prompts of many lengths, no two alike."""
    return [
        [100 + (number * 7919 + position * 31) % 4000 for position in range(5 + 37 * (number % 12))]
        for number in range(count)
    ]


def greedy(url: str, prompts: Prompts, *, max_tokens: int) -> list[list[int]]:
    """The tokens of each prompt's completion; all prompts are sent at once."""
    return asyncio.run(_all(url, prompts, max_tokens))


async def _all(url: str, prompts: Prompts, max_tokens: int) -> list[list[int]]:
    async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as client:
        return list(await asyncio.gather(*(_one(client, prompt, max_tokens) for prompt in prompts)))


def wish(prompt: Sequence[int], *, max_tokens: int) -> dict[str, object]:
    """The body of a greedy completion of so many tokens."""
    return {
        "model": MODEL_NAME,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }


async def _one(client: httpx.AsyncClient, prompt: Sequence[int], max_tokens: int) -> list[int]:
    response = await client.post("/v1/completions", json=wish(prompt, max_tokens=max_tokens))
    assert response.status_code == 200, response.text
    tokens: list[int] = response.json()["choices"][0]["token_ids"]
    assert len(tokens) == max_tokens
    return tokens
