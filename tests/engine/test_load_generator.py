"""The benches' clients by the real vLLM's request function, against an endpoint that answers as it is told to."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from flyball_lab.benches.engine.load import Ask, Clients, Load, clients, closed, open_loop
from flyball_lab.benchmark.errors import GeneratorError
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.tuners import until
from flyball_lab.harness.waiting import eventually

pytestmark = pytest.mark.engine

#: What the endpoint does, by how many tokens are asked.
REFUSED, WRONG, SILENT, STALLED, BROKEN = 1001, 1002, 1003, 1004, 1005
#: Seconds that an answer takes.
TAKES = 0.1


@dataclass
class Endpoint:
    """An OpenAI endpoint, what it was asked, in order, and how many requests are open, now and at most."""

    port: int = field(default_factory=free_port)
    asked: list[list[int]] = field(default_factory=list)
    open: int = 0
    most_open: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body["prompt"])
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await self._answer(request, body["max_tokens"])
        finally:
            self.open -= 1

    async def _answer(self, request: web.Request, tokens: int) -> web.StreamResponse:
        match tokens:
            case 1001:
                return web.Response(status=503, text="the queue is too long", headers={"Retry-After": "3"})
            case 1002:
                return web.Response(status=400, text="no such thing")
            case 1003:
                await asyncio.sleep(600)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await _say(answer, {"choices": [{"text": "a"}]})
        if tokens == STALLED:
            await asyncio.sleep(600)
        await asyncio.sleep(TAKES)
        if tokens == BROKEN:
            assert request.transport is not None
            request.transport.abort()
            return answer
        await _say(answer, {"choices": [{"text": "b"}]})
        await _say(answer, {"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens": 3}})
        await answer.write(b"data: [DONE]\n\n")
        return answer


async def _say(answer: web.StreamResponse, chunk: object) -> None:
    await answer.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def children(process: int) -> list[int]:
    """Of its first thread."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    told = Endpoint()
    application = web.Application(client_max_size=1 << 30)
    application.router.add_post("/v1/completions", told.answer)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", told.port).start()
    yield told
    await runner.cleanup()


