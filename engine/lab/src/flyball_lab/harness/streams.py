"""Streaming load from outside: completions, each checked to its last token.

Many at once (`StreamLoad`), or each at a time of its own (`play`). Each request has a connection of its own: a Service
chooses a pod by connection.

A request counts as failed when the server gave an error or the connection broke, and as truncated when it ended with
fewer tokens than asked (`ignore_eos` makes the engine give exactly that many). One that the engine's gate refused (503
with Retry-After) is counted apart. Of many at once it comes again a moment later, sooner than asked: these clients are
impatient.
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
#: Seconds after which any client leaves.
_PATIENCE = 600.0
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
    `patience`: seconds after which a client leaves, which counts as failed, and comes again.
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
        patience: float = _PATIENCE,
    ) -> None:
        self.totals = StreamTotals()
        self._url = url
        self._model = model
        self._concurrency = concurrency
        self._prompt_tokens = (prompt_tokens,) if isinstance(prompt_tokens, int) else prompt_tokens
        self._max_tokens = max_tokens
        self._pause = pause
        self._patience = patience
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
        async with _session(self._patience) as session:
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
        sent = time.monotonic()
        answer = await _stream(session, self._url, self._model, number, (length, self._max_tokens))
        if answer.retry_after is not None:
            self.totals.refused.append(answer.retry_after)
            await asyncio.sleep(IMPATIENCE)
            return
        self.totals.finished += 1
        if answer.first is not None:
            self.totals.first_tokens.append(FirstToken(sent, answer.first - sent))
        if (why := answer.lacks(self._max_tokens)) is not None:
            self.totals.truncated.append(LostRequest(sent, time.monotonic(), f"request {number}: {why}"))


@dataclass(frozen=True)
class PlannedStream:
    """A request: when it is to be sent, in seconds from the start, and its lengths in tokens."""

    at: float
    prompt: int
    output: int


@dataclass(frozen=True)
class PlayedStream:
    """What its client saw, in seconds from the start.

    `sent`: later than planned where the client's machine was busy. `first`: its first token, None if there was none.
    `ended`: its last, or when it failed. `lost`: why it did not get what it asked for, None if it did.
    """

    planned: PlannedStream
    sent: float
    first: float | None
    ended: float
    lost: str | None = None

    @property
    def late(self) -> float:
        """Seconds by which it was sent too late."""
        return self.sent - self.planned.at

    def keeps(self, *, ttft: float, tpot: float) -> bool:
        """Whether it got all, its first token within `ttft` seconds and the others in `tpot` each, in the mean."""
        if self.lost is not None or self.first is None:
            return False
        return self.first - self.sent <= ttft and self.ended - self.first <= tpot * (self.planned.output - 1)


def play(url: str, model: str, streams: Sequence[PlannedStream]) -> list[PlayedStream]:
    """Send each at its time, whatever became of the others, and wait for all."""
    return asyncio.run(_play(url, model, streams))


async def _play(url: str, model: str, streams: Sequence[PlannedStream]) -> list[PlayedStream]:
    async with _session() as session:
        began = time.monotonic()

        async def one(planned: PlannedStream) -> PlayedStream:
            sent = time.monotonic() - began
            first, lost = None, None
            try:
                answer = await _stream(session, url, model, next(_NUMBERS), (planned.prompt, planned.output))
                first = None if answer.first is None else answer.first - began
                refused = answer.retry_after is not None
                lost = "refused" if refused else answer.lacks(planned.output)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                lost = repr(error)
            return PlayedStream(planned, sent, first, time.monotonic() - began, lost)

        tasks = []
        for planned in streams:
            await asyncio.sleep(began + planned.at - time.monotonic())
            tasks.append(asyncio.create_task(one(planned)))
        return await asyncio.gather(*tasks)


@dataclass(frozen=True)
class _Answer:
    """`retry_after`: it was refused. `first`: when the first token came, by the monotonic clock. `done`: it ended."""

    retry_after: int | None = None
    first: float | None = None
    tokens: int = 0
    done: bool = False

    def lacks(self, tokens: int) -> str | None:
        """What it lacks of so many tokens; None if nothing."""
        whole = self.done and self.tokens == tokens
        return None if whole else f"{self.tokens} of {tokens} tokens, done={self.done}"


def _session(patience: float = _PATIENCE) -> aiohttp.ClientSession:
    # Nobody answers at the address of a Service that is gone.
    timeout = aiohttp.ClientTimeout(total=patience, sock_connect=30)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0, force_close=True))


async def _stream(
    session: aiohttp.ClientSession, url: str, model: str, number: int, lengths: tuple[int, int]
) -> _Answer:
    """One request; `lengths` in tokens of prompt and answer. Raises `ValueError` for an error that the server tells."""
    prompt, output = lengths
    body = {
        "model": model,
        "prompt": [(number * 7919 + position * 31) % 4000 + 100 for position in range(prompt)],
        "max_tokens": output,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first, tokens, done = None, 0, False
    async with session.post(f"{url}/v1/completions", json=body) as response:
        if response.status == 503 and "Retry-After" in response.headers:
            return _Answer(retry_after=int(response.headers["Retry-After"]))
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}: {(await response.text())[:300]}")
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                done = True
            elif first is None or b'"usage"' in line:
                event = json.loads(line[6:])
                if first is None and event.get("choices"):
                    first = time.monotonic()
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    return _Answer(first=first, tokens=tokens, done=done)
