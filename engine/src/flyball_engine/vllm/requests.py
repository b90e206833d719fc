"""Tells the ledger and the gate what happens to each HTTP request; runs in vLLM's API server.

vLLM's own statistics cannot be used. They have no time to the first token of a finished request, gaps without a
request, and one finished entry per sequence instead of per request. Of a client that leaves they have nothing. So an
ASGI middleware opens and ends the requests (arrival, refusals, departures as the HTTP server sees them), and three
methods of the output processor tell of their sequences. What belongs together travels in a context variable, which
every task of an HTTP request inherits: `n`, batches of prompts and beams are grouped without reading ids.

What an engine core may still refuse has its answer held back until its first token: a refusal then takes the place of
all that the route would have said. An answer of which the client has something goes on.

Nothing here may hurt serving: what is wrapped runs first and its outcome stands; a fault of ours is counted.
"""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any, Final

from flyball_engine.batching.outcomes import End, OpenRequest, OpenSequence, RequestLedger
from flyball_engine.contract import DEFAULT_CLASS
from flyball_engine.log_events import EngineLogEvent, EventLog
from flyball_engine.vllm.attributes import first_lack
from flyball_engine.vllm.compat import COUNTING
from flyball_engine.vllm.gate import AdmissionTicket, RequestGate
from flyball_engine.vllm.refusal import is_refusal, set_class, set_mark, unmark
from flyball_engine.vllm.routes import COHERE_PATH, GENERATING_PATHS, MESSAGES_PATH
from flyball_engine.vllm.wrapping import original, wrap

