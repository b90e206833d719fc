"""Clients of an OpenAI endpoint that measure for themselves what an engine says of its requests.

Completions with a fixed number of tokens, streamed: one prompt, several answers to one, several prompts at once. Some
clients leave at the first token, some after a time without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import aiohttp

from flyball_engine.contract import Metric, ObjectiveSpec
from flyball_lab.quantiles import quantile

#: Seconds between two looks at how long the way is.
BETWEEN_PROBES = 0.05


@dataclass(frozen=True)
class Wish:
    """A request to make. `leave_after`: seconds after which the client leaves, whatever it has by then."""

    prompt_tokens: int
    max_tokens: int
    n: int = 1
    prompts: int = 1
    leave_after: float | None = None


@dataclass
class Seen:
    """What a client saw of one request: seconds since it was sent at which each answer's tokens came."""

    tokens: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    left: float | None = None

    @property
    def first(self) -> float:
        return min(times[0] for times in self.tokens.values())

    @property
    def last(self) -> float:
        return max(times[-1] for times in self.tokens.values())

    def gaps(self) -> list[float]:
        return [after - before for times in self.tokens.values() for before, after in pairwise(times)]

    def measure(self, metric: Metric) -> float:
        """The metric as a client would define it for a request that came to its end; gaps by their mean."""
        if metric is Metric.TIME_TO_FIRST_TOKEN:
            return self.first
        if metric is Metric.END_TO_END_LATENCY:
            return self.last
        return max((times[-1] - times[0]) / (len(times) - 1) for times in self.tokens.values())


def mixed(number: int, *, seed: int) -> list[Wish]:
    """Requests of many lengths, some with several answers, some with several prompts."""
    draw = random.Random(seed)
    return [
        Wish(
            prompt_tokens=draw.choice([20, 100, 300]),
            max_tokens=draw.choice([8, 16, 32]),
            n=draw.choice([1, 1, 1, 3]),
            prompts=draw.choice([1, 1, 1, 2]),
        )
        for _ in range(number)
    ]


@dataclass
class Measurement:
    """What all clients saw. `ways`: seconds that each of many requests for `/health` took meanwhile.

    They are asked by the same clients of the same server and need no token: what they take is what lies between a
    client's clock and the engine's, sockets and both event loops, while others want the processors too.
    """

    seen: list[Seen] = field(default_factory=list)
    ways: list[float] = field(default_factory=list)

    @property
    def finished(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.left is None]

    @property
    def way(self) -> float:
        """Seconds from clock to clock that hardly any request takes longer than; 0 where nobody looked."""
        if not self.ways:
            return 0.0
        return quantile(self.ways, 0.98)

    def median(self, metric: Metric) -> float:
        """The metric's median over finished requests, or over gaps."""
        if metric is Metric.INTER_TOKEN_LATENCY:
            return median(gap for seen in self.seen for gap in seen.gaps())
        return median(seen.measure(metric) for seen in self.finished)

    def met(self, objective: ObjectiveSpec) -> float:
        """The share that met an objective: of finished requests, or of all gaps."""
        if objective.metric is Metric.INTER_TOKEN_LATENCY:
            return share(gap <= objective.threshold_seconds for seen in self.seen for gap in seen.gaps())
        return share(seen.measure(objective.metric) <= objective.threshold_seconds for seen in self.finished)

    def met_all(self, objectives: Sequence[ObjectiveSpec]) -> float:
        """The share of finished requests that met all of these, that of gaps by their mean."""
        return share(
            all(seen.measure(objective.metric) <= objective.threshold_seconds for objective in objectives)
            for seen in self.finished
        )


def share(verdicts: Iterable[bool]) -> float:
    """The share of those that hold."""
    listed = list(verdicts)
    return sum(listed) / len(listed)


async def measure(url: str, model: str, wishes: Sequence[Wish], *, concurrency: int) -> Measurement:
    """Makes all requests, so many at a time."""
    measurement = Measurement()
    waiting = list(enumerate(wishes))
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def client() -> None:
            while waiting:
                number, wish = waiting.pop(0)
                measurement.seen.append(await _ask(session, f"{url}/v1/completions", model, number, wish))

        probes = asyncio.create_task(_probe(session, f"{url}/health", measurement.ways))
        try:
            await asyncio.gather(*(client() for _ in range(concurrency)))
        finally:
            probes.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probes
    return measurement


async def _probe(session: aiohttp.ClientSession, url: str, ways: list[float]) -> None:
    while True:
        began = time.monotonic()
        async with session.get(url) as response:
            assert response.status == 200, await response.text()
        ways.append(time.monotonic() - began)
        await asyncio.sleep(BETWEEN_PROBES)


async def _ask(session: aiohttp.ClientSession, url: str, model: str, number: int, wish: Wish) -> Seen:
    prompts = [
        [(number * 7919 + which * 104_729 + position * 31) % 4000 + 100 for position in range(wish.prompt_tokens)]
        for which in range(wish.prompts)
    ]
    body = {"model": model, "prompt": prompts, "n": wish.n, "max_tokens": wish.max_tokens}
    body |= {"ignore_eos": True, "stream": True}
    seen = Seen()
    began = time.monotonic()
    try:
        async with asyncio.timeout(wish.leave_after), session.post(url, json=body) as response:
            assert response.status == 200, await response.text()
            await _read(response, seen, began)
    except TimeoutError:
        seen.left = time.monotonic() - began
    return seen


async def _read(response: aiohttp.ClientResponse, seen: Seen, began: float) -> None:
    async for line in response.content:
        now = time.monotonic() - began
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                seen.tokens[choice["index"]].append(now)
