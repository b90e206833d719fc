"""What /healthz says: which part of the operator stands still, and nothing while all parts do their work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from kubernetes.aio import client

from flyball_operator.app.kopf_glue import Watch
from flyball_operator.app.main import Operator
from flyball_operator.app.settings import Settings
from flyball_operator.app.term import Term
from flyball_operator.tuning.tuner import Tuner

RESYNC = 300.0
FINE = (200, "ok\n")


class Probed:
    """An operator that talks to nobody, on a clock that is set by hand."""

    def __init__(self, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, selector: str = "") -> None:
        self.now, self.stack = 1000.0, stack
        monkeypatch.setattr("flyball_operator.app.main.boot_clock", lambda: self.now)
        where: dict[str, Any] = {"watch_namespace_selector": selector} if selector else {"namespaces": "team"}
        settings = Settings(**where, pod_namespace="home", resync_seconds=RESYNC, tick_seconds=5.0)
        self.operator = Operator(settings, client.Configuration(host="http://127.0.0.1:9"), stack)

    async def answer(self) -> tuple[int, str | None]:
        answer = await self.operator.health.healthz(cast("web.Request", None))
        return answer.status, answer.text

    async def term(self) -> Term:
        """A candidacy for the only shard."""
        (shard,) = self.operator.shards.all
        term = self.operator.shards._terms[shard] = Term(shard, self.operator.process, self.stack)
        await term.assemble()
        return term

    def follow(self, **changes: Any) -> None:
        """The namespace is watched, and its resync begins now."""
        (informer,) = self.operator.informers
        vars(informer).update(_following=True)
        vars(informer.resyncer).update(_tried=self.now, **changes)


@asynccontextmanager
async def probed(monkeypatch: pytest.MonkeyPatch, selector: str = "") -> AsyncIterator[Probed]:
    async with AsyncExitStack() as stack:
        made = Probed(stack, monkeypatch, selector)
        await made.operator.assemble()
        assert await made.answer() == FINE
        yield made


async def test_a_namespace_that_is_not_tried_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with probed(monkeypatch) as scene:
        scene.now += 240
        assert await scene.answer() == FINE
        scene.now += 60
        assert await scene.answer() == (500, "namespace team: it has not been tried for 300 s\n")


async def test_selected_namespaces_that_are_listed_no_more_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with probed(monkeypatch, "team=ml") as scene:
        selection = scene.operator.selection
        assert selection is not None
        scene.now += 1000
        assert await scene.answer() == FINE, "nothing is listed before all is installed"
        vars(selection).update(_tried=scene.now - 400)
        assert await scene.answer() == (500, "the namespaces have not been listed for 400 s\n")


async def test_a_sweep_that_is_not_tried_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with probed(monkeypatch) as scene:
        scene.follow()
        scene.now += 3 * RESYNC
        assert await scene.answer() == FINE
        scene.now += 100
        assert await scene.answer() == (500, "namespace team: nothing has been tried to list for 1000 s\n")


async def test_a_silent_watch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with probed(monkeypatch) as scene:
        scene.follow()
        monkeypatch.setattr(Watch, "silent", lambda _: ("pods for 500 s",))
        assert await scene.answer() == (500, "namespace team: the watch of pods for 500 s\n")


async def test_a_tick_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with probed(monkeypatch) as scene:
        term = await scene.term()
        term.tuner = cast("Tuner", SimpleNamespace(idle=lambda: scene.now - 1000.0))
        scene.now += 120
        assert await scene.answer() == FINE
        scene.now += 1
        assert await scene.answer() == (500, "the tuner's loop has not turned for 121 s\n")


async def test_a_leader_that_lists_for_ever_and_never_tunes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with probed(monkeypatch) as scene:
        term = await scene.term()
        term.elector.leading.set()
        leading = asyncio.create_task(term._lead())
        await asyncio.sleep(0)
        scene.now += 400
        scene.follow()
        assert await scene.answer() == FINE, "both rounds of requests may time out"
        scene.now += 100
        said = "this leader has not begun to tune: it lists the namespaces for 500 s\n"
        assert await scene.answer() == (500, said)
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
