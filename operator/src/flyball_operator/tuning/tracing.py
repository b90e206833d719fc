"""OpenTelemetry spans of a decision that moves limits. They go nowhere unless a collector is set (`app/tracing.py`).

    flyball.decision   one service: from the read of Prometheus to the last answer of an engine
      flyball.read     Prometheus is asked, for all services at once
      flyball.decide   estimate, law and filters
      flyball.push     one pod: the setpoint, and its answer, which acknowledges it

A push without a decision, such as to a pod that came back, is a trace of its own. Pods that are not Ready yet, and
those that are given back, have no span.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from opentelemetry import trace

from flyball_engine.contract import Setpoint
from flyball_operator.engines.client import Acknowledged, Address, Answer
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.state import Decision

_tracer: Final = trace.get_tracer("flyball_operator")


class DecisionTracing:
    """Traces the decisions of all services."""

    def __init__(self) -> None:
        self._read: tuple[int, int] | None = None

    @contextmanager
    def read(self) -> Iterator[None]:
        """Prometheus is read for the decisions that come."""
        self._read, began = None, time.time_ns()
        yield
        self._read = (began, time.time_ns())

    @contextmanager
    def decision(
        self, labels: tuple[str, str], decision: Decision, began: int, *, of_read: bool = True
    ) -> Iterator[None]:
        """What follows from a decision is under way. One that changes nothing has no span.

        `labels`: namespace and name of the service. `began`: Unix nanoseconds when it began to be made. `of_read`:
        whether it was made of what was read last.
        """
        if not decision.changed:
            yield
            return
        decided, read = time.time_ns(), self._read if of_read else None
        namespace, service = labels
        attributes: dict[str, str | float] = {
            "k8s.namespace.name": namespace,
            "flyball.service": service,
            "flyball.trigger": decision.trigger,
            **_limits("before", decision.before),
            **_limits("after", decision.policy),
        }
        with _span("flyball.decision", attributes, start_time=began if read is None else read[0]):
            with suppress(Exception):
                if read is not None:
                    _tracer.start_span("flyball.read", start_time=read[0]).end(read[1])
                _tracer.start_span("flyball.decide", start_time=began).end(decided)
            yield


def _limits(when: str, policy: Policy) -> dict[str, float]:
    """Its limits and step budget (seconds), those that are set."""
    found = {
        "max_num_active_seqs": policy.limits.max_num_active_seqs,
        "max_num_scheduled_tokens": policy.limits.max_num_scheduled_tokens,
        "step_budget_seconds": policy.budget,
    }
    return {f"flyball.{when}.{name}": value for name, value in found.items() if value is not None}


async def push(address: Address, setpoint: Setpoint, answer: Awaitable[Answer]) -> Answer:
    """The answer of a pod to a setpoint."""
    attributes: dict[str, str | int] = {
        "k8s.namespace.name": address.tenant,
        "k8s.pod.uid": address.key,
        "flyball.epoch": setpoint.epoch,
        "flyball.generation": setpoint.generation,
    }
    with _span("flyball.push", attributes, kind=trace.SpanKind.CLIENT) as span:
        found = await answer
        if not isinstance(found, Acknowledged):
            with suppress(Exception):
                span.set_status(trace.StatusCode.ERROR, str(found))
        return found


@contextmanager
def _span(
    name: str,
    attributes: Mapping[str, str | float],
    *,
    kind: trace.SpanKind = trace.SpanKind.INTERNAL,
    start_time: int | None = None,
) -> Iterator[trace.Span]:
    """A span around what is under way, which no fault of a tracer stops."""
    span: trace.Span = trace.INVALID_SPAN
    with suppress(Exception):
        span = _tracer.start_span(name, kind=kind, attributes=attributes, start_time=start_time)
    try:
        with trace.use_span(span, record_exception=False):
            yield span
    finally:
        with suppress(Exception):
            span.end()
