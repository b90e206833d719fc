"""Both ports of an engine of our own: the API and, as in vLLM's pods, the control port beside it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, Protocol

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector
from starlette.types import ASGIApp

from flyball_engine.batching.gate import Gate
from flyball_engine.contract import Env, Setpoint
from flyball_engine.control.metrics import EngineCollector, RequestCounts
from flyball_engine.control.server import bind, build_app, control_port, serve
from flyball_engine.control.service import ControlService, TunableEngine
from flyball_engine.control.tokens import verifier_of

_log = logging.getLogger(__name__)

#: Exit code where the engine ended by itself.
_ENGINE_ENDED: Final = 1


class DrivenEngine(TunableEngine, Protocol):
    """An engine that lives in this process."""

    @property
    def gate(self) -> Gate:
        """What requests are let in by."""

    def counts(self) -> RequestCounts:
        """What requests came to."""

    def follow(self, setpoint: Setpoint) -> None:
        """What requests are counted against and refused by from now on."""

    async def drive(self) -> None:
        """Work, until cancelled."""


@asynccontextmanager
async def control_of(
    engine: DrivenEngine, *, host: str, environment: Mapping[str, str], collectors: tuple[Collector, ...] = ()
) -> AsyncIterator[tuple[asyncio.Task[None], tuple[str, int]]]:
    """What drives an engine, and the address of the control port before it. Raises OSError, PortError.

    `collectors`: metrics of its own, beside those of every engine.
    """
    service = ControlService(
        engine=engine,
        verifier=verifier_of(environment),
        service=environment.get(Env.SERVICE_UID, ""),
        follow=engine.follow,
    )
    registry = CollectorRegistry()
    for collector in (EngineCollector(service, engine.counts, engine.gate), *collectors):
        registry.register(collector)
    sock = bind(host, control_port(environment))
    address = sock.getsockname()
    driving = asyncio.create_task(engine.drive())
    serving = asyncio.create_task(serve(build_app(service, registry), sock))
    try:
        yield driving, (address[0], address[1])
    finally:
        service.close()
        for task in (serving, driving):
            task.cancel()
        await asyncio.gather(serving, driving, return_exceptions=True)


def _server(api: ASGIApp, *, host: str, port: int, grace_seconds: int) -> uvicorn.Server:
    """Serves until a signal ends it; then no new request is taken, and open answers have `grace_seconds`."""
    config = uvicorn.Config(
        api,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=grace_seconds,
    )
    return uvicorn.Server(config)


async def serve_engine(
    engine: DrivenEngine,
    api: ASGIApp,
    *,
    host: str,
    port: int,
    grace_seconds: int,
    collectors: tuple[Collector, ...] = (),
) -> None:
    """Both ports, until a signal ends them; the control port is told by the environment, as in a pod.

    Raises SystemExit where the engine ends by itself: what has no engine must not look like one, and whoever started
    the process is to start it again.
    """
    server = _server(api, host=host, port=port, grace_seconds=grace_seconds)

    def end(driving: asyncio.Task[None]) -> None:
        if not driving.cancelled():
            _log.critical("Flyball: the engine ended by itself, and the server with it", exc_info=driving.exception())
            server.should_exit = True

    async with control_of(engine, host=host, environment=os.environ, collectors=collectors) as (driving, address):
        driving.add_done_callback(end)
        _log.info("Flyball: API on %s:%d, control port on %s:%d", host, port, *address)
        await server.serve()
        if driving.done():
            raise SystemExit(_ENGINE_ENDED)
