"""A control port on loopback, in a thread of its own, before plain cores."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from flyball_engine.batching.gate import Gate
from flyball_engine.batching.outcomes import RequestLedger
from flyball_engine.contract import Env
from flyball_engine.control.metrics import EngineCollector
from flyball_engine.control.server import bind, build_app, serve
from flyball_engine.control.service import ControlService
from flyball_engine.control.tokens import verifier_of
from flyball_lab.harness.engine import SERVICE, ControlClient, SetpointSigner
from support.plain_scheduler import GovernedCore, PlainEngine


@dataclass
class Port:
    """A running control port: its engine, its ledger of requests, and a client."""

    engine: PlainEngine
    ledger: RequestLedger
    address: tuple[str, int]
    client: ControlClient
    signer: SetpointSigner = field(default_factory=SetpointSigner)


def an_engine(folder: Path, cores: int = 1) -> PlainEngine:
    """An engine of plain cores."""
    folders = [folder / str(number) for number in range(cores)]
    for made in folders:
        made.mkdir()
    return PlainEngine(*(GovernedCore(made) for made in folders))


@contextmanager
def control_port(
    engine: PlainEngine,
    *,
    public_pem: str | None = "",
    keys_file: Path | None = None,
    timeout: float = 5.0,
    body_timeout: float = 5.0,
) -> Iterator[Port]:
    """Serve `engine`; `public_pem` None is a pod without a key, empty the test's own. `keys_file`: of public keys."""
    signer, ledger = SetpointSigner(), RequestLedger()
    sock = bind("127.0.0.1", 0)
    address = sock.getsockname()
    stop: asyncio.Future[None] | None = None
    loop = asyncio.new_event_loop()

    async def run() -> None:
        nonlocal stop
        service = ControlService(
            engine=engine,
            verifier=verifier_of(_environment(signer.public_pem if public_pem == "" else public_pem, keys_file)),
            service=SERVICE,
            follow=lambda setpoint: ledger.set_objectives(setpoint.objectives),
            timeout=timeout,
        )
        registry = CollectorRegistry()
        registry.register(EngineCollector(service, ledger.collect, Gate(lambda: None)))
        stop = loop.create_future()
        serving = asyncio.create_task(serve(build_app(service, registry, body_timeout=body_timeout), sock))
        started.set()
        await stop
        service.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    started = threading.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    assert started.wait(10)
    client = ControlClient(f"http://{address[0]}:{address[1]}", signer)
    try:
        yield Port(engine, ledger, address, client, signer)
    finally:
        assert stop is not None
        loop.call_soon_threadsafe(stop.set_result, None)
        thread.join(20)
        client.close()
        loop.close()
        assert not thread.is_alive()


def _environment(pem: str | None, keys_file: Path | None) -> dict[str, str]:
    key = {} if pem is None else {Env.PUBLIC_KEY.value: pem}
    file = {} if keys_file is None else {Env.PUBLIC_KEYS_FILE.value: str(keys_file)}
    return {Env.SERVICE_UID.value: SERVICE, **key, **file}
