"""Asks the gate about each request, in vLLM's API server, where its tokens are known and no answer has begun.

All routes that generate turn prompts into token ids in one method of the renderer, in the task of the HTTP request and
before a streamed answer starts. Which HTTP requests are asked about is decided by route: counting and tokenising go
through the same method. What is let in stays reserved until the engine has it or the exchange ends.

Prompts that do not pass that method (the Harmony format, precomputed features) are let in; they count in the backlog.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any, Final

from flyball_engine.batching.gate import Arrival, Gate, Reservation, Verdict
from flyball_engine.vllm.prefixes import Prefixes
from flyball_engine.vllm.wrapping import original, wrap

_log = logging.getLogger(__name__)
_METHOD: Final = "process_for_engine_async"
_CHECK: Final = "_preflight"
_CHECK_MODEL: Final = "_check_model"


class Passage:
    """One HTTP request on its way through the gate. `sequences`: how many it wants of each prompt.

    `adapter`: the LoRA request of the model it names. It is decided on once: its first token is that of its first
    prompt. `retry_after`: seconds, when it was refused.
    """

    __slots__ = ("adapter", "decided", "reservations", "retry_after", "sequences")

    def __init__(self) -> None:
        self.sequences = 1
        self.adapter: Any = None
        self.decided = False
        self.reservations: list[Reservation] = []
        self.retry_after: int | None = None


_passage: ContextVar[Passage | None] = ContextVar("flyball_passage", default=None)


class GateKeeper:
    """Holds the gate at vLLM's hooks, in the server's event loop. A fault of ours lets the request in."""

    def __init__(self, gate: Gate, clock: Callable[[], float]) -> None:
        self._gate = gate
        self._clock = clock
        self._prefixes: Prefixes | None = None

    def look_up(self, prefixes: Prefixes | None) -> None:
        """Where to look from now on how much of a prompt is cached."""
        self._prefixes = prefixes

    def opened(self) -> Passage:
        """An HTTP request for tokens begins; to be closed by `closed`, in the same task."""
        passage = Passage()
        _passage.set(passage)
        return passage

    def closed(self, passage: Passage) -> None:
        """The exchange is over: what did not reach the engine will not."""
        _passage.set(None)
        for reservation in passage.reservations:
            self._gate.release(reservation)

    def ask(self, engine_input: Any) -> None:
        """Decide on a prompt whose tokens are known; raises what vLLM turns into a 503."""
        passage = _passage.get()
        if passage is None:
            return
        try:
            verdict = self._decide(passage, engine_input)
        except Exception:  # noqa: BLE001 – a fault of ours must not turn a request away
            _log.debug("Flyball: the gate failed", exc_info=True)
            return
        if verdict is not None and not verdict.admitted:
            passage.retry_after = verdict.retry_after
            raise refusal(verdict)

    def expect(self, sequences: int) -> None:
        """The request at hand wants so many sequences of each prompt."""
        passage = _passage.get()
        if passage is not None:
            passage.sequences = max(1, sequences)

    def name_adapter(self, adapter: Any) -> None:
        """The request at hand is for this LoRA adapter, None for the model itself."""
        passage = _passage.get()
        if passage is not None:
            passage.adapter = adapter

    def overflowed(self) -> None:
        """VLLM itself refuses the request at hand: counted, and told to come back like those that the gate refuses."""
        passage = _passage.get()
        if passage is not None and passage.retry_after is None:
            passage.retry_after = 1
            self._gate.queue_full()

    def sent(self, prompt_tokens: int, *, alone: bool) -> None:
        """A sequence goes to the engine; `alone` if it has no other."""
        if alone:
            self._gate.rebase()
        passage = _passage.get()
        if passage is not None and passage.reservations:
            reservation = passage.reservations.pop()
            self._gate.release(reservation)
            self._gate.sent(reservation.work)
        else:
            self._gate.sent(self._gate.weigh(Arrival(prompt_tokens)))

    def finished(self, *, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        """A sequence came to its end."""
        self._gate.finished(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, output_tokens=output_tokens)

    def _decide(self, passage: Passage, engine_input: Any) -> Verdict | None:
        now, verdict = self._clock(), None
        arrival = Arrival(_length(engine_input), self._cached(passage, engine_input, now))
        if not passage.decided:
            passage.decided = True
            verdict = self._gate.decide(arrival, now=now)
        if verdict is None or verdict.admitted:
            passage.reservations.append(self._gate.reserve(arrival, now=now))
            # vLLM caches blocks as it gives them out: what the first sequence computes, the others find.
            sibling = arrival if arrival.cached is None else Arrival(arrival.tokens, (arrival.tokens - 1,))
            more = range(passage.sequences - 1)
            passage.reservations[:0] = [self._gate.reserve(sibling, now=now) for _ in more]
        return verdict

    def _cached(self, passage: Passage, engine_input: Any, now: float) -> tuple[int, ...] | None:
        if self._prefixes is None or not self._gate.predicts(now):
            return None
        try:
            return self._prefixes.cached(engine_input, passage.adapter)
        except Exception:  # noqa: BLE001 – the gate can do without
            _log.debug("Flyball: a prompt could not be looked up", exc_info=True)
            return None


def install_gate(keeper: GateKeeper) -> str | None:
    """Ask `keeper` from now on; returns why that is impossible, or None. Installing again replaces the keeper."""
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
        keeper.ask(engine_input)
        return engine_input

    wrap(BaseRenderer, _METHOD, process_for_engine_async)
    _listen_for_n(keeper)
    _listen_for_adapters(keeper)
    return None


def _listen_for_n(keeper: GateKeeper) -> None:
    """Learn how many sequences a request wants, where vLLM checks that before it renders (since 0.29)."""
    try:
        from vllm.entrypoints.generate.base.serving import GenerateBaseServing  # noqa: PLC0415 – as above
    except ImportError:
        return
    if not hasattr(GenerateBaseServing, _CHECK):
        return
    check = original(getattr(GenerateBaseServing, _CHECK))

    @functools.wraps(check)
    def _preflight(self: Any, n: int = 1) -> Any:
        keeper.expect(n)
        return check(self, n)

    wrap(GenerateBaseServing, _CHECK, _preflight)


def _listen_for_adapters(keeper: GateKeeper) -> None:
    """Learn which adapter a request is for, where vLLM checks the name of its model before it renders."""
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
            keeper.name_adapter(getattr(self.models, "lora_requests", {}).get(request.model))
        return refused

    wrap(BaseServing, _CHECK_MODEL, _check_model)


def refusal(verdict: Verdict) -> Exception:
    """The exception that vLLM answers with a 503 and an error body of OpenAI's form."""
    message = (
        f"overloaded: the first token is expected after {verdict.predicted:.2f} s, the deadline is "
        f"{verdict.deadline:.2f} s; retry after {verdict.retry_after} s"
    )
    try:
        from vllm.exceptions import GracefulHTTPError  # noqa: PLC0415 – since 0.29
    except ImportError:
        from fastapi import HTTPException  # noqa: PLC0415 – what vLLM is served by

        error: Exception = HTTPException(status_code=503, detail=message)
    else:
        error = GracefulHTTPError(message, HTTPStatus.SERVICE_UNAVAILABLE)
    return error


def _length(engine_input: Any) -> int:
    """Prompt tokens of what the renderer made; raises KeyError or TypeError for what has none."""
    ids = engine_input.get("prompt_token_ids")
    return len(engine_input["prompt_embeds"] if ids is None else ids)
