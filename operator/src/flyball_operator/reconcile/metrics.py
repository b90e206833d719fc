"""What the operator counts of its own work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from flyball_operator import __version__
from flyball_operator.reconcile.plan.intents import Intent

Outcome = Literal["ok", "error", "fenced", "bug"]
#: Of a look at a service.
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)


class Metrics:
    """What is counted. `registry` is shared with whatever else of this process has something to count."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._reconciles = Counter(
            "flyball_operator_reconciles",
            "Looks at a service: ok, error (tried again), fenced (no longer leading) or bug.",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in OUTCOMES:
            # A series that begins with 1 has not increased: the first bug would raise no alert.
            self._reconciles.labels(outcome)
        self._writes = Counter(
            "flyball_operator_writes", "Writes of owned objects.", ["intent", "kind"], registry=self.registry
        )
        self._missed = Counter(
            "flyball_operator_watch_missed",
            "Objects that only a list found or missed.",
            ["kind"],
            registry=self.registry,
        )
        info = Gauge("flyball_operator_info", "Always 1.", ["version"], registry=self.registry)
        info.labels(__version__).set(1)

    def reconciled(self, outcome: Outcome) -> None:
        """Count a look at a service."""
        self._reconciles.labels(outcome).inc()

    def wrote(self, intent: Intent) -> None:
        """Count a write of an owned object."""
        self._writes.labels(type(intent).__name__, intent.kind.value).inc()

    def missed(self, kind: str, count: int) -> None:
        """Count what watching alone would have missed."""
        self._missed.labels(kind).inc(count)

    def watch(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """Export a figure that is read when scraped."""
        Gauge(name, help_text, registry=self.registry).set_function(value)

    def watch_each(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str],
        values: Callable[[], Mapping[tuple[str, ...], float]],
    ) -> None:
        """Export a figure for each set of values of these labels, both read when scraped."""
        self.registry.register(_Each(GaugeMetricFamily(name, help_text), labels, values))


class _Each(Collector):
    def __init__(
        self,
        described: GaugeMetricFamily,
        labels: Sequence[str],
        values: Callable[[], Mapping[tuple[str, ...], float]],
    ) -> None:
        self._described = described
        self._labels = labels
        self._values = values

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Its name alone: nothing is read when it is registered."""
        yield self._described

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The figures as they are now."""
        made = GaugeMetricFamily(self._described.name, self._described.documentation, labels=self._labels)
        for of_labels, figure in self._values().items():
            made.add_metric(of_labels, figure)
        yield made
