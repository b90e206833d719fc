"""A few of vLLM's own metrics, by vLLM's names, made afresh from the engine's state at each scrape.

The operator reads none of them; dashboards and load generators do. Tokens and hits are those of finished requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flyball_engine.simulator.serving import SimulatedEngine

_LABELS: Final = ["model_name", "engine"]


class VllmCollector(Collector):
    """What vLLM says of load, cache and tokens."""

    def __init__(self, engine: SimulatedEngine, model: str) -> None:
        self._engine = engine
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        scheduler, counts = self._engine.core.scheduler, self._engine.counts()
        usage = scheduler.used_blocks() / scheduler.capacity
        yield self._gauge("vllm:num_requests_running", "Running requests", len(scheduler.running))
        yield self._gauge("vllm:num_requests_waiting", "Waiting requests", len(scheduler.waiting))
        yield self._gauge("vllm:kv_cache_usage_perc", "Fraction of the KV cache in use", usage)
        yield self._counter("vllm:num_preemptions", "Preemptions", scheduler.preemptions)
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
