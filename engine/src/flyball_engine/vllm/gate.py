"""Asks the gate about each request, in vLLM's API server, where its tokens are known and no answer has begun.

All routes that generate turn prompts into token ids in one method of the renderer, in the task of the HTTP request and
before a streamed answer starts. Which HTTP requests are asked about is decided by route: counting and tokenising go
through the same method.

What the gate let in with a deadline may still be refused by the engine core, if it becomes late before its first token:
such requests are marked for it, see `refusal`. All others are served, however late.

Prompts in the Harmony format are asked about elsewhere, see `harmony`. Others that do not pass that method (precomputed
features, the routes of `routes.UNASKED_PATHS`) are let in.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any, Final

from flyball_engine.batching.gate import (
    QUEUE_FULL_SECONDS,
    REFUSAL_STATUS,
    AdmissionReason,
    Admitted,
    Arrival,
    Gate,
    retry_after,
    spread,
)
from flyball_engine.contract import DEFAULT_CLASS
from flyball_engine.log_events import EngineLogEvent, EventLog
from flyball_engine.vllm import tracing
from flyball_engine.vllm.prefixes import Prefixes
from flyball_engine.vllm.refusal import Mark
from flyball_engine.vllm.wrapping import original, wrap

_log = EventLog(__name__)
_METHOD: Final = "process_for_engine_async"
_CHECK_MODEL: Final = "_check_model"


class AdmissionTicket:
    """One HTTP request on its way through the gate, of so many `prompts`.

    `of_class`: the class that it names. `by_priority`: tells the class by the priority in its body, None where the
    headers told it, or it was told. `named`: the most tokens that its answer may have, None if it does not say.

    `adapter`: the LoRA request of the model it names. It is decided on once: its first token is that of its first
    prompt. `retry_after`: seconds, when it was refused, with this HTTP `status`. `refusable`: it may still be refused
    by the core: it was let in with a deadline, it has no token, and the client has nothing of an answer. `expired`: the
    core did refuse it.
    """

    __slots__ = (
        "adapter",
        "by_priority",
        "expired",
        "named",
        "number",
        "of_class",
        "prompts",
        "refusable",
        "retry_after",
        "size",
        "span",
        "status",
    )

    def __init__(self, number: int, of_class: str, span: tracing.GateSpan | None = None) -> None:
        self.number = number
        self.of_class = of_class
        self.by_priority: Callable[[int], str] | None = None
        self.named: int | None = None
        self.prompts = 0
        self.adapter: Any = None
        self.retry_after: int | None = None
        self.status = REFUSAL_STATUS
        self.refusable = False
        self.expired = False
        # Sequences in all, 0 until the first of them goes to the engine.
        self.size = 0
        self.span = span

    def settle(self) -> None:
        """It is let in for good, or over."""
        self.refusable = False
        if self.span is not None:
            self.span.end()
            self.span = None

    def refuse(self, retry_after: int, status: int, reason: AdmissionReason) -> None:
        """It is answered with this status. `retry_after`: seconds."""
        self.refusable, self.retry_after, self.status = False, retry_after, status
        if self.span is not None:
            self.span.refused(status, retry_after, reason)
            self.span = None


_ticket: ContextVar[AdmissionTicket | None] = ContextVar("flyball_ticket", default=None)


class RequestGate:
    """Holds the gate at vLLM's hooks, in the server's event loop. A fault of ours lets the request in."""

    def __init__(
        self,
        gate: Gate,
        clock: Callable[[], float],
        chance: Callable[[], float],
        *,
        cores: Callable[[], int] = lambda: 1,
        marks: bool = False,
    ) -> None:
        """`chance`: random numbers, at least 0 and below 1. `cores`: how many engine cores there are.

        `marks`: whether the cores are told what they may refuse of what was let in, and of which class it is.
        """
        self.marks = marks
        self._cores = cores
        self._gate = gate
        self._clock = clock
        self._chance = chance
        self._numbers = itertools.count(1)
        self._prefixes: Callable[[], Prefixes | None] = lambda: None

    def look_up(self, prefixes: Callable[[], Prefixes | None]) -> None:
        """Where to look from now on how much of a prompt is cached: asked at each prompt, cores come and go."""
        self._prefixes = prefixes

    def opened(self, of_class: str = DEFAULT_CLASS, headers: Iterable[tuple[bytes, bytes]] = ()) -> AdmissionTicket:
        """An HTTP request for tokens begins; to be closed by `closed`, in the same task."""
        ticket = AdmissionTicket(next(self._numbers), of_class, tracing.begin(headers))
        _ticket.set(ticket)
        return ticket

    def closed(self, ticket: AdmissionTicket) -> None:
        """The exchange is over."""
        _ticket.set(None)
        ticket.settle()

    async def look(self, engine_input: Any) -> tuple[int, ...] | None:
        """Tokens of a prompt that each core holds; None if nobody needs to know, or that cannot be told."""
        ticket, prefixes = _ticket.get(), self._prefixes()
        if ticket is None or prefixes is None or not self._gate.predicts(self._clock()):
            return None
        try:
            return await prefixes.cached(engine_input, ticket.adapter)
        except Exception:  # noqa: BLE001 – the gate can do without
            _log.debug(EngineLogEvent.PROMPT_NOT_LOOKED_UP, "it is taken for cold", exc_info=True)
            return None

    def ask(self, engine_input: Any, cached: tuple[int, ...] | None = None) -> None:
        """Decide on a prompt whose tokens are known; raises what vLLM turns into a 503.

        `cached`: tokens of it that each core holds, None if nobody knows.
        """
        ticket = _ticket.get()
        if ticket is None:
            return
        try:
            verdict = self._decide(ticket, Arrival(_length(engine_input), cached, ticket.of_class, ticket.named))
        except Exception:  # noqa: BLE001 – a fault of ours must not turn a request away
            _log.debug(EngineLogEvent.GATE_FAILED, "the request is let in", exc_info=True)
            return
        if verdict is None:
            return
        if not verdict.admitted:
            seconds = verdict.retry_after(self._chance())
            ticket.refuse(seconds, verdict.status, verdict.reason)
            raise refusal(verdict, seconds)
        if not ticket.refusable:
            ticket.settle()

    def name_adapter(self, adapter: Any) -> None:
        """The request at hand is for this LoRA adapter, None for the model itself."""
        ticket = _ticket.get()
        if ticket is not None:
            ticket.adapter = adapter

    def name_priority(self, priority: int | None) -> None:
        """The request at hand has this priority; it says the class where no header did."""
        ticket = _ticket.get()
        if ticket is not None and ticket.by_priority is not None:
            ticket.of_class, ticket.by_priority = ticket.by_priority(priority or 0), None

    def name_length(self, tokens: int | None) -> None:
        """The request at hand wants so many tokens of an answer at most, None if it does not say."""
        ticket = _ticket.get()
        if ticket is not None:
            ticket.named = tokens

    def overflowed(self) -> None:
        """VLLM itself refuses the request at hand: counted, and told to come back like those that the gate refuses."""
        ticket = _ticket.get()
        if ticket is not None and ticket.retry_after is None:
            seconds = spread(QUEUE_FULL_SECONDS, self._chance())
            ticket.refuse(seconds, ticket.status, AdmissionReason.QUEUE_FULL)
            self._gate.queue_full()

    def mark(self, *, siblings: int = 1) -> Mark | None:
        """What the core must know of a sequence that goes to it, if it may refuse it; None if it may not.

        `siblings`: sequences of its prompt.
        """
        ticket = _ticket.get()
        if ticket is None or not ticket.refusable:
            return None
        if not ticket.size:
            ticket.size = ticket.prompts * siblings
        if ticket.size > 1 and self._cores() > 1:
            # Its sequences go to several cores, and none knows whether another has begun with it.
            ticket.settle()
            return None
        return Mark(ticket.number, ticket.size)

    @staticmethod
    def ticket() -> AdmissionTicket | None:
        """The ticket of the request at hand."""
        return _ticket.get()

    @staticmethod
    def named() -> int | None:
        """The most tokens that the request at hand wants of an answer, None if it does not say."""
        ticket = _ticket.get()
        return None if ticket is None else ticket.named

    def expired(self, ticket: AdmissionTicket, *, waited: float) -> None:
        """The core refused a request that had waited so many seconds. Told of each of its sequences, counted once."""
        if ticket.expired or not ticket.refusable:
            return
        ticket.expired = True
        # Those ahead of it took longer than it waited, so it is not too long to wait as long again.
        seconds = retry_after(waited, self._chance())
        ticket.refuse(seconds, self._gate.expired(), AdmissionReason.EXPIRED)

    def finished(self, *, prompt_tokens: int, cached_tokens: int) -> None:
        """A sequence came to its end."""
        self._gate.finished(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)

    def answered(self, *, tokens: int, named: int | None, per_token: float | None) -> None:
        """A sequence came to its end by itself; see `Answers.ended`."""
        self._gate.answers.ended(tokens=tokens, named=named, per_token=per_token)

    def _decide(self, ticket: AdmissionTicket, arrival: Arrival) -> Admitted | None:
        """What the gate says of the first prompt; None of all others."""
        ticket.prompts += 1
        if ticket.prompts > 1:
            return None
        verdict = self._gate.decide(arrival, now=self._clock())
        ticket.refusable = self.marks and verdict.refusable
        if ticket.span is not None:
            ticket.span.decided(arrival, verdict)
        return verdict


def install_gate(request_gate: RequestGate) -> str | None:
    """Ask this gate from now on; returns why that is impossible, or None. Installing again replaces it."""
    try:
        from vllm.renderers.base import BaseRenderer  # noqa: PLC0415 – only an API server has it
    except ImportError as error:
        return str(error)
    if not hasattr(BaseRenderer, _METHOD):
        return f"BaseRenderer has no {_METHOD}"
    process = original(getattr(BaseRenderer, _METHOD))

    @functools.wraps(process)
    async def process_for_engine_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        engine_input = await process(self, *args, **kwargs)
        request_gate.ask(engine_input, await request_gate.look(engine_input))
        return engine_input

    wrap(BaseRenderer, _METHOD, process_for_engine_async)
    _listen_for_requests(request_gate)
    return None


def _listen_for_requests(request_gate: RequestGate) -> None:
    """Learn a request's adapter and priority, where vLLM checks the name of its model before it renders."""
    try:
        from vllm.entrypoints.serve.engine.serving import BaseServing  # noqa: PLC0415 – as above
    except ImportError:
        return
    if not hasattr(BaseServing, _CHECK_MODEL):
        return
    check = original(getattr(BaseServing, _CHECK_MODEL))

    @functools.wraps(check)
    async def _check_model(self: Any, request: Any) -> Any:
        refused = await check(self, request)
        if refused is None:
            request_gate.name_adapter(getattr(self.models, "lora_requests", {}).get(request.model))
            request_gate.name_priority(getattr(request, "priority", None))
            request_gate.name_length(_most_tokens(request))
        return refused

    wrap(BaseServing, _CHECK_MODEL, _check_model)


