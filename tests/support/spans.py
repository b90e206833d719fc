"""OpenTelemetry spans that are kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """What was traced. `provider`: to trace with."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def ended(self) -> Sequence[ReadableSpan]:
        """Those that have ended, in that order."""
        return self._exporter.get_finished_spans()

    def only(self) -> dict[str, Any]:
        """The attributes of the only one."""
        (span,) = self.ended
        return dict(span.attributes or {})

    def below(self, name: str) -> list[str]:
        """Names of the spans whose parent is the first of this name."""
        parent = next(span for span in self.ended if span.name == name)
        return [span.name for span in self.ended if span.parent is not None and span.parent == parent.context]
