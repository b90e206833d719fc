"""The control port over HTTP, inside the engine's API-server process, as a guest: routes, bounds, and each refusal.

A write is checked in the order of what it costs to check: token, size, digest, form, order. Reads are open, as
vLLM's own `/metrics` is.

It shares the process and the event loop of the engine. So it must not install signal handlers, end the process when its
port is taken, or keep it alive when it wants to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator, Mapping
from typing import Any, Final

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from flyball_engine.contract import (
    CONTROL_PORT,
    HEALTH_PATH,
    MAX_BODY_BYTES,
    METRICS_PATH,
    NO_STEPS_HEADER,
    SETPOINT_PATH,
    TRIAL_HEADER,
    Env,
    ErrorBody,
    Frozen,
    Refusal,
)
from flyball_engine.control.acceptance import SetpointRefused
from flyball_engine.control.service import ControlService
from flyball_engine.log_events import EngineLogEvent, EventLog

#: How long a client may take to send a body of at most 64 KiB.
BODY_TIMEOUT_SECONDS: Final = 10.0


def build_app(
    service: ControlService, registry: CollectorRegistry, *, body_timeout: float = BODY_TIMEOUT_SECONDS
) -> Starlette:
    """The ASGI application of one engine's control port."""

    async def setpoint(request: Request) -> Response:
        if request.method != "PUT":
            read_back = service.read()
            return _json(read_back.without_steps() if NO_STEPS_HEADER in request.headers else read_back)
        try:
            return _json(await _put(request))
        except SetpointRefused as refused:
            return _refused(service, refused, on_trial=TRIAL_HEADER in request.headers)
        except asyncio.CancelledError:
            # Only the end of the process cancels a request: answer in the moment that is left.
            return _refused(service, SetpointRefused(Refusal.UNKNOWN, "the engine is ending"))

    async def _put(request: Request) -> Frozen:
        parse = service.authorise(request.headers.get("authorization"))
        if TRIAL_HEADER in request.headers:
            raise SetpointRefused(Refusal.INVALID, f"the key is accepted; with {TRIAL_HEADER} nothing is applied")
        try:
            # Not wait_for: a task of its own would wait for its turn behind the tokens of every stream.
            async with asyncio.timeout(body_timeout):
                body = await _bounded_body(request)
        except TimeoutError:
            raise SetpointRefused(
                Refusal.INVALID, f"the body took longer than {body_timeout:g} s", status=408
            ) from None
        return await service.put(parse(body))

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    async def health(_: Request) -> Response:
        return (
            PlainTextResponse("ok") if service.engine.healthy() else PlainTextResponse("engine dead", status_code=503)
        )

    return Starlette(
        routes=[
            Route(SETPOINT_PATH, setpoint, methods=["GET", "PUT"]),
            Route(METRICS_PATH, metrics, methods=["GET"]),
            Route(HEALTH_PATH, health, methods=["GET"]),
        ]
    )


def _refused(service: ControlService, refused: SetpointRefused, *, on_trial: bool = False) -> Response:
    # Until a new key is everywhere, the operator asks every few seconds: that would look like refused writes.
    if not on_trial:
        service.count(refused.refusal)
    # Anyone can send a bad token: counted, but no way to fill the log.
    if on_trial or refused.refusal is Refusal.BAD_TOKEN:
        _log.debug(EngineLogEvent.SETPOINT_REFUSED, "%s: %s", refused.refusal.value, refused.message)
    else:
        _log.warning(EngineLogEvent.SETPOINT_REFUSED, "%s: %s", refused.refusal.value, refused.message)
    body = ErrorBody(error=refused.refusal, message=refused.message, applied=service.applied())
    return _json(body, status=refused.status)


async def _bounded_body(request: Request) -> bytes:
    """The body, refused as soon as it is known to be too large."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise SetpointRefused(Refusal.TOO_LARGE, f"a setpoint has at most {MAX_BODY_BYTES} bytes")
    except ClientDisconnect:
        raise SetpointRefused(Refusal.INVALID, "the client left while sending the body") from None
    return bytes(body)


def _json(body: Frozen, *, status: int = 200) -> Response:
    return Response(body.model_dump_json(), status_code=status, media_type="application/json")


_log = EventLog(__name__)

#: Connections at once; the operator and Prometheus need a handful.
_MOST_CONNECTIONS: Final = 64
#: A connection that has sent no whole request head by then is closed.
_HEAD_TIMEOUT_SECONDS: Final = 10.0
#: No request takes as long: a body's time, a few writes before this one, and the cores' answer.
_CONNECTION_SECONDS: Final = 180.0
_GRACE_SECONDS: Final = 2
_LAST_PORT: Final = 65_535


class PortError(Exception):
    """A port cannot be had; the message names the option, or the variable, and what is accepted."""


class _PromptProtocol(H11Protocol):
    """HTTP/1.1 that drops a client which opens a connection and says or reads nothing (uvicorn waits for ever)."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._deadlines = (
            self.loop.call_later(_HEAD_TIMEOUT_SECONDS, self._abort_if_silent),
            self.loop.call_later(_CONNECTION_SECONDS, transport.abort),
        )

    def connection_lost(self, exc: Exception | None) -> None:
        for deadline in self._deadlines:
            deadline.cancel()
        super().connection_lost(exc)

    def _abort_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.abort()


class _GuestServer(uvicorn.Server):
    """A server that leaves the process's signals to its host."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def control_port(environment: Mapping[str, str]) -> int:
    """As the environment has it; 0 is any that is free. Raises PortError."""
    text = environment.get(Env.CONTROL_PORT) or str(CONTROL_PORT)
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= _LAST_PORT):
        raise PortError(f"{Env.CONTROL_PORT} is {text!r:.40}, accepted: a whole number from 1 to {_LAST_PORT}")
    return int(text)


def bind(host: str | None, port: int) -> socket.socket:
    """A listening socket on `host`, on all addresses if None; raises OSError if the port is taken."""
    if host is None or host in {"", "0.0.0.0", "::"}:  # noqa: S104 – a NetworkPolicy fences the port
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(("", port), family=family, dualstack_ipv6=both)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


async def serve(app: ASGIApp, sock: socket.socket) -> None:
    """Serve until cancelled; then close the port, give open requests a moment, and end."""
    server = _GuestServer(_config(app))
    try:
        await server.serve(sockets=[sock])
    except asyncio.CancelledError:
        if server.started:
            await server.shutdown(sockets=[sock])
            # What was cancelled there still has its answer to send.
            if cancelled := set(server.server_state.tasks):
                await asyncio.wait(cancelled, timeout=_GRACE_SECONDS)
        raise
    except Exception:  # noqa: BLE001 – see below
        # The host must not fall with its guest; the operator sees that the port is gone.
        _log.exception(EngineLogEvent.CONTROL_PORT_ENDED, "vLLM serves on")
    finally:
        sock.close()


def _config(app: ASGIApp) -> uvicorn.Config:
    options: dict[str, Any] = {
        "http": _PromptProtocol,
        "ws": "none",
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "limit_concurrency": _MOST_CONNECTIONS,
        # One request per connection, so that the deadlines of a connection are those of its request.
        "headers": [("connection", "close")],
        "timeout_graceful_shutdown": _GRACE_SECONDS,
    }
    return uvicorn.Config(app, **options)
