"""The API port of a served simulated engine: OpenAI's routes, health, vLLM's metrics, and what may be done to it.

`PUT /simulator/slow-down {"factor": 1.4}` slows every step from then on; `POST /simulator/crash` ends the process as a
crash does. A route of vLLM that is not here answers 404.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Annotated

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from flyball_engine.batching.gate import Verdict
from flyball_engine.contract import HEALTH_PATH, METRICS_PATH
from flyball_engine.simulator.openai import ChatBody, CompletionBody, Reply, error
from flyball_engine.simulator.requests import Fate, Request
from flyball_engine.simulator.serving import SimulatedEngine
from flyball_engine.simulator.vllm_metrics import VllmCollector


class _SlowDown(BaseModel):
    factor: Annotated[float, Field(gt=0, le=1000)]


class _Api:
    """The routes' handlers."""

    def __init__(self, engine: SimulatedEngine, model: str, random: Random, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._model = model
        self._random = random
        self._clock = clock
        self._registry = CollectorRegistry()
        self._registry.register(VllmCollector(engine, model))

    async def chat(self, http: HttpRequest) -> Response:
        """Answer messages."""
        return await self._generate(http, ChatBody)

    async def complete(self, http: HttpRequest) -> Response:
        """Continue prompts."""
        return await self._generate(http, CompletionBody)

    async def models(self, _: HttpRequest) -> Response:
        """The one model there is."""
        longest = self._engine.preset.sizes.max_model_len
        found = {"id": self._model, "object": "model", "owned_by": "flyball", "max_model_len": longest}
        return JSONResponse({"object": "list", "data": [found]})

    async def health(self, _: HttpRequest) -> Response:
        """It answers, so it serves."""
        return Response(status_code=200)

    async def metrics(self, _: HttpRequest) -> Response:
        """By vLLM's names."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def slow_down(self, http: HttpRequest) -> Response:
        """Steps take so many times as long from now on."""
        try:
            wanted = _SlowDown.model_validate_json(await http.body())
        except ValidationError as problem:
            return _refused(problem.errors()[0]["msg"])
        self._engine.core.plant.slow_down = wanted.factor
        return Response(status_code=204)

    async def _generate(self, http: HttpRequest, form: type[ChatBody | CompletionBody]) -> Response:
        try:
            body = form.model_validate_json(await http.body())
        except ValidationError as problem:
            return _refused("; ".join(f"{item['loc']}: {item['msg']}" for item in problem.errors()))
        requests = body.sequences(self._random)
        if not requests:
            return _refused("prompt: is empty")
        engine = self._engine
        verdict = engine.submit(requests)
        if verdict is not None and not verdict.admitted:
            return _overloaded(verdict)
        if requests[0].fate is Fate.REFUSED:
            longest = engine.preset.sizes.max_model_len
            return _refused(f"prompt and answer are longer than the {longest} tokens of the model's context")
        chat = form is ChatBody
        identity = f"{'chatcmpl' if chat else 'cmpl'}-{self._random.getrandbits(64):016x}"
        reply = Reply(identity=identity, model=self._model, created=int(self._clock()), chat=chat, each=body.n)
        if body.stream:
            events = _stream(engine, requests, reply, usage=body.include_usage)
            return StreamingResponse(events, media_type="text/event-stream")
        try:
            while not _ended(requests) and not await http.is_disconnected():
                await engine.progress()
        finally:
            engine.leave(requests)
        return JSONResponse(reply.whole(requests))


def build_api(
    engine: SimulatedEngine, *, model: str, random: Random, clock: Callable[[], float], die: Callable[[], None]
) -> Starlette:
    """The ASGI application. `clock` gives the time of day; `die` ends the process at once."""
    api = _Api(engine, model, random, clock)

    async def crash(_: HttpRequest) -> Response:
        die()
        return Response(status_code=204)

    return Starlette(
        routes=[
            Route("/v1/completions", api.complete, methods=["POST"]),
            Route("/v1/chat/completions", api.chat, methods=["POST"]),
            Route("/v1/models", api.models, methods=["GET"]),
            Route(HEALTH_PATH, api.health, methods=["GET"]),
            Route(METRICS_PATH, api.metrics, methods=["GET"]),
            Route("/simulator/slow-down", api.slow_down, methods=["PUT"]),
            Route("/simulator/crash", crash, methods=["POST"]),
        ]
    )


async def _stream(engine: SimulatedEngine, requests: list[Request], reply: Reply, *, usage: bool) -> AsyncIterator[str]:
    """Every token by itself, as it is made; a client that goes is told to the core."""
    told = [0] * len(requests)
    done = [False] * len(requests)
    try:
        while not all(done):
            events = []
            for index, request in enumerate(requests):
                made = engine.made(request)
                events += [_event(reply.chunk(index))] * (made - told[index])
                told[index] = made
                if request.fate is not Fate.OPEN and not done[index]:
                    done[index] = True
                    events.append(_event(reply.chunk(index, finished=True)))
            if events:
                yield "".join(events)
            if not all(done):
                await engine.progress()
        if usage:
            yield _event(reply.usage_chunk(requests))
        yield "data: [DONE]\n\n"
    finally:
        engine.leave(requests)


def _ended(requests: list[Request]) -> bool:
    return all(request.fate is not Fate.OPEN for request in requests)


def _event(body: object) -> str:
    return f"data: {json.dumps(body)}\n\n"


def _overloaded(verdict: Verdict) -> Response:
    message = f"overloaded: the first token is expected after {verdict.predicted:.2f} s"
    body = error(message, kind="ServiceUnavailableError", status=503)
    return JSONResponse(body, status_code=503, headers={"Retry-After": str(verdict.retry_after)})


def _refused(message: str) -> Response:
    return JSONResponse(error(message, kind="BadRequestError", status=400), status_code=400)
