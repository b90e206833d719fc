"""The API port: OpenAI's routes, health and vLLM's metrics, before any engine. A route of vLLM not here answers 404."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Generic, Protocol, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import ValidationError
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from flyball_engine.contract import HEALTH_PATH, METRICS_PATH
from flyball_lab.openai.bodies import Body
from flyball_lab.openai.load import LoadCollector, Loaded
from flyball_lab.openai.reply import GeneratedSequence, Reply, ended, error

#: A prompt of a million tokens fits.
MAX_BODY_BYTES: Final = 16 * 1024 * 1024

#: A client that waits for an answer as a whole, and gets no token meanwhile, is looked for so often.
_LOOK_SECONDS: Final = 1.0

#: As ASGI has them: the names in lower case.
Headers = Sequence[tuple[bytes, bytes]]

#: Whether the client of a request is gone.
Gone = Callable[[], Awaitable[bool]]

_FormT = TypeVar("_FormT", bound=Body)
_FormT_contra = TypeVar("_FormT_contra", bound=Body, contravariant=True)


class NotServedError(Exception):
    """A request that gets an error instead of an answer: its HTTP status, OpenAI's type of error, and headers."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.headers = headers


def overloaded(message: str, *, retry_after: int) -> NotServedError:
    """The engine is too busy for one more; `retry_after` in seconds."""
    headers = {"Retry-After": str(retry_after)}
    return NotServedError(message, status=503, kind="ServiceUnavailableError", headers=headers)


class Backend(Loaded, Protocol[_FormT_contra]):
    """What the routes ask of an engine."""

    @property
    def max_model_len(self) -> int:
        """Tokens that a prompt and its answer may have together."""

    def healthy(self) -> bool:
        """Whether the engine still serves."""

    async def submit(self, body: _FormT_contra, headers: Headers, gone: Gone, /) -> Sequence[GeneratedSequence]:
        """One HTTP request comes in: its sequences, `body.n` for each prompt. Raises NotServedError.

        Whoever waits here asks `gone` meanwhile: a client that goes is told to nobody else.
        """

    @property
    def tick(self) -> asyncio.Event:
        """Set as soon as there may be more than there is now; another one each time."""

    def leave(self, answers: Sequence[Any]) -> None:
        """Nobody waits any more for these, which `submit` gave; those that ended are no loss."""


@dataclass(frozen=True, kw_only=True)
class Api(Generic[_FormT]):
    """The routes' handlers. `model` is the name it is served by; `clock` gives the time of day; `random` names answers.

    `completion` and `chat` are the engine's forms of the two bodies.
    """

    engine: Backend[_FormT]
    completion: type[_FormT]
    chat: type[_FormT]
    model: str
    random: Random
    clock: Callable[[], float]
    _registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def routes(self) -> list[Route]:
        """For an ASGI application; called once."""
        self._registry.register(LoadCollector(self.engine, self.model))
        return [
            Route("/v1/completions", self._complete, methods=["POST"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route(HEALTH_PATH, self._health, methods=["GET"]),
            Route(METRICS_PATH, self._metrics, methods=["GET"]),
        ]

    async def _chat(self, http: HttpRequest) -> Response:
        return await self._answer(http, self.chat)

    async def _complete(self, http: HttpRequest) -> Response:
        return await self._answer(http, self.completion)

    async def _models(self, _: HttpRequest) -> Response:
        longest = self.engine.max_model_len
        found = {"id": self.model, "object": "model", "owned_by": "flyball", "max_model_len": longest}
        return JSONResponse({"object": "list", "data": [found]})

    async def _health(self, _: HttpRequest) -> Response:
        return Response(status_code=200 if self.engine.healthy() else 503)

    async def _metrics(self, _: HttpRequest) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def _answer(self, http: HttpRequest, form: type[_FormT]) -> Response:
        try:
            return await self._generate(http, form)
        except NotServedError as refused:
            body = error(refused.message, kind=refused.kind, status=refused.status)
            return JSONResponse(body, status_code=refused.status, headers=refused.headers)

    async def _generate(self, http: HttpRequest, form: type[_FormT]) -> Response:
        try:
            body = form.model_validate_json(await _bounded_body(http))
        except ValidationError as problem:
            raise NotServedError(told(problem)) from problem
        if body.model not in {None, self.model}:
            message = f"model: {body.model!r} is not served here, accepted: {self.model!r}"
            raise NotServedError(message, status=404, kind="NotFoundError")
        engine = self.engine
        answers = await engine.submit(body, http.headers.raw, http.is_disconnected)
        chat = form is self.chat
        identity = f"{'chatcmpl' if chat else 'cmpl'}-{self.random.getrandbits(64):016x}"
        reply = Reply(identity=identity, model=self.model, created=int(self.clock()), chat=chat, each=body.n)
        if body.stream:
            events = _stream(engine, answers, reply, usage=body.include_usage)
            return StreamingResponse(events, media_type="text/event-stream")
        try:
            while True:
                tick = engine.tick
                if all(map(ended, answers)) or await http.is_disconnected():
                    break
                await moment(tick)
        finally:
            engine.leave(answers)
        failure = next((answer.failure for answer in answers if answer.failure), None)
        if failure:
            raise NotServedError(failure, status=500, kind="InternalServerError")
        return JSONResponse(reply.whole(answers))


def told(problem: ValidationError) -> str:
    """What is wrong with a body, by field."""
    said = (f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in problem.errors())
    return "; ".join(said)[:2000]


async def _bounded_body(http: HttpRequest) -> bytes:
    """The body, refused as soon as it is known to be too large."""
    body = bytearray()
    async for chunk in http.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise NotServedError(f"a body has at most {MAX_BODY_BYTES} bytes", status=413)
    return bytes(body)


async def _stream(
    engine: Backend[_FormT], answers: Sequence[GeneratedSequence], reply: Reply, *, usage: bool
) -> AsyncIterator[str]:
    """Every token by itself, as it is made; a client that goes is told to the engine."""
    told_of, open_ones = [0] * len(answers), dict(enumerate(answers))
    try:
        while open_ones:
            tick = engine.tick  # before the tokens are looked at: more may come while these are sent
            events: list[str] = []
            for index, answer in list(open_ones.items()):
                if ended(answer):
                    del open_ones[index]
                events += _news(reply, index, answer, told_of)
            if events:
                yield "".join(events)
            if open_ones:
                await moment(tick)
        if usage:
            yield _event(reply.usage_chunk(answers))
        yield "data: [DONE]\n\n"
    finally:
        engine.leave(answers)


async def moment(tick: asyncio.Event) -> None:
    """Until there is news, or a client that may have gone is to be looked for."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LOOK_SECONDS):
            await tick.wait()


def _news(reply: Reply, index: int, answer: GeneratedSequence, told_of: list[int]) -> list[str]:
    """The events of one sequence since the last time; its end is told with its last token, as vLLM tells it."""
    if answer.failure:
        return [_event(error(answer.failure, kind="InternalServerError", status=500))]
    texts = list(answer.pieces(told_of[index]))
    first = told_of[index] == 0
    told_of[index] += len(texts)
    if answer.finish_reason and not texts:
        texts = [""]
    reasons: list[str | None] = [None] * len(texts)
    if texts:
        reasons[-1] = answer.finish_reason
    # With the first token, as vLLM has it: clients take the first event for that.
    begins = [_event(reply.role_chunk(index))] if reply.chat and first and texts else []
    return begins + [_event(reply.chunk(index, text, reason)) for text, reason in zip(texts, reasons, strict=True)]


def _event(body: object) -> str:
    return f"data: {json.dumps(body)}\n\n"
