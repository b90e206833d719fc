"""A collector of OpenTelemetry spans: OTLP over HTTP, on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Takes spans. `asked`: the paths of its requests. `got`: what each brought."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.got: list[ExportTraceServiceRequest] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.asked.append(self.path)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.got.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def spans(self, trace: str = "") -> dict[str, Span]:
        """The last span of each name; `trace`: those of this trace alone."""
        processes = (process for request in list(self.got) for process in request.resource_spans)
        spans = (span for process in processes for scope in process.scope_spans for span in scope.spans)
        return {span.name: span for span in spans if span.trace_id.hex().startswith(trace)}


@contextmanager
def collector() -> Iterator[Collector]:
    """One that listens on loopback meanwhile."""
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()
