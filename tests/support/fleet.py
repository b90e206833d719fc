"""A fleet's past in a real Prometheus: engines in virtual time, whose expositions are written down as if scraped.

Plain vLLM fills the exposition that vLLM itself wrote (`vllm_metrics.txt`), the plugin's is its own collector's.
"""

from __future__ import annotations

import re
import subprocess
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from prometheus_client import CollectorRegistry

from flyball_engine.contract import Limits, Metric
from flyball_engine.control.metrics import EngineCollector
from flyball_engine.control.service import ControlService
from flyball_lab.harness.engines import PlantEngine, objective
from flyball_lab.harness.plant import CPU, EnginePlant, PlantPhase, PlantRequest, arrivals, measured
from flyball_operator.prometheus.queries import NAMESPACE, POD, UID
from support.binaries import binary

_RECORDED = Path(__file__).with_name("vllm_metrics.txt")
#: Seconds between two scrapes.
SCRAPE = 5
Sample = tuple[str, Mapping[str, str], float]
_FAMILIES = {
    Metric.TIME_TO_FIRST_TOKEN: "vllm:time_to_first_token_seconds",
    Metric.TIME_PER_OUTPUT_TOKEN: "vllm:request_time_per_output_token_seconds",
    Metric.END_TO_END_LATENCY: "vllm:e2e_request_latency_seconds",
}
_GAPS = "vllm:inter_token_latency_seconds"


def _recorded() -> list[Sample]:
    lines = (re.fullmatch(r"([\w:]+)\{(.*)\} \S+", line) for line in _RECORDED.read_text().splitlines())
    return [(line[1], dict(re.findall(r'(\w+)="([^"]*)"', line[2])), 0.0) for line in lines if line is not None]


class VllmPlant(EnginePlant):
    """An engine that counts as vLLM's own metrics do."""

    def __init__(self, *, limits: Limits, kv_tokens: int, seed: int) -> None:
        super().__init__(CPU, (), limits=limits, kv_tokens=kv_tokens, seed=seed)
        self._samples = _recorded()
        names = {*_FAMILIES.values(), _GAPS}
        self._edges = {
            name: [float(labels["le"]) for found, labels, _ in self._samples if found == f"{name}_bucket"]
            for name in names
        }
        self._seen = {name: [0] * len(edges) for name, edges in self._edges.items()}

    def _count_gap(self, gap: float) -> None:
        self._observe(_GAPS, gap)

    def _count_request(self, request: PlantRequest) -> None:
        super()._count_request(request)
        for metric, name in _FAMILIES.items():
            if (value := measured(metric, request)) is not None:
                self._observe(name, value)

    def _observe(self, name: str, value: float) -> None:
        self._seen[name][bisect_left(self._edges[name], value)] += 1

    def exposition(self) -> Iterator[Sample]:
        """What vLLM would answer a scrape with now."""
        held = sum(request.computed + request.made for request in self.running)
        values = {
            "vllm:num_requests_running": len(self.running),
            "vllm:kv_cache_usage_perc": min(1.0, held / self.kv_tokens),
            "vllm:prompt_tokens_total": self.counts.prompt,
            "vllm:generation_tokens_total": self.counts.generated,
        }
        for name, labels, _ in self._samples:
            family = name.removesuffix("_bucket")
            if family in self._edges and family != name:
                upto = self._edges[family].index(float(labels["le"])) + 1
                yield name, labels, sum(self._seen[family][:upto])
            elif name == "vllm:request_success_total":
                yield name, labels, self.counts.finished if labels["finished_reason"] == "stop" else 0
            elif name.startswith("vllm:num_requests_waiting"):
                yield name, labels, 0 if labels.get("reason") == "deferred" else len(self.waiting)
            else:
                yield name, labels, values.get(name, 0)


@dataclass
class Plain:
    """Pods of plain vLLM, among which requests are spread evenly."""

    load: Sequence[PlantPhase | Sequence[PlantPhase]]
    pods: int
    namespace: str = "team"
    name: str = "vllm"
    seqs: int = 128
    kv_tokens: int = 100_000

    def scraped(self, seconds: int) -> Iterator[tuple[int, str, Mapping[str, str], float]]:
        """Samples by time: second, name, labels and value."""
        limits = Limits(max_num_active_seqs=self.seqs, max_num_scheduled_tokens=2048)
        plants = [VllmPlant(limits=limits, kv_tokens=self.kv_tokens, seed=1 + pod) for pod in range(self.pods)]
        queues = _spread(self.load, self.pods)
        for second in range(SCRAPE, seconds + 1, SCRAPE):
            for number, (plant, queue) in enumerate(zip(plants, queues, strict=True)):
                plant.run(second, queue)
                target = {
                    "job": "vllm",
                    "instance": f"{self.namespace}-{self.name}-{number}:8000",
                    NAMESPACE: self.namespace,
                }
                for name, labels, value in plant.exposition():
                    yield second, name, {**labels, **target, POD: f"{self.name}-{number}"}, value


@dataclass
class Governed:
    """Pods of an InferenceService, likewise."""

    load: Sequence[PlantPhase | Sequence[PlantPhase]]
    pods: int
    objectives: Mapping[Metric, float] = field(default_factory=dict)
    namespace: str = "team"
    uid: str = "uid-1"

    def scraped(self, seconds: int) -> Iterator[tuple[int, str, Mapping[str, str], float]]:
        """As above."""
        engines = [PlantEngine(seed=1 + pod) for pod in range(self.pods)]
        registries = [_registry(engine) for engine in engines]
        queues = _spread(self.load, self.pods)
        for engine in engines:
            engine.set_objectives(tuple(objective(metric, threshold) for metric, threshold in self.objectives.items()))
        for second in range(SCRAPE, seconds + 1, SCRAPE):
            for number, (engine, queue) in enumerate(zip(engines, queues, strict=True)):
                engine.plant.run(second, queue)
                target = {
                    "job": "flyball",
                    "instance": f"10.1.0.{number}:8001",
                    NAMESPACE: self.namespace,
                    UID: self.uid,
                }
                for family in registries[number].collect():
                    for sample in family.samples:
                        yield second, sample.name, {**sample.labels, **target, POD: f"chat-{number}"}, sample.value


def _registry(engine: PlantEngine) -> CollectorRegistry:
    registry, service = CollectorRegistry(), SimpleNamespace(engine=engine, outcomes=Counter())
    registry.register(EngineCollector(cast("ControlService", service), engine.counts, engine.gate))
    return registry


def _spread(load: Sequence[PlantPhase | Sequence[PlantPhase]], pods: int) -> list[deque[PlantRequest]]:
    found = arrivals(load)
    return [deque(list(found)[pod::pods]) for pod in range(pods)]


def filled(folder: Path, fleet: Sequence[Plain | Governed], *, seconds: int) -> float:
    """Give the Prometheus that will run in this folder what it would have scraped until now; returns when that was."""
    text = folder / "scraped.om"
    samples = [list(service.scraped(seconds)) for service in fleet]
    # To simulate them takes its time.
    end = time.time()
    with text.open("w") as file:
        for found in samples:
            for second, name, labels, value in found:
                shown = ",".join(f'{label}="{given}"' for label, given in labels.items())
                file.write(f"{name}{{{shown}}} {value} {end - seconds + second:.3f}\n")
        file.write("# EOF\n")
    command = [binary("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return end
