"""Namespaces that gain and lose labels: what is listed and watched, and what an API server that is away changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from flyball_lab.harness.manifests import Object
from flyball_operator.app import namespace_selection
from flyball_operator.app.namespace_selection import SILENT_SECONDS, NamespaceSelection
from flyball_operator.kube.api import NeverLeading, connected
from flyball_operator.kube.errors import ClusterError, ForbiddenError
from flyball_operator.kube.resources import NAMESPACES

SELECTOR = "team in (a,b)"


def named(name: str) -> Object:
    return {"metadata": {"name": name, "resourceVersion": "7"}}


class Server:
    """An API server with namespaces; events are sent to whoever watches. `status`: what it answers instead of 200."""

    def __init__(self) -> None:
        self.names = {"one"}
        self.status = 200
        self.lists = 0
        self.events: asyncio.Queue[Object | None] = asyncio.Queue()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.query["labelSelector"] == SELECTOR
        if self.status != 200:
            return web.json_response({"message": "not now"}, status=self.status)
        if "watch" not in request.query:
            self.lists += 1
            listed = [named(name) for name in sorted(self.names)]
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": listed})
        assert request.query["resourceVersion"] == "7"
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await self.events.get()) is not None:
            await response.write(json.dumps(event).encode() + b"\n")
        return response

    def tell(self, kind: str, name: str) -> None:
        self.events.put_nowait({"type": kind, "object": named(name)})

    def end_watch(self) -> None:
        self.events.put_nowait(None)


class Scene:
    def __init__(self) -> None:
        self.server = Server()
        self.now = 0.0
        self.covered: list[set[str]] = []
        self.selection: NamespaceSelection

    def cover(self, found: Collection[str]) -> None:
        self.covered.append(set(found))

    async def until(self, *wanted: str) -> None:
        async with asyncio.timeout(60):
            while self.covered[-1:] != [set(wanted)]:  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0.01)


@asynccontextmanager
async def following(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """A selection at work."""
    monkeypatch.setattr(namespace_selection, "RETRY_SECONDS", 0.01)
    scene = Scene()
    application = web.Application()
    application.router.add_get("/api/v1/namespaces", scene.server.answer)
    async with TestServer(application) as server:
        configuration = client.Configuration(host=str(server.make_url("")).rstrip("/"))
        async with connected(configuration, "flyball-test", NeverLeading(), instance="one") as api:
            scene.selection = NamespaceSelection(api, SELECTOR, cover=scene.cover, clock=lambda: scene.now)
            running = asyncio.create_task(scene.selection.run())
            await scene.until("one")
            yield scene
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            scene.server.end_watch()


async def test_labels_that_are_given_and_taken_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(monkeypatch) as scene:
        scene.server.tell("ADDED", "two")
        await scene.until("one", "two")
        scene.server.tell("MODIFIED", "two")
        scene.server.tell("DELETED", "one")
        await scene.until("two")
        assert scene.server.lists == 1


async def test_when_a_watch_ends_they_are_listed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(monkeypatch) as scene:
        scene.server.names = {"three"}
        scene.server.end_watch()
        await scene.until("three")


@pytest.mark.parametrize("status", [403, 410, 503])
async def test_an_error_among_the_events_ends_the_watch(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    async with following(monkeypatch) as scene:
        scene.server.names = {"three"}
        error = {"kind": "Status", "code": status, "message": "too old"}
        scene.server.events.put_nowait({"type": "ERROR", "object": error})
        await scene.until("three")


async def test_while_the_api_server_cannot_answer_they_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(monkeypatch) as scene:
        scene.server.status = 503
        scene.server.end_watch()
        await asyncio.sleep(0.2)
        assert scene.covered == [{"one"}]
        scene.server.names, scene.server.status = {"two"}, 200
        await scene.until("two")


async def test_a_watch_that_is_refused_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    server.status = 403
    application = web.Application()
    application.router.add_get("/api/v1/namespaces", server.answer)
    async with TestServer(application) as serving:
        configuration = client.Configuration(host=str(serving.make_url("")).rstrip("/"))
        async with connected(configuration, "flyball-test", NeverLeading(), instance="one") as api:
            with pytest.raises(ForbiddenError):
                await anext(api.watch(NAMESPACES, selector=SELECTOR, version="7", seconds=5))
        async with connected(client.Configuration(host="http://127.0.0.1:9"), "t", NeverLeading(), instance="i") as api:
            with pytest.raises(ClusterError):
                await anext(api.watch(NAMESPACES, selector=SELECTOR, version="7", seconds=5))


async def test_one_that_lists_no_more_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(monkeypatch) as scene:
        scene.now = SILENT_SECONDS
        assert scene.selection.standing_still() == ()
        scene.now += 1
        assert scene.selection.standing_still() == (f"the namespaces have not been listed for {scene.now:.0f} s",)
