"""What the API server sees of a request becomes its outcome: over real HTTP, with an engine played by the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from flyball_engine.batching.outcomes import OpenRequest, OpenSequence, RequestLedger
from flyball_engine.contract import Metric, ObjectiveSpec
from flyball_engine.vllm import gate
from flyball_engine.vllm import requests as counting
from flyball_engine.vllm.routes import COHERE_PATH, MESSAGES_PATH
from support.gates import no_gate
from support.simulated import two_classes

TTFT = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=0.5)
PATH = "/v1/completions"
PATHS = (PATH, MESSAGES_PATH, COHERE_PATH, "/other")


class Engine:
    """Sequences in the hands of the test: what an API server would hear from its engine."""

    def __init__(self) -> None:
        self.ledger = RequestLedger()
        self.ledger.set_objectives([TTFT])
        self.running: set[OpenRequest] = set()
        self.request_gate = no_gate()
        self.go_on = asyncio.Event()
        self.ticket: gate.AdmissionTicket | None = None
        self.waits = asyncio.Event()
        self.expires = True
        self.classes: list[str] = []

    def start(self) -> OpenSequence:
        request = counting._current.get()
        assert request is not None
        self.running.add(request)
        return self.ledger.started(request)

    def finish(self, sequence: OpenSequence) -> None:
        self.ledger.received(sequence, tokens=1, at=0.0, now=0.0)
        self.ledger.done(sequence, prompt=3, cached=0, now=0.0)
        self.running.discard(sequence.request)

    def is_running(self, request: OpenRequest) -> bool:
        return request in self.running

    async def handle(self, request: Request) -> Response:
        """Behaves as the body says."""
        behaviour = (await request.body()).decode()
        if behaviour.startswith("turned away"):
            ticket = gate._ticket.get()
            assert ticket is not None
            ticket.retry_after = 7
            return JSONResponse({"error": "overloaded"}, status_code=int(behaviour.split()[-1]))
        if behaviour in WAITING:
            self.ticket = ticket = gate._ticket.get()
            assert ticket is not None
            ticket.refusable = True
            return await WAITING[behaviour](self)
        if behaviour in ERRORS:
            return JSONResponse({"error": behaviour}, status_code=ERRORS[behaviour])
        if behaviour == "stream":
            return StreamingResponse(self.stream())
        if behaviour == "break":
            return StreamingResponse(self.break_off())
        count, _, priority = behaviour.partition(" of priority ")
        if (ticket := gate._ticket.get()) is not None:
            self.request_gate.name_priority(int(priority) if priority else None)
            self.classes.append(ticket.of_class)
        sequences = [self.start() for _ in range(int(count))]
        for sequence in sequences:
            self.finish(sequence)
        return JSONResponse({})

    async def stream(self) -> AsyncIterator[bytes]:
        sequence = self.start()
        yield b"first"
        await self.go_on.wait()
        self.finish(sequence)
        yield b"last"

    async def wait_in_a_stream(self) -> Response:
        """A route that says something before it has a token, as some do, and says it failed once it was refused."""
        return StreamingResponse(self.stream_late())

    async def stream_late(self) -> AsyncIterator[bytes]:
        sequence = self.start()
        yield b"created"
        await self.hear()
        self.running.discard(sequence.request)
        if self.expires:
            self.ledger.done(sequence, prompt=3, cached=0, now=0.0, failed=True)
            yield b"error"
        else:
            self.finish(sequence)
            yield b"token"

    async def wait_and_fail(self) -> Response:
        """A route that makes a failure of the server of it."""
        sequences = [self.start(), self.start()]
        await self.hear()
        for sequence in sequences:
            self.running.discard(sequence.request)
            self.ledger.done(sequence, prompt=3, cached=0, now=0.0, failed=True)
        return JSONResponse({"error": "internal"}, status_code=500)

    async def wait_and_raise(self) -> Response:
        """A route whose failure nobody catches."""
        await self.wait_and_fail()
        raise RuntimeError("the engine failed")

    async def hear(self) -> None:
        """What the output processor is told, when the test says so."""
        self.waits.set()
        await self.go_on.wait()
        assert self.ticket is not None
        if self.expires:
            self.request_gate.expired(self.ticket, waited=4.0)
        else:
            self.ticket.refusable = False

    async def break_off(self) -> AsyncIterator[bytes]:
        self.running.discard(self.start().request)
        yield b"error"

    async def answer_too_early(self, _: object, receive: counting.Receive, send: counting.Send) -> None:
        """An application that has answered in full while a sequence goes on."""
        self.start()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})

    def refuses(self) -> None:
        """The engine core refuses what waits, at once."""
        self.go_on.set()

    def expect(self, **outcomes: int) -> None:
        assert {name: number for name, number in self.ledger.collect().requests.items() if number} == outcomes


#: Answers without a sequence.
ERRORS = {"refuse": 503, "unknown model": 404}
#: Routes of which a request waits for its first token.
WAITING: Mapping[str, Callable[[Engine], Awaitable[Response]]] = {
    "wait in a stream": Engine.wait_in_a_stream,
    "wait and fail": Engine.wait_and_fail,
    "wait and raise": Engine.wait_and_raise,
}


class Rooted(Starlette):
    """An application that is told its root path, as FastAPI has it: `--root-path` of vLLM."""

    def __init__(self, root: str, routes: list[Route]) -> None:
        super().__init__(routes=routes)
        self._root = root

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if self._root:
            scope["root_path"] = self._root
        await super().__call__(scope, receive, send)


@asynccontextmanager
async def served(
    engine: Engine, clock: Iterator[float] | None = None, *, root: str = ""
) -> AsyncIterator[httpx.AsyncClient]:
    """The engine's app behind the middleware, on a port of this machine."""
    app = Rooted(root, [Route(path, engine.handle, methods=["POST", "GET"]) for path in PATHS])
    app.add_middleware(
        counting.RequestMiddleware,
        ledger=engine.ledger,
        request_gate=engine.request_gate,
        clock=(lambda: next(clock)) if clock else (lambda: 0.0),
        running=engine.is_running,
    )
    with bound() as sock:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{sock.getsockname()[1]}", timeout=60, trust_env=False
        ) as client:
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


