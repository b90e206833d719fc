"""The PromQL of `flyball plan`, beside the tuner's own: figures that carry the label `field`, for one window. Pure.

Sums are kept apart by job, as several may scrape the same pods. vLLM's names are those of 0.26 to 0.33.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from flyball_engine.contract import Metric, MetricName
from flyball_operator.prometheus.queries import FIELD, JOB, NAMESPACE, POD, UID

#: vLLM's gauges. Only who waits for capacity is a queue.
VLLM_GAUGES: Final = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting_by_reason",
    "kv": "vllm:kv_cache_usage_perc",
}
_CAPACITY: Final = 'reason="capacity"'
_SUCCESS: Final = "vllm:request_success_total"
#: The plugin's.
PLUGIN_GAUGES: Final = {
    "running": MetricName.RUNNING.value,
    "waiting": MetricName.WAITING.value,
    "kv": MetricName.KV_CACHE_USAGE.value,
}
#: vLLM's histogram of each metric.
HISTOGRAMS: Final = {
    Metric.TIME_TO_FIRST_TOKEN: "vllm:time_to_first_token_seconds",
    Metric.TIME_PER_OUTPUT_TOKEN: "vllm:request_time_per_output_token_seconds",
    Metric.INTER_TOKEN_LATENCY: "vllm:inter_token_latency_seconds",
    Metric.END_TO_END_LATENCY: "vllm:e2e_request_latency_seconds",
}
_EDGE: Final = "le"
#: Looks at the number of pods in a window.
_LOOKS: Final = 10


@dataclass(frozen=True)
class Grouping:
    """Which series there are, by which labels they make up services, and by which label pods."""

    labels: tuple[str, ...]
    replica: str
    matchers: str

    def by(self, *more: str) -> str:
        """The labels of a sum."""
        return f"by ({', '.join((*self.labels, JOB, *more))})"

    def of(self, metric: str, extra: str = "") -> str:
        """Its series."""
        return f"{metric}{{{','.join(filter(None, (self.matchers, extra)))}}}"


def vllm(labels: tuple[str, ...], namespace: str | None) -> Grouping:
    """Engines without the plugin: pods of an InferenceService carry its UID."""
    return Grouping(labels, "instance", f'{UID}=""{_within(namespace)}')


def plugin(namespace: str | None) -> Grouping:
    """Engines of an InferenceService."""
    return Grouping((NAMESPACE, UID), POD, f'{POD}!="",{UID}!=""{_within(namespace)}')


def _within(namespace: str | None) -> str:
    # PromQL's strings have JSON's escapes.
    return "" if namespace is None else f",{NAMESPACE}={json.dumps(namespace, ensure_ascii=False)}"


def gauges(group: Grouping, names: Mapping[str, str], window: int) -> str:
    """Pods, queue and KV cache of a window."""
    return _together(_gauges(group, names, window, "" if names is PLUGIN_GAUGES else _CAPACITY))


def requests(group: Grouping, window: int, metrics: Iterable[Metric]) -> str:
    """The same of vLLM's own metrics, with requests that ended, how the queue grew, and buckets of these metrics."""
    running, waiting = group.of(VLLM_GAUGES["running"]), group.of(VLLM_GAUGES["waiting"])
    figures = _gauges(group, VLLM_GAUGES, window, _CAPACITY) | {
        "ended": f"sum {group.by()} (increase({group.of(_SUCCESS)}[{window}s]))",
        "grown": f"sum {group.by()} (delta({running}[{window}s])) + sum {group.by()} (delta({waiting}[{window}s]))",
    }
    figures |= {
        metric.value: f"sum {group.by(_EDGE)} (increase({group.of(f'{HISTOGRAMS[metric]}_bucket')}[{window}s]))"
        for metric in metrics
    }
    return _together(figures)


def now(group: Grouping, names: Mapping[str, str]) -> str:
    """The pods that there are."""
    return _together({"replicas": _pods(group, group.of(names["running"]))})


def with_plugin(group: Grouping) -> str:
    """The pods of plain vLLM that have the plugin: the job that scrapes vLLM's own port gives them no UID."""
    running, plugin = group.of(VLLM_GAUGES["running"]), f'{PLUGIN_GAUGES["running"]}{{{POD}!=""}}'
    return _together({"replicas": _pods(group, f"{running} and on ({NAMESPACE}, {POD}) {plugin}")})


def ceilings(group: Grouping, seconds: int) -> str:
    """What engines were started with, by the label `knob`."""
    ceiling = f"last_over_time({group.of(MetricName.CEILING)}[{seconds}s])"
    return f"min by ({', '.join((*group.labels, 'knob'))}) ({ceiling})"


def _gauges(group: Grouping, names: Mapping[str, str], window: int, waits: str) -> dict[str, str]:
    running, waiting, kv = group.of(names["running"]), group.of(names["waiting"], waits), group.of(names["kv"])
    looks = f"[{window}s:{max(1, window // _LOOKS)}s]"
    pods = f"({_pods(group, running)}){looks}"
    return {
        "replicas": f"avg_over_time({pods})",
        # The share of the looks at which there was a pod: without one there is no sample.
        "present": f"count_over_time({pods}) / scalar(count_over_time(vector(1){looks}))",
        "waiting": f"sum {group.by()} (avg_over_time({waiting}[{window}s]))",
        "running_peak": f"max {group.by()} (max_over_time({running}[{window}s]))",
        "kv": f"avg {group.by()} (avg_over_time({kv}[{window}s]))",
        "kv_peak": f"max {group.by()} (max_over_time({kv}[{window}s]))",
    }


def _pods(group: Grouping, running: str) -> str:
    return f"count {group.by()} (count {group.by(group.replica)} ({running}))"


def _together(figures: Mapping[str, str]) -> str:
    return " or ".join(
        f'label_replace({expression}, "{FIELD}", "{field}", "", "")' for field, expression in figures.items()
    )
