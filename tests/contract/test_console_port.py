"""The console's port: what it answers to whatever is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from typing import Any, cast

import httpx
import pytest

from flyball_lab.harness.console_fleet import Fleet, serving
from flyball_lab.harness.manifests import good
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.waiting import eventually
from flyball_operator.api.desire import Desire, read_desire
from flyball_operator.app.console import console
from flyball_operator.app.console_server import MOST_CONNECTIONS, MOST_WAITING, reached_by_loopback
from flyball_operator.app.settings import Settings
from flyball_operator.app.shards import Shards
from flyball_operator.kube.cache import Cache

PAGES = ("", "services/team/chat", "services/team/chat/decisions", "services/team/chat/what-if")
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self' https:; frame-ancestors 'none'"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """Of a console with one service, which another replica leads."""
    found = good(metadata__namespace="team", metadata__uid="uid-1")
    found["spec"]["engine"]["env"] = [{"name": "HF_TOKEN", "value": "a-secret-value"}]
    found["metadata"]["annotations"] = {"note": "a-secret-value"}
    async with serving(Fleet([read_desire(found)])) as address, httpx.AsyncClient(base_url=address, timeout=60) as made:
        yield made


async def test_every_page_is_whole_shows_no_secret_and_lets_browsers_load_nothing_else(
    client: httpx.AsyncClient,
) -> None:
    for path in (*PAGES, "static/console.css", "static/console.js", "static/icon.svg", "nothing"):
        answer = await client.get(path)
        assert answer.status_code == (404 if path == "nothing" else 200), path
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "a-secret-value" not in answer.text
        assert len(answer.content) < 20_000
        if not path.startswith("static"):
            assert answer.text.rstrip().endswith("</html>")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
async def test_nothing_but_get_is_answered(client: httpx.AsyncClient, method: str) -> None:
    for path in (*PAGES, "static/console.js"):
        answer = await client.request(method, path)
        assert (answer.status_code, answer.headers["Allow"]) == (405, "GET")
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert method == "HEAD" or "The console changes nothing; accepted: GET" in answer.text


async def test_a_reader_whose_proxy_keeps_the_session_in_cookies_is_answered(client: httpx.AsyncClient) -> None:
    # oauth2-proxy hands its cookies on, of 4 KiB each: one is not enough for whoever is in many groups.
    session = {f"_oauth2_proxy_{number}": "a" * 4000 for number in range(6)}
    for path in PAGES:
        answer = await client.get(path, headers={"Cookie": "; ".join(map("=".join, session.items()))})
        assert answer.status_code == 200, answer.text
    endless = {f"x-{number}": "a" for number in range(100)}
    assert (await client.get("", headers=endless)).status_code == 400, "headers have an end"


@pytest.mark.parametrize(
    "path",
    [
        "services/team/other",
        "services/other/chat",
        "services/team",
        "services/team/chat/delete",
        "static/server.py",
        "static/../server.py",
        "static/%2e%2e%2fserver.py",
        "services/team/%3Cscript%3E",
        "metrics",
    ],
)
async def test_what_is_not_there_is_a_page_that_says_so(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 404
    assert "<h1>404 Not Found</h1>" in answer.text
    assert "<script" not in answer.text


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("?page=two", "page: &#39;two&#39;; accepted: a number from 1 to 1"),
        ("?page=1&page=1", "A parameter is given twice; accepted: each once"),
        ("?order=name", "order: unknown; accepted: search, page"),
        (f"?search={'a' * 200}", "search: 200 characters; accepted: at most 128"),
    ],
)
async def test_a_wrong_query_is_refused_by_name(client: httpx.AsyncClient, path: str, says: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 400
    assert says in answer.text


async def test_of_recorded_tuning_the_law_answers_and_refuses_by_name() -> None:
    fleet = await asyncio.to_thread(Fleet.recorded, "load-h100-chat")
    page = "services/team-a/load-h100-chat/what-if"
    async with serving(fleet) as address, httpx.AsyncClient(base_url=address, timeout=60) as client:
        answered = await client.get(page, params={"per-token": "60"})
        assert answered.status_code == 200
        # The margin's share of the objective: as it was learnt, and as it is asked for.
        assert "<td>27.6ms</td><td>55.2ms</td>" in answered.text
        refused = await client.get(page, params={"per-token": "5000"})
        assert refused.status_code == 400
        assert "per-token: &#39;5000&#39;; accepted: 7.5 to 120 milliseconds" in refused.text
        assert "<td>" not in refused.text


async def test_on_loopback_a_page_of_others_whose_name_leads_here_is_told_nothing(client: httpx.AsyncClient) -> None:
    for host in ("localhost:8081", "127.0.0.1", "[::1]:8081"):
        assert (await client.get("", headers={"Host": host})).status_code == 200
    for host in ("rebound.example", "localhost.rebound.example", "127.0.0.1.rebound.example:8081", "[", "a b"):
        assert (await client.get("", headers={"Host": host})).status_code in (400, 403), host


async def test_where_all_addresses_are_served_the_guard_is_by_the_one_that_was_reached() -> None:
    async with serving(Fleet(), "0.0.0.0") as address, httpx.AsyncClient(base_url=address, timeout=60) as client:
        assert (await client.get("", headers={"Host": "localhost:8081"})).status_code == 200
        assert (await client.get("", headers={"Host": "rebound.example"})).status_code == 403


@pytest.mark.parametrize(
    ("sockname", "loopback"),
    [
        (("127.0.0.1", 8081), True),
        (("::1", 8081, 0, 0), True),
        (("::ffff:127.0.0.1", 8081, 0, 0), True),
        (("::ffff:10.0.0.5", 8081, 0, 0), False),
        (("10.0.0.5", 8081), False),
        (("fe80::1%eth0", 8081, 0, 2), False),
        (None, True),
    ],
)
def test_loopback_is_told_by_the_connection(sockname: tuple[Any, ...] | None, loopback: bool) -> None:
    assert reached_by_loopback(asyncio.Transport({"sockname": sockname})) == loopback


def test_a_connection_that_is_gone_may_have_come_by_loopback() -> None:
    assert reached_by_loopback(None)


async def test_a_page_that_cannot_be_made_says_so_with_headers_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Fleet):
        def services(self) -> Iterable[Desire]:
            raise RuntimeError("a-secret-value")

    async with serving(Broken()) as address, httpx.AsyncClient(base_url=address, timeout=60) as client:
        answer = await client.get("")
    assert answer.status_code == 500
    assert "<h1>500 Internal Server Error</h1>" in answer.text
    assert "a-secret-value" not in answer.text
    assert answer.headers["Content-Security-Policy"] == POLICY
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [cast("Any", record).event for record in errors] == ["ConsolePageFailed"]


async def test_connections_that_ask_nothing_are_bounded(client: httpx.AsyncClient) -> None:
    async with AsyncExitStack() as opened:
        for _ in range(MOST_CONNECTIONS - 1):
            _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
            opened.callback(writer.close)
        assert (await client.get("")).status_code == 200, "the last one: it stays open"
        assert not await asyncio.to_thread(_answers, client.base_url)
    await asyncio.to_thread(eventually, lambda: _answers(client.base_url), expecting="the console to answer again")


def _answers(address: httpx.URL) -> bool:
    """To a connection of its own."""
    try:
        return httpx.get(address).status_code == 200
    except httpx.TransportError:
        return False


async def test_a_crowd_is_told_to_ask_again(client: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(client.get("") for _ in range(3 * MOST_WAITING)))
    assert {answer.status_code for answer in answers} == {200, 503}
    assert (await client.get("")).status_code == 200


async def test_an_operator_serves_it_where_it_has_a_port_and_of_what_its_informers_know() -> None:
    cache, port = Cache(), free_port()
    cache.observe_service(
        good(metadata__namespace="team", metadata__uid="uid-1", metadata__resourceVersion="1"), deleted=False
    )
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        async with console(Settings(console_port=port), cache, Shards(1)):
            assert "1 service, 0 Ready" in (await client.get("/")).text
            assert "Only the replica that tunes this service" in (await client.get("/services/team/chat")).text
        async with console(Settings(), cache, Shards(1)):
            with pytest.raises(httpx.ConnectError):
                await client.get("/")
