"""A few of vLLM's own metrics, by vLLM's names, made afresh from an engine's state at each scrape.

The operator reads none of them; dashboards and load generators do. Tokens and hits are those of finished requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flyball_engine.control.metrics import RequestCounts

_LABELS: Final = ["model_name", "engine"]


@dataclass(frozen=True, kw_only=True)
class EngineLoad:
    """What an engine does now. `kv_cache_usage` is a fraction; `preemptions` count since the start."""

    running: int
    waiting: int
    kv_cache_usage: float
    preemptions: int = 0


class Loaded(Protocol):
    """Something that can tell its load."""

    def load(self) -> EngineLoad:
        """Now."""

    def counts(self) -> RequestCounts:
        """What requests came to, since the start."""


class LoadCollector(Collector):
    """What vLLM says of load, cache and tokens."""

    def __init__(self, engine: Loaded, model: str) -> None:
        self._engine = engine
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        load, counts = self._engine.load(), self._engine.counts()
        yield self._gauge("vllm:num_requests_running", "Running requests", load.running)
        yield self._gauge("vllm:num_requests_waiting", "Waiting requests", load.waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Fraction of the KV cache in use", load.kv_cache_usage)
        yield self._counter("vllm:num_preemptions", "Preemptions", load.preemptions)
        yield self._counter("vllm:prompt_tokens", "Prompt tokens", counts.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Output tokens", counts.generated_tokens)
        yield self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up", counts.prompt_tokens)
        yield self._counter("vllm:prefix_cache_hits", "Prompt tokens found", counts.cached_prompt_tokens)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=_LABELS)
        family.add_metric([self._model, "0"], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=_LABELS)
        family.add_metric([self._model, "0"], value)
        return family
