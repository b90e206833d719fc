"""How far a download is: what its pod answers, and what the operator makes of answers of any kind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from flyball_engine.download.progress import ProgressServer
from flyball_engine.model_cache import PROGRESS_BYTES, PROGRESS_PATH, Progress
from flyball_operator.engines import downloads as downloads_module
from flyball_operator.engines.client import engine_session
from flyball_operator.engines.downloads import ANSWER_SECONDS, SILENT_SECONDS, Downloads


async def asked(port: int) -> Progress | None:
    async with engine_session() as session:
        return await Downloads(session, time.monotonic, port=port).progress("127.0.0.1")


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
async def answering(body: bytes) -> AsyncIterator[int]:
    """Something else at that port."""

    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=body)

    app = web.Application()
    app.router.add_get(PROGRESS_PATH, handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    "body", [b"<html>", b'{"done": 3}', b'{"done": 3, "total": 9' + b" " * PROGRESS_BYTES + b"}"], ids=repr
)
async def test_any_other_answer_says_nothing(body: bytes) -> None:
    async with answering(body) as port:
        assert await asked(port) is None


class Clock:
    """Time that only a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_an_answer_holds_for_a_while() -> None:
    server, clock = ProgressServer(), Clock()
    with server.serving(0) as port:
        async with engine_session() as session:
            downloads = Downloads(session, clock, port=port)
            for done, shown in ((1, 1), (2, 1)):
                server.tell(Progress(done, 10))
                assert await downloads.progress("127.0.0.1") == Progress(shown, 10)
            clock.now += ANSWER_SECONDS
            assert await downloads.progress("127.0.0.1") == Progress(2, 10)


async def test_a_pod_that_never_answers_is_asked_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at its service waits for the answer, and looks come whenever anything of it changes."""
    monkeypatch.setattr(downloads_module, "_SECONDS", 0.3)
    clock, connections = Clock(), []

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server, engine_session() as session:
        downloads = Downloads(session, clock, port=server.sockets[0].getsockname()[1])
        for _ in range(5):
            assert await downloads.progress("127.0.0.1") is None
        assert len(connections) == 1
        clock.now += SILENT_SECONDS
        assert await downloads.progress("127.0.0.1") is None
        assert len(connections) == 2
        for writer in connections:
            writer.close()
