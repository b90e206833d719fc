"""Sends OpenTelemetry spans to a collector, by OTLP over HTTP. `tuning/tracing.py` has what is traced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace

from flyball_operator import __version__

#: Seconds for one request to the collector. At the end of the process all spans that wait have as long.
_TIMEOUT: Final = 3


@contextmanager
def traced(endpoint: str | None, instance: str) -> Iterator[None]:
    """Send spans meanwhile. `endpoint`: URL of the collector, None for nobody. `instance`: the name of this process."""
    if endpoint is None:
        yield
        return
    # Here: it takes memory, and most trace nothing.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    process = {"service.name": "flyball-operator", "service.version": __version__, "service.instance.id": instance}
    provider = TracerProvider(resource=Resource.create(process), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=_TIMEOUT)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        # By itself it waits for a collector that is silent until the pod is killed.
        ending = threading.Thread(target=provider.shutdown, daemon=True)
        ending.start()
        ending.join(_TIMEOUT)
