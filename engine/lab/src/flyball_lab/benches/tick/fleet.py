"""The control ports of a fleet in one process, on every address of loopback.

Metrics are those of the engine's own exporter, answers of the control port those of the contract. What stands in for
an engine is arithmetic: steps and requests that grow with the time at a rate that swings, in as many phases as pods
have. Signatures are not looked at.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry, generate_latest

from flyball_engine.contract import (
    METRICS_PATH,
    NO_STEPS_HEADER,
    SETPOINT_PATH,
    TOKEN_BUCKETS,
    Generation,
    Metric,
    MetricName,
    ObjectiveSpec,
    ReadBack,
    Setpoint,
    StepKind,
)
from flyball_engine.control.metrics import EngineCollector
from flyball_engine.control.service import ControlService
from flyball_engine.control.tokens import TokenVerifier
from flyball_lab.harness.engines import PlantEngine
from flyball_lab.harness.plant import H100, PlantCounters, PlantRequest
from flyball_operator.tuning.observe.signals import CellKey, Sums

#: Epoch and generation that each pod holds, by its address.
NUMBERS_PATH: Final = "/numbers"
#: Phases of the load: as many different expositions are made each second, however many pods there are.
PHASES: Final = 8
#: Seconds of a swing of the load, and its share of the mean.
SWING_SECONDS, SWING = 240.0, 0.5
#: Requests per second of a pod in the mean, and tokens of their prompt and output.
RATE, PROMPT, OUTPUT = 4.0, 400, 100
RUNNING: Final = 12
OBJECTIVES: Final = (
    ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=0.5),
    ObjectiveSpec(metric=Metric.TIME_PER_OUTPUT_TOKEN, threshold_seconds=0.03),
)
#: Cells in which steps happen: decodes alone up to so many tokens, steps with a prompt up to so many. The others have
#: a step of long ago: an engine that has run for days was in most of them.
DECODES, MIXED = 64, 2048


@dataclass
class _Phase:
    """The engines of one phase, as they are in one second."""

    number: int
    second: int = -1
    exposition: bytes = b""
    read_back: ReadBack = field(init=False)
    state: ReadBack = field(init=False)

    def __post_init__(self) -> None:
        self.engine = PlantEngine()
        keys = (Ed25519PrivateKey.generate().public_key(),)
        verifier = TokenVerifier(keys=lambda: keys, service="fleet")
        self.service = ControlService(
            engine=self.engine, verifier=verifier, service="fleet", follow=lambda _: None, timeout=2.0
        )
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(self.service, self.engine.counts, self.engine.gate))
        self.engine.set_objectives(OBJECTIVES)
        self.engine.bias = 1.0 + self.number / 100
        self.engine.plant.running = [PlantRequest(0.0, PROMPT, OUTPUT, computed=PROMPT, made=OUTPUT // 2)] * RUNNING

    def at(self, seconds: float) -> _Phase:
        """Itself, as it is in that second."""
        if int(seconds) != self.second:
            self.second = int(seconds)
            self._live(seconds)
            self.exposition = generate_latest(self.registry)
            self.read_back = self.service.read()
            self.state = self.read_back.without_steps()
        return self

    def _live(self, seconds: float) -> None:
        turn = 2 * math.pi * (seconds / SWING_SECONDS + self.number / PHASES)
        began = 2 * math.pi * self.number / PHASES
        # The integral of a rate that swings about its mean.
        done = seconds + SWING * SWING_SECONDS / (2 * math.pi) * (math.cos(began) - math.cos(turn))
        plant, requests = self.engine.plant, int(RATE * done)
        plant.cells = {key: _sums(key, done) for key in _CELLS}
        bad = requests // 200
        met = {objective.id: [requests - bad, bad] for objective in OBJECTIVES}
        plant.counts = PlantCounters(
            finished=requests,
            ended=requests,
            prompt=requests * PROMPT,
            generated=requests * OUTPUT,
            met=met,
            together=[requests - bad, bad],
        )


_CELLS: Final = tuple(CellKey(bucket, kind) for bucket in TOKEN_BUCKETS for kind in StepKind)


def _sums(key: CellKey, done: float) -> Sums:
    """Steps of a cell after so many seconds at the mean rate: each step is three quarters of its bucket."""
    mixed = key.kind is StepKind.MIXED
    moving = (1 < key.bucket <= MIXED) if mixed else key.bucket <= DECODES
    steps = float(int((0.5 if mixed else 5.0) * done)) if moving else 1.0
    tokens = max(2 if mixed else 1, round(0.75 * key.bucket))
    decodes = min(48, max(1, tokens // 4)) if mixed else tokens
    prefill = tokens - decodes
    seconds = H100.seconds(decodes=decodes, prefill_tokens=prefill)
    return Sums(
        steps=steps,
        seconds=steps * seconds,
        seconds_squared=1.01 * steps * seconds**2,
        tokens=steps * tokens,
        prefill_tokens=steps * prefill,
        decodes=steps * decodes,
        kv_tokens=steps * decodes * PROMPT,
        prefill_attention=steps * prefill * prefill / 2,
    )


class Fleet:
    """All pods of all services; each is known by its address."""

    def __init__(self) -> None:
        self._phases = [_Phase(number) for number in range(PHASES)]
        self._accepted: dict[str, Setpoint] = {}
        # As if it had run for a while.
        self._began = time.monotonic() - 3600

    def app(self) -> web.Application:
        """The routes of a control port."""
        app = web.Application()
        app.router.add_get(METRICS_PATH, self._metrics)
        app.router.add_get(SETPOINT_PATH, self._read)
        app.router.add_put(SETPOINT_PATH, self._write)
        app.router.add_get(NUMBERS_PATH, self._numbers)
        return app

    def _phase(self, address: str) -> _Phase:
        return self._phases[int(address.rpartition(".")[2]) % PHASES].at(time.monotonic() - self._began)

    async def _metrics(self, request: web.Request) -> web.Response:
        address = _address(request)
        body, (epoch, generation) = self._phase(address).exposition, self._number(address)
        for name, value in ((MetricName.SETPOINT_EPOCH, epoch), (MetricName.SETPOINT_GENERATION, generation)):
            body = body.replace(f'{name}{{engine="0"}} 0.0'.encode(), f'{name}{{engine="0"}} {value}'.encode())
        return web.Response(body=body, content_type="text/plain")

    async def _numbers(self, _: web.Request) -> web.Response:
        return web.json_response({address: self._number(address) for address in self._accepted})

    def _number(self, address: str) -> tuple[int, int]:
        accepted = self._accepted.get(address)
        return (0, 0) if accepted is None else (accepted.epoch, accepted.generation)

    async def _read(self, request: web.Request) -> web.Response:
        return self._answer(_address(request), steps=NO_STEPS_HEADER not in request.headers)

    async def _write(self, request: web.Request) -> web.Response:
        address = _address(request)
        self._accepted[address] = Setpoint.model_validate_json(await request.read())
        return self._answer(address)

    def _answer(self, address: str, *, steps: bool = True) -> web.Response:
        accepted, phase = self._accepted.get(address), self._phase(address)
        found = phase.read_back if steps else phase.state
        if accepted is not None:
            applied = Generation(epoch=accepted.epoch, generation=accepted.generation)
            cores = tuple(core.model_copy(update={"applied": applied}) for core in found.cores)
            found = found.model_copy(update={"accepted": accepted, "cores": cores})
        return web.Response(body=found.model_dump_json().encode(), content_type="application/json")


def _address(request: web.Request) -> str:
    assert request.transport is not None
    return str(request.transport.get_extra_info("sockname")[0])


async def _serve(port: int) -> None:
    runner = web.AppRunner(Fleet().app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port, backlog=4096).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
