"""The control port over HTTP: routes, bounds on what a client may send, and the body of each refusal.

A write is checked in the order of what it costs to check: token, size, digest, form, order. Reads are open, as
vLLM's own `/metrics` is.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from flyball_engine.contract import HEALTH_PATH, MAX_BODY_BYTES, METRICS_PATH, SETPOINT_PATH, ErrorBody, Frozen, Refusal
from flyball_engine.control.acceptance import SetpointRefused
from flyball_engine.control.service import ControlService

#: How long a client may take to send a body of at most 64 KiB.
BODY_TIMEOUT_SECONDS: Final = 10.0

_log = logging.getLogger(__name__)


def build_app(
    service: ControlService, registry: CollectorRegistry, *, body_timeout: float = BODY_TIMEOUT_SECONDS
) -> Starlette:
    """The ASGI application of one engine's control port."""

    async def setpoint(request: Request) -> Response:
        if request.method != "PUT":
            return _json(service.read())
        try:
            return _json(await _put(request))
        except SetpointRefused as refused:
            return _refused(refused)
        except asyncio.CancelledError:
            # Only the end of the process cancels a request: answer in the moment that is left.
            return _refused(SetpointRefused(Refusal.UNKNOWN, "the engine is ending"))

    async def _put(request: Request) -> Frozen:
        parse = service.authorise(request.headers.get("authorization"))
        try:
            # Not wait_for: a task of its own would wait for its turn behind the tokens of every stream.
            async with asyncio.timeout(body_timeout):
                body = await _bounded_body(request)
        except TimeoutError:
            raise SetpointRefused(
                Refusal.INVALID, f"the body took longer than {body_timeout:g} s", status=408
            ) from None
        return await service.put(parse(body))

    def _refused(refused: SetpointRefused) -> Response:
        service.count(refused.refusal)
        # Anyone can send a bad token: counted, but no way to fill the log.
        level = logging.DEBUG if refused.refusal is Refusal.BAD_TOKEN else logging.WARNING
        _log.log(level, "Flyball: setpoint refused (%s): %s", refused.refusal.value, refused.message)
        body = ErrorBody(error=refused.refusal, message=refused.message, applied=service.applied())
        return _json(body, status=refused.status)

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
