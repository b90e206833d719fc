"""What an API server sends in a watch that is no event of an object. Over HTTP, through kopf."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio import client

from flyball_lab.harness.manifests import Object, good
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.tuners import until
from flyball_operator.api.service_key import Key
from flyball_operator.app.informer import Informer
from flyball_operator.app.kopf_glue import Sessions, Watch, WatchHandlers
from flyball_operator.kube.api import Unfenced, connected
from flyball_operator.kube.cache import Cache
from flyball_operator.kube.configuration import kubeconfig
from flyball_operator.kube.errors import UnavailableError
from flyball_operator.kube.resources import INFERENCE_SERVICES, NAMESPACES, WATCHED, Resource
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.reconcile.queue import KeyQueue
from flyball_operator.reconcile.resync import Shared
from support.stored_api import StoredApi, proxied, served

NAMESPACE = "team"


@pytest.fixture
def api() -> StoredApi:
    """Empty, with the documents by which kopf finds the kinds it watches."""
    found = StoredApi()
    kinds = {(one.group, one.version, one.plural): one for one in (INFERENCE_SERVICES, NAMESPACES, *WATCHED)}.values()
    groups: dict[tuple[str, str], list[Resource]] = {}
    for one in kinds:
        groups.setdefault((one.group, one.version), []).append(one)
    named = sorted({group for group, _ in groups} - {""})
    found.documents["/version"] = {"major": "1", "minor": "36"}
    found.documents["/api"] = {"versions": ["v1"]}
    found.documents["/apis"] = {
        "groups": [
            {"name": name, "versions": [{"version": v} for g, v in groups if g == name]}
            | {"preferredVersion": {"version": next(v for g, v in groups if g == name)}}
            for name in named
        ]
    }
    for (group, version), members in groups.items():
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        verbs = ["get", "list", "watch", "create", "patch", "update", "delete"]
        found.documents[path] = {
            "resources": [
                {"name": one.plural, "kind": one.plural.title(), "singularName": "", "verbs": verbs}
                | {"namespaced": one is not NAMESPACES}
                for one in members
                if "/" not in one.plural
            ]
        }
    return found


@pytest.mark.parametrize("code", [400, 403, 429, 500, 503, 504])
async def test_an_error_in_a_watch_is_no_fault_of_the_process(api: StoredApi, tmp_path: Path, code: int) -> None:
    status = {"kind": "Status", "status": "Failure", "message": "etcdserver: leader changed", "code": code}
    api.watched.put({"type": "ERROR", "object": status})
    with served(api, tmp_path) as path, pytest.MonkeyPatch.context() as patched:
        patched.setenv("KUBECONFIG", str(path))
        configuration, _ = await kubeconfig(None)
        watch = Watch(NAMESPACE, configuration=configuration, instance="test", clock=lambda: 0.0, listen=lambda: None)
        queue: KeyQueue[Key] = KeyQueue(clock=lambda: 0.0, jitter=lambda: 0.5)
        with pytest.raises(UnavailableError, match="leader changed"):
            await watch.run(WatchHandlers(Cache(), queue))


async def test_an_answer_that_only_claims_to_be_json_is_one_that_kopf_knows_to_try_again() -> None:
    async def oops(_: web.Request) -> web.Response:
        return web.Response(status=503, text="oops", content_type="application/json")

    port, application = free_port(), web.Application()
    application.router.add_get("/apis", oops)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{port}"
    sessions = Sessions(configuration, aiohttp.TraceConfig())
    try:
        session = (await sessions.connect()).aiohttp_session
        async with session.get(f"{configuration.host}/apis") as answer:
            with pytest.raises(json.JSONDecodeError):
                await answer.json()
            assert await answer.text() == "oops"
    finally:
        await sessions.close()
        await runner.cleanup()


async def test_a_watch_goes_by_the_proxy_that_the_environment_names(
    api: StoredApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.watched.put({"type": "ERROR", "object": {"kind": "Status", "message": "seen by the proxy", "code": 500}})
    with served(api, tmp_path) as path:
        proxied(path, monkeypatch)
        configuration, _ = await kubeconfig(None)
        watch = Watch(NAMESPACE, configuration=configuration, instance="test", clock=lambda: 0.0, listen=lambda: None)
        queue: KeyQueue[Key] = KeyQueue(clock=lambda: 0.0, jitter=lambda: 0.5)
        with pytest.raises(UnavailableError, match="seen by the proxy"):
            await watch.run(WatchHandlers(Cache(), queue))


async def test_a_namespace_whose_watch_says_error_is_listed_anew(api: StoredApi, tmp_path: Path) -> None:
    api.put(INFERENCE_SERVICES, stored("first"))
    with served(api, tmp_path) as path, pytest.MonkeyPatch.context() as patched:
        patched.setenv("KUBECONFIG", str(path))
        configuration, _ = await kubeconfig(None)
        async with connected(configuration, "flyball-test", Unfenced(), instance="test") as api_client:
            clock, cache = asyncio.get_running_loop().time, Cache()
            watch = Watch(NAMESPACE, configuration=configuration, instance="test", clock=clock, listen=lambda: None)
            queue: KeyQueue[Key] = KeyQueue(clock=clock, jitter=lambda: 0.5)
            shared = Shared(cache=cache, queue=queue, metrics=Metrics(), clock=clock, jitter=lambda: 0.5)
            informer = Informer(api_client, NAMESPACE, shared=shared, watch=watch, gate=asyncio.Semaphore(1))
            running = asyncio.create_task(informer.run(resync_seconds=3600.0))
            await until("the first is known", lambda: known(cache) == {"first"})
            # Its own first list is over, so the second can only be known by another one.
            watched = ("WATCH", INFERENCE_SERVICES.path(NAMESPACE))
            await until("services are watched", lambda: watched in api.requests)
            # Of the second no event comes.
            api.put(INFERENCE_SERVICES, stored("second"))
            api.watched.put({"type": "ERROR", "object": {"kind": "Status", "message": "storage", "code": 500}})
            await until("both are known", lambda: known(cache) == {"first", "second"})
            assert informer.why_unwatched is None
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def stored(name: str) -> Object:
    """A service as the API server has it."""
    return good(
        name,
        metadata__namespace=NAMESPACE,
        metadata__uid=name,
        metadata__resourceVersion="1",
        metadata__generation=1,
    )


def known(cache: Cache) -> set[str]:
    """UIDs of the services that are known."""
    return {uid for uid, _ in cache.services.entries()}