def _most_tokens(request: Any) -> int | None:
    """The most tokens that a request wants of an answer, by the name that its route has for it."""
    asked = (request, getattr(request, "sampling_params", None))
    names = ("max_completion_tokens", "max_output_tokens", "max_tokens")
    return next((found for one in asked for name in names if (found := getattr(one, name, None)) is not None), None)


def refusal(verdict: Admitted, seconds: int) -> Exception:
    """The exception that vLLM answers with the verdict's status and an error body of OpenAI's form.

    `seconds`: until it may be tried again.
    """
    message = (
        f"overloaded: the first token is expected after {verdict.predicted:.2f} s at best, later than the "
        f"{verdict.deadline:.2f} s that its objective leaves; retry after {seconds} s"
    )
    try:
        from vllm.exceptions import GracefulHTTPError  # noqa: PLC0415 – since 0.29
    except ImportError:
        from fastapi import HTTPException  # noqa: PLC0415 – what vLLM is served by

        error: Exception = HTTPException(status_code=verdict.status, detail=message)
    else:
        error = GracefulHTTPError(message, HTTPStatus(verdict.status))
    return error


def _length(engine_input: Any) -> int:
    """Prompt tokens of what the renderer made; raises KeyError or TypeError for what has none."""
    ids = engine_input.get("prompt_token_ids")
    return len(engine_input["prompt_embeds"] if ids is None else ids)
