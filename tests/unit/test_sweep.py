"""The sweeper: it lists until it is let, and says how long it has stood still."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

from flyball_operator.cluster.api import KubeApi
from flyball_operator.cluster.cache import Cache
from flyball_operator.cluster.errors import UnavailableError
from flyball_operator.cluster.reader import Key
from flyball_operator.shell.queue import KeyQueue
from flyball_operator.shell.sweep import Sweeper
from flyball_operator.shell.telemetry import Metrics
from support import virtual_time


@dataclass
class Lister:
    """An API server with nothing on it, away until it is back."""

    away: bool = True
    asked: int = 0

    async def list(self, *_: Any, **__: Any) -> tuple[list[Any], str]:
        self.asked += 1
        if self.away:
            raise UnavailableError("connection refused")
        return [], "1"


def sweeper(api: Lister) -> Sweeper:
    clock = asyncio.get_running_loop().time
    queue: KeyQueue[Key] = KeyQueue(clock=clock, jitter=lambda: 0.5)
    return Sweeper(
        cast("KubeApi", api),
        watched=("team",),
        cache=Cache(),
        queue=queue,
        metrics=Metrics(),
        clock=clock,
        jitter=lambda: 0.5,
    )


def test_an_api_server_that_is_away_is_asked_again_and_is_no_standing_still() -> None:
    async def story() -> None:
        made = sweeper(server := Lister())
        running = asyncio.create_task(made.run(300.0))
        await asyncio.sleep(3600)
        assert made.idle() < 10
        assert not made.synced.is_set()
        server.away = False
        await asyncio.sleep(10)
        assert made.synced.is_set()
        running.cancel()

    virtual_time.run(story())


def test_until_swept_returns_with_the_first_list_that_succeeds() -> None:
    async def story() -> None:
        made = sweeper(server := Lister())
        swept = asyncio.create_task(made.until_swept())
        await asyncio.sleep(60)
        assert not swept.done()
        server.away = False
        await swept
        assert made.age() == 0

    virtual_time.run(story())
