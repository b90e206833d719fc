"""Clients over HTTP, of a closed or an open loop, with the options and results of vLLM's module of this name."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class SampleRequest:
    prompt: list[int]
    expected_output_len: int


@dataclass
class Outcome:
    start: float
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    error: str = ""


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    for name in ("backend", "base-url", "endpoint", "model", "tokenizer", "dataset-name"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("input-len", "output-len", "prefix-len"):
        parser.add_argument(f"--random-{name}", type=int, required=True)
    parser.add_argument("--random-range-ratio", type=float, required=True)
    for name in ("num-prompts", "seed", "ready-check-timeout-sec"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--max-concurrency", type=int)
    parser.add_argument("--request-rate", type=float, default=float("inf"))
    parser.add_argument("--burstiness", type=float, default=1.0)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--extra-body", type=json.loads, default={})
    for name in ("ignore-eos", "save-detailed", "disable-tqdm"):
        parser.add_argument(f"--{name}", action="store_true", required=True)


async def main_async(options: argparse.Namespace) -> dict[str, Any]:
    sys.stdout.write(f"{options}\n")  # as vLLM's does
    sys.stdout.flush()
    draw = random.Random(options.seed)

    def length(mean: int) -> int:
        return max(1, round(mean * draw.uniform(1 - options.random_range_ratio, 1 + options.random_range_ratio)))

    requests = [
        SampleRequest([7] * length(options.random_input_len), length(options.random_output_len))
        for _ in range(options.num_prompts)
    ]
    return await benchmark(input_requests=requests, options=options)


async def benchmark(*, input_requests: list[SampleRequest], options: argparse.Namespace) -> dict[str, Any]:
    turn = asyncio.Semaphore(options.max_concurrency or len(input_requests))
    draw = random.Random(options.seed)
    sent = []
    async with httpx.AsyncClient(base_url=options.base_url, timeout=60, trust_env=False, verify=False) as http:
        began = time.perf_counter()
        for one in input_requests:
            sent.append(asyncio.create_task(_ask(http, one, options, turn)))
            if options.request_rate < float("inf"):
                scale = 1 / (options.request_rate * options.burstiness)
                await asyncio.sleep(draw.gammavariate(options.burstiness, scale))
        outcomes = await asyncio.gather(*sent)
        duration = time.perf_counter() - began
    return {
        "duration": duration,
        "start_times": [one.start for one in outcomes],
        "ttfts": [one.ttft for one in outcomes],
        "itls": [one.itl for one in outcomes],
        "input_lens": [len(one.prompt) for one in input_requests],
        "output_lens": [len(one.itl) + 1 if not one.error else 0 for one in outcomes],
        "errors": [one.error for one in outcomes],
    }


async def _ask(
    http: httpx.AsyncClient, request: SampleRequest, options: argparse.Namespace, turn: asyncio.Semaphore
) -> Outcome:
    body = {
        "model": options.model,
        "prompt": request.prompt,
        "max_tokens": request.expected_output_len,
        "stream": True,
        **options.extra_body,
    }
    async with turn:
        outcome = Outcome(start=time.perf_counter())
        last = outcome.start
        try:
            async with http.stream("POST", options.endpoint, json=body) as answer:
                if answer.status_code != 200:
                    outcome.error = f"HTTP {answer.status_code}"
                    return outcome
                async for line in answer.aiter_lines():
                    if not line.startswith("data: {") or not json.loads(line[6:])["choices"][0]["text"]:
                        continue
                    now = time.perf_counter()
                    if outcome.ttft:
                        outcome.itl.append(now - last)
                    else:
                        outcome.ttft = now - last
                    last = now
        except httpx.HTTPError as error:
            outcome.error = str(error) or type(error).__name__
    return outcome
