"""What the API server sees of a request becomes its outcome: over real HTTP, with an engine played by the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from flyball_engine.batching.outcomes import OpenRequest, RequestLedger, Sequence
from flyball_engine.contract import Metric, ObjectiveSpec
from flyball_engine.vllm import gate
from flyball_engine.vllm import requests as counting
from support.gates import no_gate

TTFT = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=0.5)
PATH = "/v1/completions"


class Engine:
    """Sequences in the hands of the test: what an API server would hear from its engine."""

    def __init__(self) -> None:
        self.ledger = RequestLedger()
        self.ledger.set_objectives([TTFT])
        self.running: set[OpenRequest] = set()
        self.keeper = no_gate()
        self.go_on = asyncio.Event()

    def start(self) -> Sequence:
        request = counting._current.get()
        assert request is not None
        self.running.add(request)
        return self.ledger.started(request)

    def finish(self, sequence: Sequence) -> None:
        self.ledger.received(sequence, tokens=1, at=0.0, now=0.0)
        self.ledger.done(sequence, prompt=3, cached=0, now=0.0)
        self.running.discard(sequence.request)

    def is_running(self, request: OpenRequest) -> bool:
        return request in self.running

    async def handle(self, request: Request) -> Response:
        """Behaves as the body says."""
        behaviour = (await request.body()).decode()
        if behaviour.startswith("turned away"):
            passage = gate._passage.get()
            assert passage is not None
            passage.retry_after = 7
            return JSONResponse({"error": "overloaded"}, status_code=int(behaviour.split()[-1]))
        if behaviour == "refuse":
            return JSONResponse({"error": "full"}, status_code=503)
        if behaviour == "unknown model":
            return JSONResponse({"error": "no such model"}, status_code=404)
        if behaviour == "stream":
            return StreamingResponse(self.stream())
        if behaviour == "break":
            return StreamingResponse(self.break_off())
        sequences = [self.start() for _ in range(int(behaviour))]
        for sequence in sequences:
            self.finish(sequence)
        return JSONResponse({})

    async def stream(self) -> AsyncIterator[bytes]:
        sequence = self.start()
        yield b"first"
        await self.go_on.wait()
        self.finish(sequence)
        yield b"last"

    async def break_off(self) -> AsyncIterator[bytes]:
        self.running.discard(self.start().request)
        yield b"error"

    async def answer_too_early(self, _: object, receive: counting.Receive, send: counting.Send) -> None:
        """An application that has answered in full while a sequence goes on."""
        self.start()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})

    def expect(self, **outcomes: int) -> None:
        assert {name: number for name, number in self.ledger.collect().requests.items() if number} == outcomes


@asynccontextmanager
async def served(engine: Engine, clock: Iterator[float] | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """The engine's app behind the middleware, on a port of this machine."""
    app = Starlette(routes=[Route(path, engine.handle, methods=["POST", "GET"]) for path in (PATH, "/other")])
    app.add_middleware(
        counting.RequestMiddleware,
        ledger=engine.ledger,
        keeper=engine.keeper,
        clock=(lambda: next(clock)) if clock else (lambda: 0.0),
        running=engine.is_running,
    )
    with bound() as sock:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{sock.getsockname()[1]}", trust_env=False) as client:
            yield client
        server.should_exit = True
        await serving


@contextmanager
def bound() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


async def until(engine: Engine, **outcomes: int) -> None:
    """Waits for the server to notice."""
    async with asyncio.timeout(20):
        while sum(engine.ledger.collect().requests.values()) < sum(outcomes.values()):  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)
    engine.expect(**outcomes)


@pytest.mark.parametrize(
    ("path", "behaviour", "outcomes"),
    [
        (PATH, "1", {"finished": 1}),
        (PATH, "3", {"finished": 1}),
        ("/other", "1", {"finished": 1}),
        (PATH, "refuse", {"refused": 1}),
        ("/other", "refuse", {}),
        (PATH, "unknown model", {}),
        (PATH, "0", {}),
        (PATH, "break", {"error": 1}),
    ],
)
async def test_each_answer_has_its_outcome(path: str, behaviour: str, outcomes: dict[str, int]) -> None:
    engine = Engine()
    async with served(engine) as client:
        await client.post(path, content=behaviour)
    engine.expect(**outcomes)


@pytest.mark.parametrize("status", [503, 500])
async def test_what_the_gate_refused_is_to_be_tried_again_whatever_a_route_makes_of_it(status: int) -> None:
    engine = Engine()
    async with served(engine) as client:
        answer = await client.post(PATH, content=f"turned away {status}")
    assert (answer.status_code, answer.headers["retry-after"], answer.json()) == (503, "7", {"error": "overloaded"})
    engine.expect(refused=1)


async def test_a_fault_of_ours_is_counted_and_the_answer_stands() -> None:
    def unable(_: OpenRequest) -> bool:
        raise RuntimeError("a fault of ours")

    engine = Engine()
    app = counting.RequestMiddleware(
        engine.answer_too_early, ledger=engine.ledger, keeper=no_gate(), clock=lambda: 0.0, running=unable
    )
    sent: list[str] = []

    async def send(message: counting.Message) -> None:
        sent.append(message["type"])

    async def receive() -> counting.Message:
        return {"type": "http.request"}

    await app({"type": "http", "method": "POST", "path": PATH}, receive, send)
    assert sent == ["http.response.start", "http.response.body"]
    engine.expect(uncounted=1)


async def test_a_stream_read_to_its_end_is_finished() -> None:
    engine = Engine()
    engine.go_on.set()
    async with served(engine) as client:
        assert (await client.post(PATH, content="stream")).content == b"firstlast"
    engine.expect(finished=1)


@pytest.mark.parametrize(("left_at", "outcome"), [(0.4, "aborted"), (0.6, "abandoned")])
async def test_a_client_that_leaves_is_judged_by_when_it_left(left_at: float, outcome: str) -> None:
    engine = Engine()
    async with served(engine, clock=iter([0.0, left_at])) as client:
        with suppress(httpx.ReadTimeout):
            async with client.stream("POST", PATH, content="stream") as response:
                await anext(response.aiter_raw())
        await until(engine, **{outcome: 1})


async def test_reads_are_no_requests() -> None:
    engine = Engine()
    async with served(engine) as client:
        await client.get("/other")
    engine.expect()


async def test_requests_at_the_same_time_keep_their_sequences_apart() -> None:
    engine = Engine()
    async with served(engine) as client:
        await asyncio.gather(*(client.post(PATH, content=str(1 + number % 3)) for number in range(12)))
    engine.expect(finished=12)
    assert engine.ledger.collect().generated_tokens == 24
