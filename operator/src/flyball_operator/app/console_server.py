"""The console's port: pages, and the files that they refer to. It reads what the process knows, and changes nothing.

There is no login. By default it listens on the pod's own loopback, which `kubectl port-forward` reaches and nobody else
does. Pages are made one after the other, with a rest after each, and open connections are bounded. So no crowd of
readers keeps the operator from its work. Answers have our headers, but for what aiohttp refuses before it asks us, such
as a broken request line.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib.resources import files
from ipaddress import IPv6Address, ip_address
from typing import Final

from aiohttp import web

from flyball_operator.api.desire import Desire
from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.console import service as one_service
from flyball_operator.console.fleet import LONGEST_SEARCH, WrongQueryError, fleet
from flyball_operator.console.pages import HEADERS, render
from flyball_operator.console.source import Source, found
from flyball_operator.console.what_if import what_if

#: Pages that may wait for their turn; who comes then is refused.
MOST_WAITING: Final = 32
#: Connections that may be open; what comes then is closed. A browser has six.
MOST_CONNECTIONS: Final = 64
#: Headers of a request, and bytes of each: an OIDC proxy hands on its cookies, of 4 KiB each, in one header. With the
#: number of connections they bound what requests may take: 256 MiB, since aiohttp keeps each header raw and decoded.
_MOST_HEADERS: Final = 64
_HEADER_BYTES: Final = 32_768
#: Seconds after an answer until its connection is closed.
_IDLE_SECONDS: Final = 15.0
#: A rest is so many times as long as what was done before it.
_REST: Final = 3.0
_TYPES: Final = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
#: What a browser on the same machine calls it by. By other names a page of others could have it asked.
_LOCAL_HOST: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log: Final = logging.getLogger(__name__)


#: What no handler says itself.
_SAID: Final = {
    HTTPStatus.NOT_FOUND: "There is no such page.",
    HTTPStatus.METHOD_NOT_ALLOWED: "The console changes nothing; accepted: GET",
}


class _Refused(asyncio.Protocol):
    """A connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        transport.close()


class ConsoleServer:
    """Serves the console on an address of its own."""

    def __init__(self, source: Source, address: str, port: int) -> None:
        self._source = source
        self._address = address
        self._port = port
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._rests_until = 0.0
        self._files = {name: files("flyball_operator.console").joinpath("static", name).read_bytes() for name in _TYPES}
        application = web.Application(middlewares=[self._guarded])
        for path, handler in (
            ("/", self._fleet),
            ("/static/{file}", self._file),
            ("/services/{namespace}/{name}", self._service),
            ("/services/{namespace}/{name}/decisions", self._decisions),
            ("/services/{namespace}/{name}/what-if", self._what_if),
        ):
            application.router.add_get(path, handler, allow_head=False)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=1.0,
            keepalive_timeout=_IDLE_SECONDS,
            max_headers=_MOST_HEADERS,
            max_field_size=_HEADER_BYTES,
        )
        self._listening: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises `OSError` where the port is taken."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self._connection, self._address, self._port)

    async def stop(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()

    def _connection(self) -> asyncio.Protocol:
        server = self._runner.server
        return server() if server is not None and len(server.connections) < MOST_CONNECTIONS else _Refused()

    @web.middleware
    async def _guarded(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Whatever the answer is, it has our headers, and what is wrong is a page, too."""
        try:
            _check_host(request)
            response = await self._in_turn(request, handler)
        except web.HTTPException as error:
            status = HTTPStatus(error.status)
            said = error.text or ""
            response = _error(request, status, _SAID.get(status, said) if said.startswith(f"{status}:") else said)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except WrongQueryError as error:
            response = _error(request, HTTPStatus.BAD_REQUEST, str(error))
        except Exception:  # noqa: BLE001 – aiohttp's own answer would lack our headers, and its log the event
            _log.exception("a page of the console could not be made", extra=logged(LogEvent.CONSOLE_PAGE_FAILED))
            said = "This page could not be made. The operator's log says why, as ConsolePageFailed."
            response = _error(request, HTTPStatus.INTERNAL_SERVER_ERROR, said)
        response.headers.update(HEADERS)
        return response

    async def _in_turn(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if self._waiting >= MOST_WAITING:
            raise web.HTTPServiceUnavailable(text="Too many pages are asked for. Ask again in a moment.")
        self._waiting += 1
        try:
            async with self._turn:
                await asyncio.sleep(self._rests_until - time.perf_counter())
                began = time.perf_counter()
                try:
                    return await handler(request)
                finally:
                    self._rests_until = time.perf_counter() + _REST * (time.perf_counter() - began)
        finally:
            self._waiting -= 1

    async def _fleet(self, request: web.Request) -> web.Response:
        return _page("fleet", root="./", fleet=fleet(self._source, _query(request)), longest=LONGEST_SEARCH)

    async def _service(self, request: web.Request) -> web.Response:
        desire = self._found(request)
        insight = self._source.insight(desire.meta.uid)
        return _page("service", root="../../", service=one_service.service(desire, insight))

    async def _decisions(self, request: web.Request) -> web.Response:
        desire = self._found(request)
        decisions = one_service.decisions(desire)
        return _page("decisions", root="../../../", service=desire.meta, decisions=decisions)

    async def _what_if(self, request: web.Request) -> web.Response:
        desire = self._found(request)
        answer = what_if(self._source.insight(desire.meta.uid), _query(request))
        status = HTTPStatus.BAD_REQUEST if answer.errors else HTTPStatus.OK
        return _page("what-if", status, root="../../../", service=desire.meta, what_if=answer)

    def _found(self, request: web.Request) -> Desire:
        desire = found(self._source, request.match_info["namespace"], request.match_info["name"])
        if desire is None:
            raise web.HTTPNotFound(text="No InferenceService has this name in a namespace that is watched.")
        return desire

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["file"]
        if name not in self._files:
            raise web.HTTPNotFound(text="There is no such file.")
        return web.Response(body=self._files[name], content_type=_TYPES[name], charset="utf-8")


def _check_host(request: web.Request) -> None:
    """On loopback, a page of others whose name leads here is told nothing."""
    if reached_by_loopback(request.transport) and not _LOCAL_HOST.fullmatch(request.host):
        raise web.HTTPForbidden(text="This name of the console is unknown; accepted: localhost, 127.0.0.1, [::1]")


def reached_by_loopback(transport: asyncio.BaseTransport | None) -> bool:
    """Whether a connection came by loopback, as ports that are forwarded do. One that is not known may have."""
    local = transport.get_extra_info("sockname") if transport is not None else None
    if not local:
        return True
    address = ip_address(local[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _query(request: web.Request) -> dict[str, str]:
    query = dict(request.query)
    if len(query) < len(request.query):
        raise WrongQueryError("A parameter is given twice; accepted: each once")
    return query


def _page(template: str, status: HTTPStatus = HTTPStatus.OK, *, root: str, **values: object) -> web.Response:
    return web.Response(status=status, text=render(template, root=root, **values), content_type="text/html")


def _error(request: web.Request, status: HTTPStatus, message: str) -> web.Response:
    root = "../" * (request.rel_url.raw_path.count("/") - 1) or "./"
    return _page("error", status, root=root, title=f"{status.value} {status.phrase}", message=message)
