"""OpenTelemetry spans of the gate, among those that vLLM exports: off where the process has no tracer provider.

vLLM's API server makes one with `--otlp-traces-endpoint`. A span begins with the HTTP request and ends with the gate's
last word: refused, or let in for good. Its parent is the caller's span (`traceparent`), as that of vLLM's `llm_request`
is.

No fault of a tracer reaches the request.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Final

from flyball_engine.batching.gate import AdmissionReason, Admitted, Arrival

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except Exception:  # noqa: BLE001 – whatever is wrong with it there, vLLM serves, and exports nothing either
    AVAILABLE = False
else:
    AVAILABLE = True
    _propagator = TraceContextTextMapPropagator()

SPAN: Final = "flyball.gate"
_PARENT: Final = frozenset({b"traceparent", b"tracestate"})


class GateSpan:
    """The span of one request on its way through the gate."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def decided(self, arrival: Arrival, verdict: Admitted) -> None:
        """The gate has decided on the prompt."""
        found = {
            "flyball.class": arrival.of_class,
            "flyball.gate.reason": verdict.reason.value,
            "flyball.gate.prompt_tokens": arrival.tokens,
            "flyball.gate.cached_tokens": max(arrival.cached, default=0) if arrival.cached is not None else None,
            "flyball.gate.predicted_seconds": verdict.predicted,
            "flyball.gate.deadline_seconds": verdict.deadline,
        }
        with suppress(Exception):
            self._span.set_attributes({name: value for name, value in found.items() if value is not None})

    def refused(self, status: int, retry_after: int, reason: AdmissionReason) -> None:
        """The request is answered with this HTTP status. `retry_after`: seconds."""
        found = {
            "flyball.gate.reason": reason.value,
            "flyball.gate.retry_after_seconds": retry_after,
            "http.response.status_code": status,
        }
        with suppress(Exception):
            self._span.set_attributes(found)
        self.end()

    def end(self) -> None:
        """The request is let in for good, or over."""
        with suppress(Exception):
            self._span.end()


@lru_cache(maxsize=1)
def _tracer_of(provider: trace.TracerProvider) -> trace.Tracer:
    """Made once: the SDK takes a lock, and changes the process' filters of warnings, each time that it is asked."""
    return provider.get_tracer("flyball_engine")


def begin(headers: Iterable[tuple[bytes, bytes]]) -> GateSpan | None:
    """The span of a request with these headers; None where nobody traces, or this request is not sampled."""
    with suppress(Exception):
        if AVAILABLE and not isinstance(provider := trace.get_tracer_provider(), trace.ProxyTracerProvider):
            carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name in _PARENT}
            span = _tracer_of(provider).start_span(SPAN, context=_propagator.extract(carrier))
            return GateSpan(span) if span.is_recording() else None
    return None