@pytest.fixture(scope="module")
def generator(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    with clients(vllm_python, tmp_path_factory.mktemp("generator")) as started:
        yield started


def asks(*outputs: int, apart: float = 0.0) -> list[Ask]:
    return [Ask([number, 7, 8], output, number * apart) for number, output in enumerate(outputs)]


@pytest.mark.alone
async def test_what_clients_see_of_answers_refusals_errors_and_silence(generator: Clients, endpoint: Endpoint) -> None:
    wanted = asks(16, REFUSED, WRONG, SILENT, STALLED, BROKEN, 2)
    began = time.monotonic()
    sent = await generator.send_beside(open_loop(endpoint.url, wanted, patience=3.0))
    assert time.monotonic() - began < 60, "clients leave silence"
    assert sent.seconds >= 3.0

    answered, refused, wrong, silent, stalled, broken, short = sent.results
    for result, tokens in ((answered, 16), (short, 2)):
        assert (result.status, result.tokens) == (200, tokens)
        assert result.first is not None
        assert result.ended is not None
        assert 0 < result.first <= result.ended - TAKES / 2
    assert (refused.status, refused.refused, refused.first, refused.ended) == (503, True, None, None)
    assert (wrong.status, wrong.refused, wrong.ended) == (400, False, None)
    assert (silent.status, silent.first, silent.ended) == (0, None, None)
    assert (stalled.status, stalled.in_time(3.0), stalled.ended) == (200, True, None), "its first token came"
    assert (broken.status, broken.in_time(3.0), broken.ended, broken.tokens) == (200, True, None, 0)


def test_who_finds_nobody_there_had_an_error(generator: Clients) -> None:
    sent = generator.send(open_loop(f"http://127.0.0.1:{free_port()}", asks(4), patience=30.0))
    assert [(result.status, result.refused, result.first) for result in sent.results] == [(-1, False, None)]
    assert sent.seconds < 30.0


@pytest.mark.alone
async def test_requests_arrive_in_the_order_of_their_times_with_the_prompts_that_they_have(
    generator: Clients, endpoint: Endpoint
) -> None:
    wanted = asks(*[4] * 5, apart=0.5)
    sent = await generator.send_beside(open_loop(endpoint.url, wanted[::-1], patience=20.0))
    assert endpoint.asked == [ask.prompt for ask in wanted]
    # How late they are is the machine's; none is early.
    assert sent.seconds >= wanted[-1].at


@pytest.mark.alone
async def test_a_closed_loop_has_so_many_at_once_and_begins_none_after_its_time(
    generator: Clients, endpoint: Endpoint
) -> None:
    endless = (Ask([number, 7, 8], 4) for number in iter(int, 1))
    sent = await generator.send_beside(closed(endpoint.url, endless, streams=3, seconds=1.5))
    assert endpoint.most_open == 3
    assert sent.seconds >= 1.5
    assert len(sent.results) == len(endpoint.asked) >= 3
    assert all(result.tokens == 4 for result in sent.results)


async def test_a_closed_loop_without_a_time_sends_all_it_has(generator: Clients, endpoint: Endpoint) -> None:
    sent = await generator.send_beside(closed(endpoint.url, asks(*[4] * 7), streams=2))
    assert [result.tokens for result in sent.results] == [4] * 7
    assert endpoint.most_open == 2


async def test_long_prompts_and_two_loads_at_once(generator: Clients, endpoint: Endpoint) -> None:
    long = [Ask(list(range(100_000)), 4) for _ in range(10)]
    loads: Sequence[Load] = (closed(endpoint.url, long, streams=2), open_loop(endpoint.url, asks(3), patience=20.0))
    first, second = await asyncio.to_thread(generator.send_all, *loads)
    assert [result.tokens for result in first.results] == [4] * 10
    assert [result.tokens for result in second.results] == [3]
    assert sorted(map(len, endpoint.asked)) == [3, *[100_000] * 10]


@pytest.mark.alone
async def test_clients_run_where_the_generator_is_pinned(generator: Clients, endpoint: Endpoint) -> None:
    last = max(os.sched_getaffinity(0))
    before = os.sched_getaffinity(generator.session)
    os.sched_setaffinity(generator.session, [last])
    try:
        sending = asyncio.create_task(generator.send_beside(open_loop(endpoint.url, asks(SILENT), patience=2.0)))
        await until("it is asked", lambda: endpoint.open == 1)
        assert [os.sched_getaffinity(child) for child in children(generator.session)] == [{last}]
        await sending
    finally:
        os.sched_setaffinity(generator.session, before)


async def test_a_load_that_nobody_waits_for_and_an_error_leave_no_process(
    vllm_python: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    with suppress(ZeroDivisionError), clients(vllm_python, tmp_path) as started:
        sending = asyncio.create_task(started.send_beside(open_loop(endpoint.url, asks(SILENT), patience=600.0)))
        await until("it is asked", lambda: endpoint.open == 1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        raise ZeroDivisionError
    with pytest.raises(ProcessLookupError):
        os.kill(started.session, 0)
    await until("its client leaves", lambda: endpoint.open == 0)


def test_a_generator_that_ended_is_said(vllm_python: str, tmp_path: Path) -> None:
    with clients(vllm_python, tmp_path) as started:
        os.kill(started.session, 9)
        stat = Path(f"/proc/{started.session}/stat")
        eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", expecting="its end")
        with pytest.raises(GeneratorError, match="ended"):
            started.send(open_loop("http://127.0.0.1:1", asks(4), patience=1.0))


async def test_a_generator_that_is_killed_under_load_is_said_and_sends_no_more(
    vllm_python: str, tmp_path: Path, endpoint: Endpoint
) -> None:
    def kill() -> None:
        if endpoint.open:
            with suppress(ProcessLookupError):
                os.kill(started.session, 9)

    with clients(vllm_python, tmp_path) as started:
        load = open_loop(endpoint.url, asks(SILENT), patience=600.0)
        with pytest.raises(GeneratorError, match="ended"):
            await asyncio.wait_for(asyncio.to_thread(started.send_all, load, tick=kill), 120.0)
