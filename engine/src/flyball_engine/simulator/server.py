"""Serves a simulated engine in real time: the API port and, as in vLLM's pods, the control port beside it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import uvicorn
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from flyball_engine.contract import CONTROL_PORT, Env
from flyball_engine.control.app import build_app
from flyball_engine.control.metrics import EngineCollector
from flyball_engine.control.server import bind, serve
from flyball_engine.control.service import ControlService
from flyball_engine.control.tokens import verifier_of
from flyball_engine.simulator.api import build_api
from flyball_engine.simulator.presets import Preset
from flyball_engine.simulator.serving import SimulatedEngine

#: Exit code of a crash on demand: that of a process killed for memory.
_CRASHED: Final = 137
#: Open answers get so long when a signal ends the server.
_GRACE_SECONDS: Final = 2

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """`start_seconds` pass before the ports open, as while weights are read. `model` is the name it is served by."""

    preset: Preset
    host: str
    port: int
    model: str
    start_seconds: float
    seed: int


@asynccontextmanager
async def control_of(
    engine: SimulatedEngine, *, host: str, environment: Mapping[str, str]
) -> AsyncIterator[tuple[str, int]]:
    """The control port of an engine, and its address. Raises OSError if the port is taken."""
    service = ControlService(
        engine=engine,
        verifier=verifier_of(environment),
        service=environment.get(Env.SERVICE_UID, ""),
        follow=engine.follow,
    )
    registry = CollectorRegistry()
    registry.register(EngineCollector(service, engine.counts, engine.core.gate))
    sock = bind(host, int(environment.get(Env.CONTROL_PORT) or CONTROL_PORT))
    address = sock.getsockname()
    driving = asyncio.create_task(engine.drive())
    serving = asyncio.create_task(serve(build_app(service, registry), sock))
    try:
        yield address[0], address[1]
    finally:
        service.close()
        for task in (serving, driving):
            task.cancel()
        await asyncio.gather(serving, driving, return_exceptions=True)


def serve_forever(config: ServerConfig) -> None:
    """Serve until a signal ends it."""
    asyncio.run(_serve(config))


async def _serve(config: ServerConfig) -> None:
    await asyncio.sleep(config.start_seconds)
    with TemporaryDirectory(prefix="flyball-simulator-") as folder:
        engine = SimulatedEngine(config.preset, Path(folder), clock=time.monotonic, seed=config.seed)
        api = build_api(
            engine,
            model=config.model,
            random=Random(config.seed),  # noqa: S311 – ids and lengths
            clock=time.time,
            die=lambda: os._exit(_CRASHED),
        )
        async with control_of(engine, host=config.host, environment=os.environ) as address:
            _log.info("Flyball: API on %s:%d, control port on %s", config.host, config.port, address)
            await uvicorn.Server(_uvicorn(api, config)).serve()


def _uvicorn(api: ASGIApp, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        api,
        host=config.host,
        port=config.port,
        log_config=None,
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
