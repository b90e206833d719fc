"""Streaming load from outside: many concurrent completions, each checked to its last token.

A request counts as failed when the server gave an error or the connection broke, and as truncated when it ended with
fewer tokens than asked (`ignore_eos` makes the engine give exactly that many). One that the engine's gate refused (503
with Retry-After) is counted apart, and comes again a moment later, sooner than asked: these clients are impatient.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp

#: Seconds until a client that was refused comes again: often enough to overload, and not to take the processors.
IMPATIENCE = 2.0
#: Numbers of prompts, over all loads: no two prompts begin alike, so that no load finds another's in the prefix cache.
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class FirstToken:
    """When a request was sent, by the monotonic clock, and how long its first token took."""

    sent: float
    seconds: float


@dataclass(frozen=True)
class LostRequest:
    """One that did not get what it asked for: when it was sent and when it ended, by the monotonic clock, and why."""

    sent: float
    ended: float
    why: str

    def __str__(self) -> str:
        return f"{self.why}, after {self.ended - self.sent:.1f} s"


@dataclass
class StreamTotals:
    """What the clients saw. `refused`: the Retry-After of each refusal; `first_tokens` of those that finished."""

    finished: int = 0
    refused: list[int] = field(default_factory=list)
    first_tokens: list[FirstToken] = field(default_factory=list)
    failures: list[LostRequest] = field(default_factory=list)
    truncated: list[LostRequest] = field(default_factory=list)

    def expect_nothing_lost(self) -> None:
        """Assert that requests ran and that every one of them got all it asked for."""
        assert self.finished > 0, "no request finished"
        assert not self.failures, f"{len(self.failures)} failed, first: {self.failures[0]}"
        assert not self.refused, f"{len(self.refused)} were refused"
        assert not self.truncated, f"{len(self.truncated)} truncated, first: {self.truncated[0]}"


class StreamLoad:
    """`concurrency` streams against one OpenAI endpoint, each starting anew when it ends, until stopped.

    `prompt_tokens` of all prompts, or of one after the other. `pause`: seconds that each stream rests between two.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        concurrency: int,
        prompt_tokens: int | Sequence[int] = 64,
        max_tokens: int = 48,
        pause: float = 0.0,
    ) -> None:
        self.totals = StreamTotals()
        self._url = url
        self._model = model
        self._concurrency = concurrency
        self._prompt_tokens = (prompt_tokens,) if isinstance(prompt_tokens, int) else prompt_tokens
        self._max_tokens = max_tokens
        self._pause = pause
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[StreamTotals]:
        """Load for as long as the block lasts; on leaving, requests in flight run to their end."""
        thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="stream-load")
        thread.start()
        try:
            yield self.totals
        finally:
            self._stop.set()
            thread.join()

    async def _run(self) -> None:
        # Nobody answers at the address of a Service that is gone.
        timeout = aiohttp.ClientTimeout(total=600, sock_connect=30)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            await asyncio.gather(*(self._stream(session) for _ in range(self._concurrency)))

    async def _stream(self, session: aiohttp.ClientSession) -> None:
        while not self._stop.is_set():
            number = next(_NUMBERS)
            sent = time.monotonic()
            try:
                await self._request(session, number)
                if self._pause and not self._stop.is_set():
                    await asyncio.sleep(self._pause)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                self.totals.failures.append(LostRequest(sent, time.monotonic(), f"request {number}: {error!r}"))
                await asyncio.sleep(0.2)  # a dead endpoint would otherwise be hammered

    async def _request(self, session: aiohttp.ClientSession, number: int) -> None:
        length = self._prompt_tokens[number % len(self._prompt_tokens)]
        prompt = [(number * 7919 + position * 31) % 4000 + 100 for position in range(length)]
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": self._max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        tokens = 0
        done = False
        sent, first = time.monotonic(), None
        async with session.post(f"{self._url}/v1/completions", json=body) as response:
            if response.status == 503 and "Retry-After" in response.headers:
                self.totals.refused.append(int(response.headers["Retry-After"]))
                await asyncio.sleep(IMPATIENCE)
                return
            if response.status != 200:
                raise ValueError(f"HTTP {response.status}: {(await response.text())[:300]}")
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                if line.strip() == b"data: [DONE]":
                    done = True
                    continue
                event = json.loads(line[6:])
                if first is None and event.get("choices"):
                    first = time.monotonic() - sent
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        self.totals.finished += 1
        if first is not None:
            self.totals.first_tokens.append(FirstToken(sent, first))
        if not done or tokens != self._max_tokens:
            why = f"request {number}: {tokens} of {self._max_tokens} tokens, done={done}"
            self.totals.truncated.append(LostRequest(sent, time.monotonic(), why))
