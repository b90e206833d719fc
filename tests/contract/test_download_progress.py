"""How far a download is: what its pod answers, and what the operator makes of answers of any kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from flyball_engine.download.progress import ProgressServer
from flyball_engine.model_cache import PROGRESS_BYTES, PROGRESS_PATH, Progress
from flyball_lab.harness.ports import free_port
from flyball_operator.engines import downloads as downloads_module
from flyball_operator.engines.client import engine_session
from flyball_operator.engines.downloads import Downloads


async def asked(port: int) -> Progress | None:
    async with engine_session() as session:
        return await Downloads(session, port).progress("127.0.0.1")


async def test_what_was_told_last_is_answered() -> None:
    server = ProgressServer()
    with server.serving(0) as port:
        assert await asked(port) is None, "nothing is known yet"
        for done in (0, 7):
            server.tell(Progress(done, 10))
            assert await asked(port) == Progress(done, 10)
    assert await asked(port) is None, "nobody is there any more"


def test_a_port_that_is_taken_is_an_error_at_once() -> None:
    with ProgressServer().serving(0) as port, pytest.raises(OSError, match="in use"), ProgressServer().serving(port):
        pass


@asynccontextmanager
async def answering(body: bytes, *, silent: bool = False) -> AsyncIterator[int]:
    """Something else at that port."""

    async def handle(_: web.Request) -> web.Response:
        if silent:
            await asyncio.sleep(3600)
        return web.Response(body=body)

    app = web.Application()
    app.router.add_get(PROGRESS_PATH, handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield port
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    "body", [b"<html>", b'{"done": 3}', b'{"done": 3, "total": 9' + b" " * PROGRESS_BYTES + b"}"], ids=repr
)
async def test_any_other_answer_says_nothing(body: bytes) -> None:
    async with answering(body) as port:
        assert await asked(port) is None


async def test_a_pod_that_never_answers_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads_module, "_SECONDS", 0.3)
    async with answering(b"", silent=True) as port:
        assert await asked(port) is None
