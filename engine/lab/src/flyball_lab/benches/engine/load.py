"""Load on an OpenAI endpoint, as its clients see it: so many streams at once, or arrivals at times of their own."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import aiohttp

from flyball_lab.harness.vllm_server import MODEL_NAME

_DATA: Final = b"data: "
_DONE: Final = b"data: [DONE]"

#: Where the search for a capacity begins, as shares of what an engine answers that never idles: bursts take part of it,
#: and a short run that nobody waits long in may exceed it. So many rates are tried: within a tenth of the largest.
SEARCHED: Final = (0.25, 1.3)
TRIALS: Final = 4


@dataclass(frozen=True)
class Ask:
    """A request: its prompt's token ids, how many tokens it wants, and when it arrives, in seconds from the start."""

    prompt: Sequence[int]
    output: int
    at: float = 0.0


@dataclass
class RequestResult:
    """What became of it. `first`, `ended`: seconds since it was sent, None: that never came. `status` 0: no answer.

    `tokens`: those it got, if it came to its end.
    """

    status: int = 0
    first: float | None = None
    ended: float | None = None
    tokens: int = 0

    @property
    def refused(self) -> bool:
        """Whether it was turned away at once."""
        return self.status == 503

    def in_time(self, deadline: float) -> bool:
        """Whether its first token came within so many seconds."""
        return self.first is not None and self.first <= deadline


@dataclass
class Prompts:
    """Prompts of random tokens, no two of them alike unless they share a prefix."""

    random: Random
    shared: list[int] = field(default_factory=list)

    def of(self, tokens: int) -> list[int]:
        """The shared prefix, and so many tokens of its own."""
        return [*self.shared, *(self.random.randrange(100, 8000) for _ in range(tokens))]


def poisson(random: Random, *, rate: float, seconds: float) -> Iterator[float]:
    """Arrivals at so many per second."""
    at = random.expovariate(rate)
    while at < seconds:
        yield at
        at += random.expovariate(rate)


def closed(url: str, asks: Iterable[Ask], *, streams: int, seconds: float = float("inf")) -> list[RequestResult]:
    """Send these, so many at a time, each when one before it has ended; none that would begin after `seconds`."""
    return asyncio.run(_closed(url, iter(asks), streams, seconds))


def open_loop(url: str, asks: Sequence[Ask], *, patience: float) -> list[RequestResult]:
    """Send each when it arrives, whatever became of the others; clients leave `patience` seconds after the last."""
    return asyncio.run(arrive(url, asks, patience=patience))


def never_idle(url: str, asks: Sequence[Ask], *, streams: int) -> float:
    """Requests per second of an engine that never idles."""
    began = time.monotonic()
    closed(url, asks, streams=streams)
    return len(asks) / (time.monotonic() - began)


def carried(
    busy: float, kept_at: Callable[[float], float], *, least: float, kept: str
) -> tuple[float, dict[str, float]]:
    """The largest rate at which so much is kept, to within a tenth, and what was kept at each that was tried.

    `busy`: requests per second of an engine that never idles; the search halves what lies around it. `kept_at`: the
    share of requests at a rate. `kept`: that, in words. Raises RuntimeError if so much is kept at none.
    """
    low, high = (share * busy for share in SEARCHED)
    tried: dict[str, float] = {}
    most: float | None = None
    for _ in range(TRIALS):
        rate = math.sqrt(low * high)
        tried[f"{kept} at {rate:.2f}/s"] = found = kept_at(rate)
        print(f"  stock vLLM at {rate:.2f}/s: {found:.3f} {kept}", file=sys.stderr, flush=True)
        if found >= least:
            most = low = rate
        else:
            high = rate
    if most is None:
        raise RuntimeError(f"stock vLLM kept its objectives at no rate that was tried: {tried}")
    return most, tried


async def _closed(url: str, asks: Iterator[Ask], streams: int, seconds: float) -> list[RequestResult]:
    answers: list[RequestResult] = []
    until = time.monotonic() + seconds

    async def stream(session: aiohttp.ClientSession) -> None:
        while time.monotonic() < until and (ask := next(asks, None)) is not None:
            answers.append(RequestResult())
            await _ask(session, url, ask, answers[-1])

    async with _session() as session:
        await asyncio.gather(*(stream(session) for _ in range(streams)))
    return answers


async def arrive(url: str, asks: Sequence[Ask], *, patience: float) -> list[RequestResult]:
    """As `open_loop`, in a loop that does other things beside it."""
    answers = [RequestResult() for _ in asks]
    began = time.monotonic()

    async def later(ask: Ask, answer: RequestResult) -> None:
        await asyncio.sleep(max(0.0, ask.at - (time.monotonic() - began)))
        await _ask(session, url, ask, answer)

    async with _session() as session:
        tasks = [asyncio.create_task(later(ask, answer)) for ask, answer in zip(asks, answers, strict=True)]
        last = max((ask.at for ask in asks), default=0.0)
        _, unfinished = await asyncio.wait(tasks, timeout=last + patience)
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return answers


async def _ask(session: aiohttp.ClientSession, url: str, ask: Ask, answer: RequestResult) -> None:
    body = {
        "model": MODEL_NAME,
        "prompt": list(ask.prompt),
        "max_tokens": ask.output,
        "ignore_eos": True,
        "stream": True,
    }
    sent = time.monotonic()
    try:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            answer.status = response.status
            if response.status != 200:
                await response.read()
                return
            async for line in response.content:
                if line.startswith(_DONE):
                    # Several tokens may come at once, so they are not counted: `ignore_eos` gives exactly these.
                    answer.tokens, answer.ended = ask.output, time.monotonic() - sent
                elif line.startswith(_DATA) and answer.first is None:
                    answer.first = time.monotonic() - sent
    except (aiohttp.ClientError, TimeoutError):
        answer.status = answer.status or -1


def _session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=600, sock_connect=30)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