@pytest.mark.parametrize("sent_along", [False, True])
async def test_behind_a_root_path_routes_are_the_same_whether_the_proxy_sends_it_along(sent_along: bool) -> None:
    engine, root = Engine(), "/models/chat"
    async with served(engine, root=root) as client:
        answer = await client.post((root if sent_along else "") + PATH, content="turned away 503")
    assert (answer.status_code, answer.headers.get("retry-after")) == (503, "7")
    engine.expect(refused=1)


@pytest.mark.parametrize("status", [503, 500])
async def test_what_the_gate_refused_is_to_be_tried_again_whatever_a_route_makes_of_it(status: int) -> None:
    engine = Engine()
    async with served(engine) as client:
        answer = await client.post(PATH, content=f"turned away {status}")
    assert (answer.status_code, answer.headers["retry-after"], answer.json()) == (503, "7", {"error": "overloaded"})
    engine.expect(refused=1)


@pytest.mark.parametrize("behaviour", WAITING)
async def test_what_is_refused_while_it_waits_gets_a_refusal_and_nothing_of_the_answer(behaviour: str) -> None:
    engine = Engine()
    engine.refuses()
    async with served(engine) as client:
        answer = await client.post(PATH, content=behaviour)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "4")
        assert answer.json()["error"] == {
            "message": "overloaded: the first token could not come before its deadline; retry after 4 s",
            "type": "Service Unavailable",
            "param": None,
            "code": 503,
        }
        await until(engine, refused=1)
        # The connection is as good as before.
        assert (await client.post(PATH, content="1")).status_code == 200


