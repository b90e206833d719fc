"""What a router does in front of engines that process prompts and engines that make the answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import httpx

from support.greedy import wish

#: What a router tells the first engine; the answer says where the second finds the KV cache.
_FOR_ANOTHER: Final = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    **dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")),
}


class NotAnsweredError(AssertionError):
    """An engine did not answer a request with 200."""


@dataclass(frozen=True)
class Router:
    """Sends each request to an engine that processes its prompt, and then to one that makes the answer.

    `names_cache`: whether the first says where its KV cache is, as with NIXL; else the second finds it by itself.
    """

    producer: str
    consumer: str
    model: str
    names_cache: bool = True

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """For all the requests of a test."""
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=300, trust_env=False, limits=limits) as client:
            yield client

    async def answer(
        self,
        client: httpx.AsyncClient,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        processed_together: AbstractAsyncContextManager[object] | None = None,
    ) -> list[int]:
        """The tokens of the answer; raises NotAnsweredError. A semaphore bounds how many are processed together."""
        first = wish(prompt, max_tokens=1) | {"model": self.model}
        if self.names_cache:
            first["kv_transfer_params"] = _FOR_ANOTHER
        async with processed_together or nullcontext():
            processed = await self._asked(client, self.producer, first)
        then = wish(prompt, max_tokens=max_tokens) | {"model": self.model}
        if (where := processed.get("kv_transfer_params")) is not None:
            then["kv_transfer_params"] = where
        tokens: list[int] = (await self._asked(client, self.consumer, then))["choices"][0]["token_ids"]
        return tokens

    def answers(self, prompts: Sequence[Sequence[int]], *, max_tokens: int, processed_together: int) -> list[list[int]]:
        """The tokens of each prompt's answer. All are sent at once, and so many at most are processed together."""

        async def run() -> list[list[int]]:
            together = asyncio.Semaphore(processed_together)
            async with self.client() as client:
                return await asyncio.gather(
                    *(self.answer(client, one, max_tokens=max_tokens, processed_together=together) for one in prompts)
                )

        return asyncio.run(run())

    async def _asked(self, client: httpx.AsyncClient, url: str, body: dict[str, object]) -> dict[str, Any]:
        response = await client.post(f"{url}/v1/completions", json=body)
        if response.status_code != httpx.codes.OK:
            raise NotAnsweredError(f"{url}: {response.status_code} {response.text}")
        answer: dict[str, Any] = response.json()
        return answer

    @contextmanager
    def load(self, concurrency: int, *, prompts: Sequence[int], max_tokens: int) -> Iterator[RoutedLoad]:
        """So many requests at a time, of prompts of these lengths of which no two are alike, while the block lasts."""
        found = RoutedLoad()
        ends = threading.Event()

        async def worker(client: httpx.AsyncClient, random: Random) -> None:
            while not ends.is_set():
                prompt = [random.randrange(100, 4000) for _ in range(random.choice(prompts))]
                try:
                    await self.answer(client, prompt, max_tokens=max_tokens)
                    found.answered += 1
                except (NotAnsweredError, httpx.HTTPError) as error:
                    found.lost.append(f"{type(error).__name__}: {error}")
                    await asyncio.sleep(1.0)

        async def all_of_them() -> None:
            async with self.client() as client:
                await asyncio.gather(*(worker(client, Random(number)) for number in range(concurrency)))

        thread = threading.Thread(target=lambda: asyncio.run(all_of_them()), daemon=True)
        thread.start()
        try:
            yield found
        finally:
            ends.set()
            thread.join()


@dataclass
class RoutedLoad:
    """What became of requests: so many `answered`, and why others were `lost`."""

    answered: int = 0
    lost: list[str] = field(default_factory=list)

    def expect_nothing_lost(self) -> None:
        assert self.answered, "nothing was answered"
        assert not self.lost, f"{len(self.lost)} of {self.answered + len(self.lost)} lost, first: {self.lost[0]}"
