"""Serves a simulated engine in real time."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from flyball_engine.control.readiness import Readiness
from flyball_lab.openai.server import serve_engine
from flyball_lab.simulator.api import build_api
from flyball_lab.simulator.presets import EnginePreset
from flyball_lab.simulator.serving import SimulatedEngine

_log = logging.getLogger(__name__)

#: Exit code of a crash on demand: that of a process killed for memory.
_CRASHED: Final = 137


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """`start_seconds` pass before the ports open, as while weights are read. `model` is the name it is served by.

    Open answers get `drain_seconds` when a signal ends the server.
    """

    preset: EnginePreset
    host: str
    port: int
    model: str
    start_seconds: float
    seed: int
    drain_seconds: int


def serve_forever(config: ServerConfig) -> None:
    """Serve until a signal ends it."""
    asyncio.run(_serve(config))


async def _serve(config: ServerConfig) -> None:
    _log.info("Flyball: starting; ports open in %g s", config.start_seconds)
    await asyncio.sleep(config.start_seconds)
    with TemporaryDirectory(prefix="flyball-simulator-") as folder:
        engine = SimulatedEngine(config.preset, Path(folder), clock=time.monotonic, seed=config.seed)
        # As in a pod of vLLM: Ready once it has a setpoint, or has waited for one in vain. It needs no warming up.
        readiness = Readiness(time.monotonic)
        readiness.expect_answer()
        readiness.answered()
        readiness.expect_setpoint(lambda: engine.core.governed.applied is not None)
        api = build_api(
            engine,
            model=config.model,
            random=Random(config.seed),
            clock=time.time,
            readiness=readiness,
            die=lambda: os._exit(_CRASHED),
        )
        await serve_engine(engine, api, host=config.host, port=config.port, grace_seconds=config.drain_seconds)
