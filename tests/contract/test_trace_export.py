"""Spans as a collector gets them: OTLP over HTTP, from a process of their own."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from flyball_lab.harness.ports import free_port

TRACED = """
import sys
from opentelemetry import trace
from flyball_operator.app.tracing import traced

with traced(sys.argv[1], "flyball-0"):
    with trace.get_tracer("test").start_as_current_span("flyball.decision"):
        trace.get_tracer("test").start_span("flyball.push").end()
"""


class Collector:
    """Takes spans. `asked`: the paths of its requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.got = ExportTraceServiceRequest()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.asked.append(self.path)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.got.MergeFrom(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()


def trace_to(endpoint: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TRACED, endpoint]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def test_a_collector_gets_the_spans_of_a_process_before_its_end() -> None:
    with collector() as there:
        ended = trace_to(f"{there.url}/")
    assert ended.returncode == 0, ended.stderr
    assert set(there.asked) == {"/v1/traces"}
    (process,) = there.got.resource_spans
    named = {one.key: one.value.string_value for one in process.resource.attributes}
    assert (named["service.name"], named["service.instance.id"]) == ("flyball-operator", "flyball-0")
    spans = {span.name: span for scope in process.scope_spans for span in scope.spans}
    assert spans["flyball.push"].parent_span_id == spans["flyball.decision"].span_id


def test_a_collector_that_is_away_keeps_no_process_from_its_end() -> None:
    ended = trace_to(f"http://127.0.0.1:{free_port()}")
    assert ended.returncode == 0, ended.stderr
