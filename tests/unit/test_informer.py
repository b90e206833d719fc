"""One namespace's informer, second by second: when it is out, when it is tried again, and what ends more than it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from flyball_lab.harness.manifests import Object, good
from flyball_lab.harness.virtual_time import in_virtual_time
from flyball_operator.api.service_key import Key
from flyball_operator.app.informer import LONGEST_RETRY_SECONDS, Informer, Informers
from flyball_operator.app.kopf_glue import Watch, WatchHandlers
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.cache import Cache
from flyball_operator.kube.errors import (
    ClusterError,
    ForbiddenError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from flyball_operator.kube.resources import INFERENCE_SERVICES, Resource
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.reconcile.queue import KeyQueue
from flyball_operator.reconcile.resync import Shared
from flyball_operator.supervision import EndedError

RESYNC = 300.0


@dataclass
class Server:
    """An API server with one service in one namespace, and more if asked for; `error`: what it answers instead."""

    error: ClusterError | None = None
    asked_at: list[float] = field(default_factory=list)
    more_uids: tuple[str, ...] = ()

    async def get(self, *_: Any) -> Object:
        self.asked_at.append(asyncio.get_running_loop().time())
        self._fail()
        return {}

    async def ask(self, *_: Any) -> Object:
        self._fail()
        return {"status": {"allowed": True}}

    async def list(self, resource: Resource, namespace: str, **_: Any) -> tuple[list[Object], str]:
        found = [good(uid, metadata__namespace=namespace) for uid in (f"s-{namespace}", *self.more_uids)]
        for one in found:
            one["metadata"] |= {"uid": one["metadata"]["name"], "resourceVersion": "1", "generation": 1}
        self._fail()
        return found if resource is INFERENCE_SERVICES else [], "1"

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


class Stream:
    """A watch that goes on until it is told what ends it."""

    def __init__(self) -> None:
        self.ends: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self.runs = 0
        self.silence: tuple[str, ...] = ()

    async def run(self, _: WatchHandlers) -> NoReturn:
        self.runs += 1
        self.ends = asyncio.get_running_loop().create_future()
        await self.ends
        raise AssertionError

    def silent(self) -> tuple[str, ...]:
        return self.silence


class Story:
    """An informer at work, its API server and its watch."""

    def __init__(self) -> None:
        clock = asyncio.get_running_loop().time
        queue: KeyQueue[Key] = KeyQueue(clock=clock, jitter=lambda: 0.5)
        self.cache, self.server, self.stream = Cache(), Server(), Stream()
        shared = Shared(cache=self.cache, queue=queue, metrics=Metrics(), clock=clock, jitter=lambda: 0.5)
        api, watch, gate = cast("KubeApi", self.server), cast("Watch", self.stream), asyncio.Semaphore(1)
        self.informer = Informer(api, "team", shared=shared, watch=watch, gate=gate)
        self.all = Informers(lambda _: self.informer, ["team"])
        self.running = asyncio.create_task(self.informer.run(RESYNC))

    @property
    def known(self) -> int:
        return len(list(self.cache.services))


@asynccontextmanager
async def following() -> AsyncIterator[Story]:
    """A namespace that is followed."""
    scene = Story()
    await asyncio.sleep(1)
    assert (scene.known, scene.informer.why_unwatched, scene.stream.runs) == (1, None, 1)
    yield scene
    scene.running.cancel()
    await asyncio.gather(scene.running, return_exceptions=True)


@in_virtual_time
async def test_a_refused_watch_puts_the_namespace_out_and_is_tried_again() -> None:
    async with following() as scene:
        scene.server.error = ForbiddenError("no")
        scene.stream.ends.set_exception(ForbiddenError("no"))
        await asyncio.sleep(1)
        assert (scene.known, scene.informer.why_unwatched) == (0, "no")
        assert list(scene.all.missing) == ["no"]
        asked = len(scene.server.asked_at)
        await asyncio.sleep(3600)
        waits = [b - a for a, b in zip(scene.server.asked_at[asked:], scene.server.asked_at[asked + 1 :], strict=False)]
        assert max(waits) <= 1.1 * LONGEST_RETRY_SECONDS, "bounded"
        assert len(waits) < 70, "and not often"
        assert scene.all.standing_still(RESYNC) == ()
        scene.server.error = None
        await asyncio.sleep(1.2 * LONGEST_RETRY_SECONDS)
        assert (scene.known, scene.informer.why_unwatched, scene.stream.runs) == (1, None, 2)
        assert not scene.all.missing


@in_virtual_time
async def test_a_namespace_of_another_release_is_known_but_not_looked_after() -> None:
    async with following() as scene:
        why = "namespace team belongs to release other/flyball"
        foreign = Informers(lambda _: scene.informer, ["team"], why_not_held=lambda _: why)
        assert (foreign.why_unwatched("team"), foreign.why_left(scene.informer)) == (None, why)
        assert list(foreign.missing) == [why]
        assert scene.known == 1
        asked = scene.informer.resyncer.idle()
        await foreign.take_over("team")
        assert scene.informer.resyncer.idle() < asked, "listed anew before anything is done"


@in_virtual_time
async def test_a_refused_list_puts_it_out_though_its_streams_go_on() -> None:
    async with following() as scene:
        scene.server.error = NotFoundError("gone")
        await asyncio.sleep(1.2 * RESYNC)
        assert (scene.known, scene.informer.why_unwatched) == (0, "namespace team does not exist")


@pytest.mark.parametrize("error", [UnavailableError("later"), UnauthorizedError("who?")])
@in_virtual_time
async def test_a_server_that_cannot_answer_leaves_it_as_it_is(error: ClusterError) -> None:
    async with following() as scene:
        scene.server.error = error
        scene.stream.ends.set_exception(error)
        await asyncio.sleep(600)
        assert (scene.known, scene.informer.why_unwatched) == (1, None)
        assert scene.all.standing_still(RESYNC) == ()
        scene.server.error = None
        await asyncio.sleep(1.2 * LONGEST_RETRY_SECONDS)
        assert scene.stream.runs == 2


@in_virtual_time
async def test_a_new_leader_knows_nothing_of_what_cannot_be_listed() -> None:
    async with following() as scene:
        scene.server.error = UnavailableError("later")
        refreshing = asyncio.create_task(scene.all.refresh())
        await asyncio.sleep(60)
        assert scene.known == 0
        assert not refreshing.done()
        scene.server.error = None
        await asyncio.wait_for(refreshing, 10)
        assert scene.known == 1


@in_virtual_time
async def test_a_new_leader_of_a_shard_that_cannot_list_leaves_the_services_of_others() -> None:
    async with following() as scene:
        scene.server.more_uids = ("other",)
        await scene.informer.resyncer.resync()
        assert (scene.known, scene.all.listed) == (2, True)
        scene.server.error = UnavailableError("later")
        refreshing = asyncio.create_task(scene.all.refresh(concerns=lambda uid: uid == "other"))
        await asyncio.sleep(60)
        assert [one.meta.uid for one in scene.cache.services] == ["s-team"]
        assert not scene.all.listed, "whoever counts all services waits"
        scene.server.error = None
        await asyncio.wait_for(refreshing, 10)
        assert (scene.known, scene.all.listed) == (2, True)


@in_virtual_time
async def test_not_all_is_listed_while_a_namespace_cannot_be_asked_and_all_is_where_it_is_refused() -> None:
    scene = Story()
    scene.server.error = UnavailableError("later")
    await asyncio.sleep(1)
    assert not scene.all.listed
    scene.server.error = ForbiddenError("no")
    await asyncio.sleep(2 * LONGEST_RETRY_SECONDS)
    assert scene.informer.refused
    assert scene.all.listed, "nobody looks after its services"
    scene.running.cancel()
    await asyncio.gather(scene.running, return_exceptions=True)


@in_virtual_time
async def test_a_watch_that_ends_by_anything_else_ends_more() -> None:
    async with following() as scene:
        scene.stream.ends.set_exception(RuntimeError("a bug"))
        with pytest.raises(RuntimeError, match="a bug"):
            await scene.running


@in_virtual_time
async def test_a_watch_that_is_cancelled_by_a_stranger_ends_more() -> None:
    async with following() as scene:
        scene.stream.ends.cancel()
        with pytest.raises(EndedError, match="namespace team: ended unasked: watch"):
            await scene.running


@in_virtual_time
async def test_a_silent_watch_is_named() -> None:
    async with following() as scene:
        scene.stream.silence = ("pods for 500 s",)
        assert scene.all.standing_still(RESYNC) == ("namespace team: the watch of pods for 500 s",)


class Several:
    """Informers of namespaces that come and go, and the streams of each that was made."""

    def __init__(self) -> None:
        clock = asyncio.get_running_loop().time
        queue: KeyQueue[Key] = KeyQueue(clock=clock, jitter=lambda: 0.5)
        self.cache, self.server = Cache(), Server()
        self.shared = Shared(cache=self.cache, queue=queue, metrics=Metrics(), clock=clock, jitter=lambda: 0.5)
        self.gate = asyncio.Semaphore(1)
        self.streams: dict[str | None, Stream] = {}
        self.all = Informers(self._made, None)
        self.running = asyncio.create_task(self.all.run(RESYNC))

    def _made(self, namespace: str | None) -> Informer:
        self.streams[namespace] = Stream()
        api, watch = cast("KubeApi", self.server), cast("Watch", self.streams[namespace])
        return Informer(api, namespace, shared=self.shared, watch=watch, gate=self.gate)

    @property
    def watched(self) -> dict[str | None, bool]:
        return {one.namespace: one.why_unwatched is None for one in self.all}

    @property
    def known(self) -> set[str]:
        return {desire.meta.namespace for desire in self.cache.services}

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


@in_virtual_time
async def test_namespaces_come_and_go() -> None:
    scene = Several()
    assert list(scene.all.missing) == ["the namespaces have not been listed yet"]
    scene.all.cover(["one", "two"])
    await asyncio.sleep(1)
    assert scene.watched == {"one": True, "two": True}
    assert scene.known == {"one", "two"}
    before = scene.streams["two"]
    scene.all.cover({"one", "three"})
    assert scene.known == {"one"}, "at once"
    assert scene.all.why_unwatched("two") == "", "nothing is done about its services, and nothing said"
    await asyncio.sleep(1)
    assert scene.watched == {"one": True, "three": True}
    assert before.ends.cancelled(), "its streams end"
    assert scene.streams["one"].runs == 1, "others go on"
    scene.all.cover({"one", "two"})
    await asyncio.sleep(1)
    assert scene.known == {"one", "two"}
    assert scene.streams["two"].runs == 1
    scene.all.cover(())
    await asyncio.sleep(1)
    assert (scene.known, scene.all.missing) == (set(), ())
    await scene.end()


@in_virtual_time
async def test_one_that_goes_and_comes_back_at_once_is_followed_anew() -> None:
    scene = Several()
    scene.all.cover({"one"})
    await asyncio.sleep(1)
    scene.all.cover(())
    scene.all.cover({"one"})
    await asyncio.sleep(1)
    assert (scene.known, scene.watched) == ({"one"}, {"one": True})
    await scene.end()


@in_virtual_time
async def test_a_selected_namespace_without_rights_is_out_until_they_are_granted() -> None:
    scene = Several()
    scene.server.error = ForbiddenError("not granted")
    scene.all.cover({"one"})
    await asyncio.sleep(600)
    assert (list(scene.all.missing), scene.known) == (["not granted"], set())
    scene.server.error = None
    await asyncio.sleep(1.2 * LONGEST_RETRY_SECONDS)
    assert (scene.watched, scene.known) == ({"one": True}, {"one"})
    await scene.end()


@in_virtual_time
async def test_a_new_leader_waits_for_the_list_of_namespaces_and_not_for_one_that_goes() -> None:
    scene = Several()
    begun: list[float] = []
    refreshing = asyncio.create_task(scene.all.refresh(lambda: begun.append(0.0)))
    await asyncio.sleep(1000)
    assert not begun, "no namespace is known, so nothing stands still"
    async with scene.gate:
        scene.all.cover({"one"})
        await asyncio.sleep(1)
        assert begun
        scene.all.cover(())
        await asyncio.wait_for(refreshing, 10)
    await scene.end()


@in_virtual_time
async def test_one_that_dies_ends_all_and_so_does_one_that_ends_unasked() -> None:
    scene = Several()
    scene.all.cover({"one", "two"})
    await asyncio.sleep(1)
    scene.streams["two"].ends.set_exception(RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        await scene.running
    scene = Several()
    scene.all.cover({"one"})
    await asyncio.sleep(1)
    (task,) = (one for one in asyncio.all_tasks() if one.get_name() == "informer of namespace one")
    task.cancel()
    with pytest.raises(EndedError, match="informer of namespace one"):
        await scene.running


def watch(server: TestServer) -> Watch:
    """kopf itself, with a token that stays the same."""
    configuration = client.Configuration(host=str(server.make_url("")).rstrip("/"))
    configuration.api_key["BearerToken"] = "Bearer token"
    return Watch("team", configuration=configuration, instance="one", clock=lambda: 0.0, listen=lambda: None)


def watcher() -> WatchHandlers:
    return WatchHandlers(Cache(), KeyQueue(clock=lambda: 0.0, jitter=lambda: 0.5))


@asynccontextmanager
async def doubting() -> AsyncIterator[TestServer]:
    """An API server that serves and lists pods, and does not know who watches them."""
    kind = {"singularName": "", "namespaced": True, "verbs": ["list", "watch"]}
    kinds = [kind | {"name": "pods", "kind": "Pod"}, kind | {"name": "namespaces", "kind": "Namespace"}]
    answers: dict[str, Object] = {
        "/api": {"versions": ["v1"]},
        "/apis": {"groups": []},
        "/api/v1": {"resources": kinds},
        "/api/v1/namespaces/team/pods": {"metadata": {"resourceVersion": "1"}, "items": []},
    }

    async def answer(request: web.Request) -> web.Response:
        if "watch" in request.query:
            return web.json_response({"kind": "Status", "message": "Unauthorized"}, status=401)
        return web.json_response(answers[request.path])

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    server = TestServer(application)
    async with server:
        yield server


async def test_a_watch_that_the_api_server_does_not_know_is_no_bug() -> None:
    async with doubting() as server:
        with pytest.raises(UnauthorizedError, match="Unauthorized"):
            await asyncio.wait_for(watch(server).run(watcher()), 60)


async def test_a_watch_that_is_cancelled_as_it_begins_leaves_nothing_running() -> None:
    def begun() -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks()} & {"stop-flag checker", "resource observer"}

    async with doubting() as server:
        running = asyncio.create_task(watch(server).run(watcher()))
        while not begun():  # noqa: ASYNC110 - cancelled in the very turn of the loop in which they begin
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running}, timeout=60)
        assert running.cancelled()
        assert begun() == set()