_log = EventLog(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

#: Methods of the output processor that are wrapped, and the parameters they must have. What is read: `compat.COUNTING`.
_SURFACE: Final = {
    "add_request": ("self", "request"),
    "_update_stats_from_output": ("self", "req_state", "engine_core_output", "engine_core_timestamp"),
    "_update_stats_from_finished": ("self", "req_state", "finish_reason"),
}
#: The attribute of vLLM's per-sequence state that holds our own.
_MARK: Final = "flyball_sequence"
#: That of the ticket of a request that the core may refuse.
_TICKET: Final = "flyball_ticket"

_current: ContextVar[OpenRequest | None] = ContextVar("flyball_request", default=None)


def install(
    ledger: RequestLedger, app: Any, *, request_gate: RequestGate, clock: Callable[[], float] = time.monotonic
) -> str | None:
    """Feeds the ledger and the gate from this API server, whose FastAPI `app` does not serve yet.

    Returns why that is impossible, or None. `clock` gives seconds; it need not be the engine core's.
    """
    try:
        from vllm.v1.engine.output_processor import OutputProcessor  # noqa: PLC0415  only an API server has it
    except ImportError as error:
        return str(error)
    if (missing := _missing(OutputProcessor) or first_lack(COUNTING)) is not None:
        return missing
    feed = _Feed(ledger, request_gate, clock)
    _wrap(OutputProcessor, feed)
    app.add_middleware(
        RequestMiddleware, ledger=ledger, request_gate=request_gate, clock=clock, running=feed.running
    )  # added last, it is outermost
    return None


def _missing(processor: Any) -> str | None:
    """What this version of vLLM lacks."""
    for name, wanted in _SURFACE.items():
        method = getattr(processor, name, None)
        if method is None:
            return f"OutputProcessor has no {name}"
        found = tuple(inspect.signature(method).parameters)
        if found[: len(wanted)] != wanted:
            return f"OutputProcessor.{name} takes {', '.join(found)}"
    return None


class _Feed:
    """What the output processor knows, as events of the ledger. Called from the server's event loop alone."""

    def __init__(self, ledger: RequestLedger, request_gate: RequestGate, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._request_gate = request_gate
        self._clock = clock
        self._states: Mapping[str, Any] = {}

    def add_request(self, processor: Any, request: Any) -> None:
        """A sequence was given to the processor; it keeps a state for it under its internal id."""
        unmark(request)
        current = _current.get()
        self._states = processor.request_states
        state = processor.request_states.get(request.request_id)
        if state is None:
            return
        # Outside an HTTP request (a warm-up, a socket) and for pooling there is nothing to count.
        if current is None or state.detokenizer is None or hasattr(state, _MARK):
            return
        if (adapter := getattr(request, "lora_request", None)) is not None:
            current.adapter = adapter.lora_name
        sequence = self._ledger.started(current)
        setattr(state, _MARK, sequence)
        sequence.named = self._request_gate.named()
        if current.of_class and self._request_gate.marks:
            set_class(request, current.of_class)
        parent = getattr(state, "parent_req", None)
        mark = self._request_gate.mark(siblings=1 if parent is None else parent.sampling_params.n)
        if mark is not None:
            setattr(state, _TICKET, self._request_gate.ticket())
            set_mark(request, mark._replace(waited=self._clock() - current.arrival, sent_at=time.time()))

    def update(self, state: Any, output: Any, at: float | None) -> None:
        """The engine core made tokens for a sequence."""
        sequence: OpenSequence | None = getattr(state, _MARK, None)
        if sequence is not None:
            now = self._clock()
            # Of a prompt that another engine processed, the state has what was cached there, for the client's usage.
            if (prefill := getattr(output, "prefill_stats", None)) is not None:
                sequence.cached = prefill.num_cached_tokens
            tokens = len(output.new_token_ids)
            if not sequence.tokens and (ticket := getattr(state, _TICKET, None)) is not None:
                self._first(ticket, sequence.request, output, now)
            self._ledger.received(sequence, tokens=tokens, at=now if at is None else at, now=now)

    def _first(self, ticket: AdmissionTicket, request: OpenRequest, output: Any, now: float) -> None:
        """The first that the core says of a sequence that it might refuse."""
        if is_refusal(output):
            self._request_gate.expired(ticket, waited=now - request.arrival)
        else:
            ticket.settle()

    def finished(self, state: Any, reason: Any) -> None:
        """A sequence came to its end."""
        sequence: OpenSequence | None = getattr(state, _MARK, None)
        if sequence is not None:
            failed = getattr(reason, "name", "") in {"ABORT", "ERROR"}
            prompt = state.prompt_len
            cached = state.num_cached_tokens if sequence.cached is None else sequence.cached
            # The last token of a prompt is always processed. A connector may say that it loads it, too.
            cached = max(0, min(cached, prompt - 1))
            self._ledger.done(sequence, prompt=prompt, cached=cached, now=self._clock(), failed=failed)
            if not failed:
                per_token = sequence.per_token()
                self._request_gate.answered(tokens=sequence.tokens, named=sequence.named, per_token=per_token)
            if (ticket := getattr(state, _TICKET, None)) is not None and ticket.expired:
                return
            self._request_gate.finished(prompt_tokens=prompt, cached_tokens=cached)

    def running(self, request: OpenRequest) -> bool:
        """True if the processor still has a sequence of this request: it was answered before its end."""
        marks = (getattr(state, _MARK, None) for state in self._states.values())
        return any(mark is not None and mark.request is request for mark in marks)

    def failed(self, request: OpenRequest | None) -> None:
        """A fault of ours: counted, and logged where someone debugs."""
        _log.debug(EngineLogEvent.REQUESTS_NOT_COUNTED, "counting one failed", exc_info=True)
        self._ledger.lost(request)


def _request_of(state: Any) -> OpenRequest | None:
    """The request of a processor's state; its output task has the context of the first request there ever was."""
    sequence: OpenSequence | None = getattr(state, _MARK, None)
    return None if sequence is None else sequence.request


def _wrap(processor: Any, feed: _Feed) -> None:
    """Wraps the methods of the class; wrapping it again replaces the feed."""
    add, update, finished = (original(getattr(processor, name)) for name in _SURFACE)

    @functools.wraps(add)
    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = add(self, request, *args, **kwargs)
        try:
            feed.add_request(self, request)
        except Exception:  # noqa: BLE001  see the module's docstring
            feed.failed(_current.get())
        return result

    @functools.wraps(update)
    def update_stats(self: Any, req_state: Any, engine_core_output: Any, engine_core_timestamp: Any, *rest: Any) -> Any:
        result = update(self, req_state, engine_core_output, engine_core_timestamp, *rest)
        try:
            feed.update(req_state, engine_core_output, engine_core_timestamp)
        except Exception:  # noqa: BLE001  see the module's docstring
            feed.failed(_request_of(req_state))
        return result

    @functools.wraps(finished)
    def update_finished(self: Any, req_state: Any, finish_reason: Any, *rest: Any) -> Any:
        result = finished(self, req_state, finish_reason, *rest)
        try:
            feed.finished(req_state, finish_reason)
        except Exception:  # noqa: BLE001  see the module's docstring
            feed.failed(_request_of(req_state))
        return result

    for name, wrapper in zip(_SURFACE, (add_request, update_stats, update_finished), strict=True):
        wrap(processor, name, wrapper)


class RequestMiddleware:
    """Opens and ends a request in the ledger for each HTTP exchange."""

    def __init__(
        self,
        app: App,
        *,
        ledger: RequestLedger,
        request_gate: RequestGate,
        clock: Callable[[], float],
        running: Callable[[OpenRequest], bool],
    ) -> None:
        self._app = app
        self._ledger = ledger
        self._request_gate = request_gate
        self._clock = clock
        self._running = running

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One HTTP exchange; anything that cannot generate passes through."""
        if scope["type"] != "http" or scope.get("method") != "POST":
            await self._app(scope, receive, send)
            return
        path = _route(scope)
        generates = path in GENERATING_PATHS
        named = self._ledger.classifier.name(scope.get("headers", ())) if generates else DEFAULT_CLASS
        request = self._ledger.opened(self._clock(), named or DEFAULT_CLASS)
        ticket = self._request_gate.opened(request.of_class, scope.get("headers", ())) if generates else None
        if ticket is not None and named is None:
            ticket.by_priority = functools.partial(self._ledger.by_priority, request)
        exchange = _Exchange(receive, send, ticket, path)
        token = _current.set(request)
        try:
            await exchange.run(self._app, scope)
        finally:
            _current.reset(token)
            if ticket is not None:
                self._request_gate.closed(ticket)
            try:
                self._end(request, exchange, path)
            except Exception:  # noqa: BLE001  see the module's docstring
                _log.debug(EngineLogEvent.REQUESTS_NOT_COUNTED, "counting one failed", exc_info=True)
                self._ledger.lost(request)

    def _end(self, request: OpenRequest, exchange: _Exchange, path: str) -> None:
        if not request.sequences and (path not in GENERATING_PATHS or exchange.status in _NOT_REFUSALS):
            self._ledger.forgotten(request)
            return
        how = exchange.end(request)
        if how is End.ANSWERED and request.sequences and not (request.complete() or self._running(request)):
            how = End.FAILED  # it broke off behind its first token: the status was sent long before
        self._ledger.ended(request, how, self._clock())


def _route(scope: MutableMapping[str, Any]) -> str:
    """The path of an exchange below the root path, as Starlette's routes see it: some proxies send it along."""
    path, root = str(scope.get("path", "")), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


#: Answers that say nothing about load or the request: not authenticated, no such model or route, wrong method.
_NOT_REFUSALS: Final = frozenset({401, 403, 404, 405})


#: Parts of an answer that are held back until its first token. Routes that say something before it say two or three.
_MOST_HELD: Final = 64


class _Exchange:
    """Watches one exchange's messages: whether the client left, and with which status it was answered.

    Holds the answer back while it may become a refusal.
    """

    __slots__ = (
        "_complete",
        "_held",
        "_left",
        "_path",
        "_receive",
        "_refused",
        "_send",
        "_ticket",
        "returned",
        "status",
    )

    def __init__(self, receive: Receive, send: Send, ticket: AdmissionTicket | None, path: str) -> None:
        self._ticket = ticket
        self._path = path
        self._receive = receive
        self._send = send
        self._held: list[Message] = []
        self._left = False
        self._complete = False
        self._refused = False
        self.status = 0
        self.returned = False

    async def run(self, app: App, scope: MutableMapping[str, Any]) -> None:
        """The exchange; what the application raises once its request was refused has nobody to hear it."""
        try:
            await app(scope, self.receive, self.send)
            self.returned = True
        except Exception:
            if self._ticket is None or not self._ticket.expired:
                raise
        if self._ticket is not None and self._ticket.expired:
            await self._refuse(self._ticket)
        await self._release()

    async def receive(self) -> Message:
        """A message from the client. A disconnect behind the whole answer is none: the server says so then too."""
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._complete:
            self._left = True
        return message

    async def send(self, message: Message) -> None:
        """A message to the client."""
        ticket = self._ticket
        if ticket is not None and ticket.expired:
            await self._refuse(ticket)
            return
        if ticket is not None and ticket.refusable and self._waits(message):
            self._held.append(message)
            return
        if self._held or (ticket is not None and ticket.refusable):
            await self._release()
        await self._forward(message)

    def end(self, request: OpenRequest) -> End:
        """How the exchange ended."""
        if self._left:
            return End.LEFT
        if self._refused or (self.status >= 400 and not request.sequences):
            return End.REFUSED
        return End.ANSWERED if self.returned and self.status < 400 else End.FAILED

    def _waits(self, message: Message) -> bool:
        """Whether a message waits for the first token: neither an error does, nor an answer that is complete."""
        if message["type"] == "http.response.start":
            return bool(message["status"] < 400)
        return bool(message.get("more_body", False)) and len(self._held) < _MOST_HELD

    async def _release(self) -> None:
        """Send what was held back; from here on the request is served, however late."""
        if self._ticket is not None:
            self._ticket.settle()
        held, self._held = self._held, []
        for message in held:
            await self._forward(message)

    async def _forward(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self._ticket is not None and self._ticket.retry_after is not None:
                message = _as_refusal(message, self._ticket.status, self._ticket.retry_after)
            self.status = message["status"]
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self._complete = True
        await self._send(message)

    async def _refuse(self, ticket: AdmissionTicket) -> None:
        """Answer with the refusal, once, in place of all that was held back and all that comes."""
        self._held = []
        if self._refused or self.status:
            return
        self._refused, self.status = True, ticket.status
        body = _refusal_body(self._path, ticket.status, ticket.retry_after or 0)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"retry-after", str(ticket.retry_after).encode()),
        ]
        await self._send({"type": "http.response.start", "status": ticket.status, "headers": headers})
        self._complete = True
        await self._send({"type": "http.response.body", "body": body})


def _refusal_body(path: str, status: int, retry_after: int) -> bytes:
    """What vLLM answers of this form where it refuses a request itself."""
    kind = HTTPStatus(status).phrase
    message = f"overloaded: the first token could not come before its deadline; retry after {retry_after} s"
    if path == MESSAGES_PATH:
        return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
    if path == COHERE_PATH:
        return json.dumps({"message": message}).encode()
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}}).encode()


def _as_refusal(start: Message, status: int, retry_after: int) -> Message:
    """The start of an answer to what the gate refused: vLLM's error answers have no headers of their own."""
    headers = [*start.get("headers", ()), (b"retry-after", str(retry_after).encode())]
    # In 0.26 a route takes every exception for a fault of the server.
    answered = status if start["status"] == HTTPStatus.INTERNAL_SERVER_ERROR else start["status"]
    return {**start, "status": int(answered), "headers": headers}
