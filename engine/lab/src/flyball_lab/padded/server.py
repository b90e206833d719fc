"""Serves a padded engine: loads its model, opens both ports, drains when it is told to end."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from starlette.applications import Starlette

from flyball_lab.openai.app import Api
from flyball_lab.openai.server import serve_engine
from flyball_lab.padded.bodies import AnyBody, PaddedChat, PaddedCompletion
from flyball_lab.padded.engine import PaddedConfig, PaddedEngine, Runner
from flyball_lab.padded.metrics import PaddingCollector


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """`model` is the name it is served by; open answers get `drain_seconds` when a signal ends the server."""

    engine: PaddedConfig
    host: str
    port: int
    model: str
    drain_seconds: int


def serve_forever(runner: Runner, config: ServerConfig) -> None:
    """Serve until a signal ends it."""
    asyncio.run(_serve(runner, config))


async def _serve(runner: Runner, config: ServerConfig) -> None:
    with TemporaryDirectory(prefix="flyball-padded-") as folder:
        engine = PaddedEngine(runner, config.engine, Path(folder), clock=time.monotonic)
        api: Api[AnyBody] = Api(
            engine=engine,
            completion=PaddedCompletion,
            chat=PaddedChat,
            model=config.model,
            random=Random(),
            clock=time.time,
        )
        await serve_engine(
            engine,
            Starlette(routes=api.routes()),
            host=config.host,
            port=config.port,
            grace_seconds=config.drain_seconds,
            collectors=(PaddingCollector(engine.padding),),
        )
