"""Calls to the API server: whatever comes back, or does not, is one of our errors. Another would end the process."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol
from kubernetes.aio import client, config

from flyball_operator.kube.api import KubeApi, NeverLeading, Unfenced, connected
from flyball_operator.kube.errors import (
    ClusterError,
    NotFoundError,
    NotLeadingError,
    UnavailableError,
    UnknownKindError,
    from_response,
)
from flyball_operator.kube.resources import LEASES


@dataclass
class Answer:
    """What a server, or something before it, says (the client's response)."""

    body: bytes
    status: int = 200

    async def read(self) -> bytes:
        return self.body


class Client:
    """`ApiClient` without a network: one answer, or an error where the token or the connection would be made."""

    def __init__(self, answer: Answer | SimpleNamespace | Exception, *, login: Exception | None = None) -> None:
        self.answer = answer
        self.login = login
        self.calls: list[tuple[Any, ...]] = []

    async def param_serialize(self, *call: Any, **_: Any) -> tuple[Any, ...]:
        if self.login is not None:
            raise self.login
        return call

    async def call_api(self, *call: Any, _request_timeout: float) -> Answer | SimpleNamespace:
        self.calls.append((*call, _request_timeout))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def api(monkeypatch: pytest.MonkeyPatch, made: Client, *, leading: bool = True) -> KubeApi:
    monkeypatch.setattr(client, "ApiClient", lambda _: made)
    fence = Unfenced() if leading else NeverLeading()
    return KubeApi(client.Configuration(), "flyball-test", fence, instance="pod-1")


@pytest.mark.parametrize(
    "answer",
    [
        Client(Answer(b"<html>a proxy's page</html>")),
        Client(Answer(b"")),
        Client(Answer(b"[1]")),
        Client(Answer(b"null")),
        Client(Answer(b"\xff{}")),
        Client(Answer(b"<html>bad gateway</html>", 502)),
        Client(aiohttp.ClientPayloadError("cut off")),
        Client(TimeoutError()),
        Client(Answer(b"{}"), login=config.ConfigException("Token file exists but empty.")),
        Client(Answer(b"{}"), login=FileNotFoundError("no token")),
    ],
)
def test_whatever_goes_wrong_is_an_unavailable_server(monkeypatch: pytest.MonkeyPatch, answer: Client) -> None:
    with pytest.raises(UnavailableError):
        asyncio.run(api(monkeypatch, answer).get(LEASES, "ns", "lease"))


async def test_why_it_cannot_be_asked_is_said_in_words() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        # Bound and not listening: nobody answers, and nobody else can take the port meanwhile.
        assert await refused(f"http://127.0.0.1:{port}") == f"127.0.0.1:{port} cannot be reached: Connection refused"
        silent.listen()
        assert await refused(f"http://127.0.0.1:{port}", within=0.1) == "no answer in time"
    said = await refused("http://no-such-host.invalid")
    assert said.startswith("the name no-such-host.invalid cannot be looked up: ")


async def test_a_server_that_speaks_no_tls_is_named_in_the_words_of_tls() -> None:
    async def answered(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answered, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        said = await refused(f"https://127.0.0.1:{port}")
    assert said == f"TLS with 127.0.0.1:{port} failed: WRONG_VERSION_NUMBER"


async def refused(host: str, *, within: float = 60.0) -> str:
    """What is said of a read from a server that is not there, behind the call."""
    configuration = client.Configuration()
    configuration.host = host
    async with connected(configuration, "flyball-test", NeverLeading(), instance="pod-1") as made:
        with pytest.raises(UnavailableError) as raised:
            await made.get(LEASES, "ns", "lease", within=within)
    return str(raised.value).removeprefix(f"GET {LEASES.path('ns', 'lease')}: ")


def test_an_event_that_is_too_long_for_the_client_is_an_unavailable_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def events() -> None:
        content = aiohttp.StreamReader(Mock(spec=BaseProtocol, _reading_paused=False), 2**16)
        content.feed_data(b"{" + b" " * 2**18 + b"}\n")
        watched = SimpleNamespace(status=200, response=SimpleNamespace(content=content, close=lambda: None))
        async for _ in api(monkeypatch, Client(watched)).watch(LEASES, selector="", version="1", seconds=1):
            pass

    with pytest.raises(UnavailableError):
        asyncio.run(events())


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422, 429, 500, 503, 504])
def test_every_refusal_is_one_of_our_errors(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    with pytest.raises(ClusterError):
        asyncio.run(api(monkeypatch, Client(Answer(b'{"message": "no"}', status))).get(LEASES, "ns", "lease"))


@pytest.mark.parametrize(
    ("body", "unknown"),
    [
        (b"404 page not found\n", True),
        (b'{"kind": "Status", "message": "httproutes chat not found", "reason": "NotFound", "code": 404}', False),
    ],
)
def test_a_kind_that_is_not_there_is_told_from_an_object_that_is_not(body: bytes, unknown: bool) -> None:
    error = from_response(404, body)
    assert isinstance(error, NotFoundError)
    assert isinstance(error, UnknownKindError) is unknown


def test_without_the_lease_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Client(Answer(b"{}"))
    with pytest.raises(NotLeadingError):
        asyncio.run(api(monkeypatch, made, leading=False).create(LEASES, "ns", {}))
    assert made.calls == []


class Hanging(Client):
    """A server that answers when told to."""

    def __init__(self) -> None:
        super().__init__(Answer(b"{}"))
        self.told = asyncio.Event()

    async def call_api(self, *call: Any, _request_timeout: float) -> Answer | SimpleNamespace:
        await self.told.wait()
        return await super().call_api(*call, _request_timeout=_request_timeout)


def test_settled_means_that_no_write_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        server = Hanging()
        made = api(monkeypatch, server)
        await made.settled()
        write = asyncio.create_task(made.create(LEASES, "ns", {}))
        await asyncio.sleep(0)
        settled = asyncio.create_task(made.settled())
        await asyncio.sleep(0)
        assert not settled.done()
        server.told.set()
        await asyncio.gather(write, settled)
        assert not made.cut_off

    asyncio.run(story())


def test_a_write_cut_off_on_its_way_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        made = api(monkeypatch, Hanging())
        write = asyncio.create_task(made.create(LEASES, "ns", {}))
        await asyncio.sleep(0)
        write.cancel()
        await asyncio.gather(write, return_exceptions=True)
        await made.settled()
        assert made.cut_off

    asyncio.run(story())


def test_a_read_cut_off_is_nothing_to_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        made = api(monkeypatch, Hanging())
        read = asyncio.create_task(made.get(LEASES, "ns", "lease"))
        await asyncio.sleep(0)
        read.cancel()
        await asyncio.gather(read, return_exceptions=True)
        assert not made.cut_off

    asyncio.run(story())
