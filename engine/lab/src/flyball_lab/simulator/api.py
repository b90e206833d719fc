"""The API port of a served simulated engine: that of every engine, and what may be done to this one.

`PUT /simulator/slow-down {"factor": 1.4}` slows every step from then on; `POST /simulator/crash` ends the process as
SIGKILL does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from flyball_engine.batching.gate import QUEUE_FULL_SECONDS, spread
from flyball_engine.batching.outcomes import LedgerCounts
from flyball_engine.contract import HEALTH_PATH, READY_HEADER
from flyball_engine.control.readiness import Readiness
from flyball_lab.openai.app import Api, Gone, Headers, NotServedError, moment, overloaded, told
from flyball_lab.openai.load import EngineLoad
from flyball_lab.openai.reply import error
from flyball_lab.simulator.openai import TOKEN, ChatBody, CompletionBody
from flyball_lab.simulator.requests import Fate, Request
from flyball_lab.simulator.serving import SimulatedEngine

_log = logging.getLogger(__name__)
#: As access logs have it; nobody gets it.
_CLIENT_GONE: Final = 499


class _SlowDown(BaseModel):
    model_config = ConfigDict(extra="forbid")

    factor: Annotated[float, Field(gt=0, le=1000)]


@dataclass(frozen=True)
class _Answer:
    """A request as the routes see it."""

    request: Request
    engine: SimulatedEngine
    token_ids: None = None
    failure: None = None

    @property
    def prompt_tokens(self) -> int:
        return self.request.prompt

    @property
    def cached_tokens(self) -> int:
        return self.request.cached or 0

    @property
    def made(self) -> int:
        return self.engine.made(self.request)

    @property
    def finish_reason(self) -> str | None:
        return None if self.request.fate is Fate.OPEN else "length"

    def pieces(self, start: int) -> Sequence[str]:
        return [TOKEN] * (self.made - start)


class _Backend:
    """The engine as the routes see it."""

    def __init__(self, engine: SimulatedEngine, random: Random) -> None:
        self._engine = engine
        self._random = random

    @property
    def max_model_len(self) -> int:
        return self._engine.preset.sizes.max_model_len

    def healthy(self) -> bool:
        return self._engine.healthy()

    def load(self) -> EngineLoad:
        return self._engine.load()

    def counts(self) -> LedgerCounts:
        return self._engine.counts()

    async def submit(self, body: CompletionBody | ChatBody, headers: Headers, gone: Gone, /) -> list[_Answer]:
        requests = body.sequences(self._random)
        if not requests:
            raise NotServedError("prompt: is empty")
        classifier = self._engine.core.ledger.classifier
        named = classifier.name(headers)
        of_class = classifier.of_priority(body.priority) if named is None else named
        for request in requests:
            request.of_class = of_class
        verdict = self._engine.submit(requests)
        if verdict is not None and not verdict.admitted:
            message = f"overloaded: the first token is expected after {verdict.predicted:.2f} s"
            raise overloaded(message, retry_after=verdict.retry_after(self._random.random()))
        if requests[0].fate is Fate.REFUSED:
            message = f"prompt and answer are longer than the {self.max_model_len} tokens of the model's context"
            raise NotServedError(message)
        # A response that has begun cannot become a refusal.
        while True:
            tick = self._engine.tick
            if not self._engine.may_refuse(requests):
                break
            if await gone():
                self._engine.leave(requests)
                raise NotServedError("the client is gone", status=_CLIENT_GONE)
            await moment(tick)
        if requests[0].fate is Fate.SHED:
            message = "overloaded: the first token cannot come in time any more"
            raise overloaded(message, retry_after=spread(QUEUE_FULL_SECONDS, self._random.random()))
        return [_Answer(request, self._engine) for request in requests]

    @property
    def tick(self) -> asyncio.Event:
        return self._engine.tick

    def leave(self, answers: Sequence[_Answer]) -> None:
        self._engine.leave([answer.request for answer in answers])


def build_api(
    engine: SimulatedEngine,
    *,
    model: str,
    random: Random,
    clock: Callable[[], float],
    readiness: Readiness,
    die: Callable[[], None],
) -> Starlette:
    """The ASGI application. `clock` gives the time of day; `die` ends the process at once."""
    api: Api[CompletionBody | ChatBody] = Api(
        engine=_Backend(engine, random),
        completion=CompletionBody,
        chat=ChatBody,
        model=model,
        random=random,
        clock=clock,
    )

    async def health(http: HttpRequest) -> Response:
        lacks = readiness.lacks() if READY_HEADER in http.headers else None
        return Response(status_code=200) if lacks is None else PlainTextResponse(lacks, status_code=503)

    async def slow_down(http: HttpRequest) -> Response:
        try:
            wanted = _SlowDown.model_validate_json(await http.body())
        except ValidationError as problem:
            return JSONResponse(error(told(problem), kind="BadRequestError", status=400), status_code=400)
        engine.core.plant.slow_down = wanted.factor
        return Response(status_code=204)

    async def crash(_: HttpRequest) -> Response:
        _log.critical("Flyball: POST /simulator/crash: the process ends here, as by SIGKILL")
        die()
        return Response(status_code=204)

    return Starlette(
        routes=[
            # Before the one of all engines: a pod's probe of readiness asks for more.
            Route(HEALTH_PATH, health, methods=["GET"]),
            *api.routes(),
            Route("/simulator/slow-down", slow_down, methods=["PUT"]),
            Route("/simulator/crash", crash, methods=["POST"]),
        ]
    )
