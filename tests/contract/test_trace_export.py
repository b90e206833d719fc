"""Spans as a collector gets them: OTLP over HTTP, from a process of their own."""

from __future__ import annotations

import subprocess
import sys

from flyball_lab.harness.ports import free_port
from support.collector import collector

TRACED = """
import sys
from opentelemetry import trace
from flyball_operator.app.tracing import traced

with traced(sys.argv[1], "flyball-0"):
    with trace.get_tracer("test").start_as_current_span("flyball.decision"):
        trace.get_tracer("test").start_span("flyball.push").end()
"""


def trace_to(endpoint: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TRACED, endpoint]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def test_a_collector_gets_the_spans_of_a_process_before_its_end() -> None:
    with collector() as there:
        ended = trace_to(f"{there.url}/")
    assert ended.returncode == 0, ended.stderr
    assert set(there.asked) == {"/v1/traces"}
    (request,) = there.got
    (process,) = request.resource_spans
    named = {one.key: one.value.string_value for one in process.resource.attributes}
    assert (named["service.name"], named["service.instance.id"]) == ("flyball-operator", "flyball-0")
    spans = there.spans()
    assert spans["flyball.push"].parent_span_id == spans["flyball.decision"].span_id


def test_a_collector_that_is_away_keeps_no_process_from_its_end() -> None:
    ended = trace_to(f"http://127.0.0.1:{free_port()}")
    assert ended.returncode == 0, ended.stderr
