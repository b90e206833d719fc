"""Pods that speak the contract and say what is not so, and writes with the key of the operator that are not its own."""

from __future__ import annotations

import time
from collections.abc import Callable

import aiohttp
from aiohttp import web

from flyball_engine.contract import (
    SETPOINT_PATH,
    ErrorBody,
    Generation,
    Limits,
    ReadBack,
    Refusal,
    Setpoint,
)
from flyball_engine.control.acceptance import STATUS
from flyball_engine.control_port import body_of
from flyball_engine.signing import Signer
from flyball_lab.harness.engines import ServedEngine
from flyball_lab.harness.tuners import TunerEnvironment

#: What a pod says instead: the refusal, and the numbers it claims to hold, given those it was offered.
Spoof = Callable[[Generation], tuple[Refusal, Generation]]


class SpoofingPod(ServedEngine):
    """A pod that refuses whatever it is told."""

    def __init__(self, world: TunerEnvironment, name: str, spoof: Spoof, *, service: str = "uid-1") -> None:
        super().__init__(name, f"{service}-{name}", service, world.key, world.port)
        self._spoof = spoof
        #: Numbers that it was offered.
        self.offered: list[tuple[int, int]] = []

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get(SETPOINT_PATH, self._read)
        app.router.add_put(SETPOINT_PATH, self._write)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.ip, self.port).start()

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _read(self, _: web.Request) -> web.Response:
        said = ReadBack(
            service=self.service, plugin_version="1", engine_version="1", governed=True, accepted=None, cores=()
        )
        return web.json_response(text=said.model_dump_json())

    async def _write(self, request: web.Request) -> web.Response:
        told = Setpoint.model_validate_json(await request.read())
        self.offered.append(told.order())
        refusal, claimed = self._spoof(Generation(epoch=told.epoch, generation=told.generation))
        said = ErrorBody(error=refusal, message="forged", applied=claimed)
        return web.json_response(text=said.model_dump_json(), status=STATUS[refusal])


async def forge(world: TunerEnvironment, pod: ServedEngine, *, epoch: int, generation: int) -> None:
    """Write to an engine with the operator's key, as nobody should."""
    body = body_of(
        Setpoint(service=pod.service, epoch=epoch, generation=generation, limits=Limits(max_num_active_seqs=3))
    )
    token = Signer(world.key).token(body, service=pod.service, now=time.time())
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.put(f"http://{pod.ip}:{pod.port}{SETPOINT_PATH}", data=body, headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