async def test_a_refusal_has_the_form_of_its_route() -> None:
    engine = Engine()
    engine.refuses()
    async with served(engine) as client:
        answer = await client.post(MESSAGES_PATH, content="wait in a stream")
        cohere = await client.post(COHERE_PATH, content="wait in a stream")
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "Service Unavailable"
    assert cohere.json() == {
        "message": "overloaded: the first token could not come before its deadline; retry after 4 s"
    }


async def test_an_answer_is_held_until_its_first_token_and_comes_whole() -> None:
    engine = Engine()
    engine.expires = False
    async with served(engine) as client:
        asking = asyncio.create_task(client.post(PATH, content="wait in a stream"))
        await engine.waits.wait()
        assert not (await asyncio.wait({asking}, timeout=0.1))[0]
        engine.go_on.set()
        answer = await asking
    assert (answer.status_code, answer.content) == (200, b"createdtoken")
    engine.expect(finished=1)


async def test_a_client_that_leaves_while_its_answer_is_held_is_heard() -> None:
    engine = Engine()
    async with served(engine, clock=iter([0.0, 0.4])) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(PATH, content="wait in a stream", timeout=0.2)
        await until(engine, aborted=1)


async def test_an_answer_that_has_begun_goes_on_whatever_the_core_says() -> None:
    engine = Engine()
    async with served(engine) as client:
        asking = asyncio.create_task(client.post(PATH, content="wait in a stream"))
        await engine.waits.wait()
        assert engine.ticket is not None
        # Another of its sequences has a token.
        engine.ticket.refusable = False
        engine.refuses()
        answer = await asking
    assert (answer.status_code, answer.content) == (200, b"createderror")
    engine.expect(error=1)


async def test_a_fault_of_ours_is_counted_and_the_answer_stands() -> None:
    def unable(_: OpenRequest) -> bool:
        raise RuntimeError("a fault of ours")

    engine = Engine()
    app = counting.RequestMiddleware(
        engine.answer_too_early, ledger=engine.ledger, request_gate=no_gate(), clock=lambda: 0.0, running=unable
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


async def test_the_header_of_a_request_names_its_class() -> None:
    engine = Engine()
    engine.ledger.set_classes(two_classes(1.0))
    chat, unknown = ({"X-Gateway-Inference-Objective": value} for value in ("Chat", "unheard-of"))
    async with served(engine) as client:
        await client.post(PATH, content="1", headers=chat)
        await client.post(MESSAGES_PATH, content="refuse", headers=chat)
        await client.post(PATH, content="1", headers=unknown)
        await client.post("/other", content="1", headers=unknown)
        await client.post(PATH, content="1")
    counts = engine.ledger.collect()
    assert {key: count for key, count in counts.classes.items() if count} == {
        ("chat", "finished"): 1,
        ("chat", "refused"): 1,
        ("default", "finished"): 3,
    }
    assert counts.unknown_class == 1, "of those that generate"
    assert engine.classes == ["chat", "", ""], "the gate hears it, too"


async def test_the_priority_in_its_body_names_the_class_of_a_request_without_the_header() -> None:
    engine = Engine()
    engine.ledger.set_classes(two_classes(1.0))
    async with served(engine) as client:
        await client.post(PATH, content="1 of priority 5")
        await client.post(PATH, content="1 of priority 7")
        await client.post(PATH, content="1")
        await client.post(PATH, content="1 of priority 5", headers={"X-Vllm-Priority": "0"})
        await client.post(PATH, content="1 of priority 5", headers={"X-Gateway-Inference-Objective": "Chat"})
    assert engine.classes == ["batch", "", "", "", "chat"], "as the gate hears them"
    counts = engine.ledger.collect()
    assert {key: count for key, count in counts.classes.items() if count} == {
        ("batch", "finished"): 1,
        ("default", "finished"): 3,
        ("chat", "finished"): 1,
    }
    assert counts.unknown_class == 1


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
