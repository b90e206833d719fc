"""When an engine is Ready: it answered a request of our own, and has a setpoint, or none that would come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from flyball_engine.contract import HEALTH_PATH, READY_HEADER, SETPOINT_WAIT_SECONDS
from flyball_engine.control.readiness import Readiness
from flyball_engine.vllm.warm_up import GIVE_UP_SECONDS, WarmUp
from flyball_lab.harness.virtual_time import in_virtual_time, now

Answer = Callable[[Request], Awaitable[Response]]


class Engine:
    """An API server as vLLM's: health, and completions that end as `answers` says, the last one from then on."""

    def __init__(self, *answers: int | Exception | None) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.readiness = Readiness(now)
        self.warm_up = WarmUp(self.readiness, clock=now)
        routes = [
            Route(HEALTH_PATH, self._health),
            Route("/v1/completions", self._complete, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)
        self.warm_up.install(self.app)

    async def _health(self, _: Request) -> Response:
        return PlainTextResponse("")

    async def _complete(self, request: Request) -> Response:
        self.asked.append(await request.json())
        self.keys.append(request.headers.get("authorization", ""))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await asyncio.Future()
        if isinstance(answer, Exception):
            raise answer
        return PlainTextResponse("", status_code=int(answer or 0))

    async def serve(self, api_key: str | None = None) -> asyncio.Task[None]:
        """Begin to serve, and warm up; returns the warming."""
        warming = asyncio.create_task(self.warm_up.run(api_key))
        await asyncio.sleep(0)
        assert "yet to answer" in await self.probed()
        return warming

    async def probed(self, *, plainly: bool = False) -> str:
        """What a readiness probe hears, empty where all is well; `plainly`: without our header."""
        headers = {} if plainly else {READY_HEADER: "yes"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://engine") as client:
            answer = await client.get(HEALTH_PATH, headers=headers)
        assert answer.status_code in (200, 503)
        return "" if answer.status_code == 200 else answer.text


@in_virtual_time
async def test_an_engine_is_ready_once_it_has_answered_a_request_of_two_tokens() -> None:
    engine = Engine(200)
    await (await engine.serve(api_key="secret"))
    assert await engine.probed() == ""
    (body,) = engine.asked
    assert body["max_tokens"] == 2
    assert "model" not in body
    assert engine.keys == ["Bearer secret"]


@in_virtual_time
async def test_other_probes_and_an_engine_that_is_not_warmed_up_see_plain_health() -> None:
    engine = Engine(None)
    assert await engine.probed() == "", "nothing was to be waited for"
    warming = await engine.serve()
    assert await engine.probed(plainly=True) == ""
    warming.cancel()


@in_virtual_time
async def test_an_engine_that_hangs_over_its_first_request_is_never_ready() -> None:
    engine = Engine(None)
    warming = await engine.serve()
    await asyncio.sleep(3600)
    assert "yet to answer" in await engine.probed()
    warming.cancel()


@in_virtual_time
async def test_an_error_is_tried_again() -> None:
    engine = Engine(500, RuntimeError("not yet"), 503, 200)
    await (await engine.serve())
    assert len(engine.asked) == 4
    assert await engine.probed() == ""


@in_virtual_time
async def test_an_engine_that_goes_on_failing_is_let_serve_in_the_end(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(500)
    began = now()
    await (await engine.serve())
    assert now() - began == pytest.approx(GIVE_UP_SECONDS)
    assert await engine.probed() == ""
    assert "WarmUpFailed: clients are let in: status 500" in caplog.text


@in_virtual_time
@pytest.mark.parametrize("status", [400, 401, 404, 501])
async def test_an_engine_that_takes_no_completions_is_ready_at_once(status: int) -> None:
    engine = Engine(status)
    await (await engine.serve())
    assert (await engine.probed(), len(engine.asked)) == ("", 1)


@in_virtual_time
async def test_a_governed_engine_is_ready_once_every_core_runs_under_a_setpoint_and_stays_so() -> None:
    engine, governed = Engine(200), [False]
    engine.readiness.expect_setpoint(lambda: governed[0])
    await (await engine.serve())
    assert "no setpoint yet" in await engine.probed()
    governed[0] = True
    assert await engine.probed() == ""
    governed[0] = False
    assert await engine.probed() == "", "an expiry is no reason to take it out of service"


@in_virtual_time
async def test_without_an_operator_an_engine_serves_after_a_while() -> None:
    engine = Engine(200)
    engine.readiness.expect_setpoint(lambda: False)
    await (await engine.serve())
    await asyncio.sleep(SETPOINT_WAIT_SECONDS - 1)
    assert "it serves without one in 1s" in await engine.probed()
    await asyncio.sleep(1)
    assert await engine.probed() == ""
