"""What is traced of a request at the gate, and of a decision that moves limits."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace

from flyball_engine.batching.gate import Admitted
from flyball_engine.vllm import gate as keeping
from flyball_engine.vllm.gate import RequestGate
from flyball_lab.harness.service_tuners import START, Harness
from flyball_lab.harness.tuning import signals
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.tuning import tracing
from flyball_operator.tuning.service_tuner import ServiceTuner
from support.gates import BUSY, GatedCores
from support.spans import Spans

PARENT = (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
NOT_SAMPLED = (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")


class Turned(Exception):  # noqa: N818 – stands for vLLM's own
    """A request was turned away."""


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """Those of engine and operator."""
    spans = Spans()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans.provider)
    monkeypatch.setattr(tracing, "_tracer", spans.provider.get_tracer("flyball_operator"))
    return spans


@pytest.fixture
def request_gate(monkeypatch: pytest.MonkeyPatch) -> RequestGate:
    """A gate before a core that can refuse what it has, and has much to do."""

    def refusal(verdict: Admitted, retry_after: int) -> Exception:
        return Turned(f"retry after {retry_after}")

    monkeypatch.setattr(keeping, "refusal", refusal)
    cores = GatedCores()
    cores.loads = [BUSY]
    return RequestGate(cores.gate, lambda: 0.0, lambda: 0.5, marks=True)


def tokens(number: int) -> dict[str, Any]:
    return {"prompt_token_ids": [1] * number}


def test_a_request_that_is_refused_on_arrival_has_a_span_that_says_why(request_gate: RequestGate, spans: Spans) -> None:
    ticket = request_gate.opened(headers=[PARENT])
    with pytest.raises(Turned):
        request_gate.ask(tokens(10_000))
    request_gate.closed(ticket)
    found = spans.only()
    assert (found["flyball.gate.reason"], found["http.response.status_code"]) == ("late", 503)
    assert found["flyball.gate.predicted_seconds"] > found["flyball.gate.deadline_seconds"]
    assert found["flyball.gate.prompt_tokens"] == 10_000
    assert found["flyball.gate.retry_after_seconds"] == ticket.retry_after


def test_its_parent_is_the_callers_span(request_gate: RequestGate, spans: Spans) -> None:
    request_gate.closed(request_gate.opened(headers=[(b"host", b"chat"), PARENT]))
    (span,) = spans.ended
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"


def test_it_ends_where_a_request_is_let_in_for_good(request_gate: RequestGate, spans: Spans) -> None:
    ticket = request_gate.opened()
    request_gate.ask(tokens(10))
    assert not spans.ended, "the core may still refuse it"
    ticket.settle()
    assert spans.only()["flyball.gate.reason"] == "in_time"
    request_gate.closed(ticket)
    assert len(spans.ended) == 1


def test_a_request_that_the_core_refuses_has_its_reason(request_gate: RequestGate, spans: Spans) -> None:
    ticket = request_gate.opened()
    request_gate.ask(tokens(10))
    request_gate.expired(ticket, waited=3.5)
    found = spans.only()
    assert (found["flyball.gate.reason"], found["flyball.gate.retry_after_seconds"]) == ("expired", 6)
    request_gate.closed(ticket)


def test_a_request_whose_caller_is_not_sampled_has_no_span(request_gate: RequestGate, spans: Spans) -> None:
    ticket = request_gate.opened(headers=[NOT_SAMPLED])
    assert ticket.span is None
    request_gate.closed(ticket)
    assert not spans.ended


def test_where_nobody_traces_there_is_no_span(request_gate: RequestGate) -> None:
    ticket = request_gate.opened()
    assert ticket.span is None
    request_gate.closed(ticket)


class Broken:
    """A tracer and its spans, all of which fail."""

    def __getattr__(self, name: str) -> Any:
        if name in ("get_tracer", "is_recording"):
            return lambda *_: self
        if name.startswith("_"):
            raise AttributeError(name)
        raise RuntimeError("a bug of the tracer")

    def start_span(self, *_: Any, **__: Any) -> Any:
        return self


@pytest.mark.parametrize("provider", [Broken(), object()], ids=["spans that fail", "no tracer"])
def test_a_tracer_that_fails_changes_nothing_for_a_request(
    request_gate: RequestGate, monkeypatch: pytest.MonkeyPatch, provider: object
) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    ticket = request_gate.opened(headers=[PARENT])
    with pytest.raises(Turned):
        request_gate.ask(tokens(10_000))
    request_gate.closed(ticket)
    assert ticket.retry_after is not None


@in_virtual_time
async def test_a_decision_has_the_read_the_law_and_a_push_for_each_pod_below_it(spans: Spans) -> None:
    harness = Harness()
    dependencies = harness.dependencies()
    tuner = ServiceTuner(harness.service, dependencies)
    for _ in range(30):
        with dependencies.tracing.read():
            observation = signals(now(), waiting=0.0)
        await harness.tick(tuner, observation)
    below = spans.below("flyball.decision")
    assert below[:2] == ["flyball.read", "flyball.decide"]
    assert set(below[2:]) == {"flyball.push"}
    moved = next(span for span in spans.ended if span.name == "flyball.decision")
    assert moved.attributes is not None
    tokens = [moved.attributes[f"flyball.{when}.max_num_scheduled_tokens"] for when in ("before", "after")]
    assert tokens[0] != tokens[1]
    decisions = [span for span in spans.ended if span.name == "flyball.decision"]
    assert len(decisions) < 30, "what changes nothing has no span"


@in_virtual_time
async def test_a_tracer_that_fails_keeps_no_setpoint_from_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_tracer", object())
    harness = Harness()
    tuner = harness.tuner()
    for _ in range(30):
        await harness.tick(tuner, signals(now(), waiting=0.0))
    assert harness.condition(ConditionType.TUNED) == ("True", "Applied")
    assert harness.held().limits.max_num_scheduled_tokens != START.max_num_scheduled_tokens


@in_virtual_time
async def test_a_push_that_fails_is_an_error_in_the_trace(spans: Spans) -> None:
    harness = Harness()
    tuner = harness.tuner()
    harness.engines.loading.add("pod-1")
    for _ in range(30):
        await harness.tick(tuner, signals(now(), waiting=0.0))
    pushes = [span for span in spans.ended if span.name == "flyball.push"]
    assert {span.status.description for span in pushes} == {"connection refused"}
