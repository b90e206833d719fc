"""What only an engine that pads can tell, on the control port's `/metrics`, made afresh at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from flyball_lab.padded.batch import Padding

#: Counter; phase (`prompt`, `output`), use (`useful`, `padding`): see `batch.ComputePhase` and `batch.Use`.
COMPUTED_TOKENS: Final = "flyball_computed_tokens_total"


class PaddingCollector(Collector):
    """Computed tokens by what they were for."""

    def __init__(self, padding: Padding) -> None:
        self._padding = padding

    def collect(self) -> Iterator[Metric]:
        """The one counter."""
        text = "Tokens computed, by phase, and whether they were padding"
        family = CounterMetricFamily(COMPUTED_TOKENS.removesuffix("_total"), text, labels=["phase", "use"])
        for (phase, use), tokens in self._padding.tokens.items():
            family.add_metric([phase.value, use.value], tokens)
        yield family
