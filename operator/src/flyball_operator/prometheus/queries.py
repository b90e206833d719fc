"""The PromQL the brain asks, a fixed set per tick for all services at once.

Everything is summed in Prometheus by namespace and service UID, both target labels: what a pod claims about itself
names no service, and a tick costs by the service, not by the pod. Each figure carries the label `field`, so that a
group of figures is one query and one evaluation time. Means are ratios of two `increase()` over one window, in which
Prometheus' extrapolation cancels.
"""

from __future__ import annotations

from typing import Final

from flyball_engine.contract import STEP_FIELDS, MetricName
from flyball_operator.api.names import CONTAINER_ENGINE, LABEL_SERVICE_UID, PORT_CONTROL

NAMESPACE: Final = "namespace"
#: The pod label as Prometheus spells it.
UID: Final = LABEL_SERVICE_UID.replace(".", "_").replace("/", "_").replace("-", "_")
FIELD: Final = "field"

_TARGETS: Final = f'container="{CONTAINER_ENGINE}",port="{PORT_CONTROL}",{UID}!=""'


def _selected(metric: str, extra: str = "") -> str:
    return f"{metric}{{{_TARGETS}{',' + extra if extra else ''}}}"


def _aggregate(function: str, expression: str, *labels: str) -> str:
    return f"{function} by ({', '.join((NAMESPACE, UID, *labels))}) ({expression})"


def _increase(metric: str, window: int, *labels: str, extra: str = "") -> str:
    return _aggregate("sum", f"increase({_selected(metric, extra)}[{window}s])", *labels)


def _named(field: str, expression: str) -> str:
    return f'label_replace({expression}, "{FIELD}", "{field}", "", "")'


def _together(figures: dict[str, str]) -> str:
    return " or ".join(_named(field, expression) for field, expression in figures.items())


def steps(window: int) -> str:
    """Sums over the steps of a window in seconds, by bucket and kind; `field` is that of `contract.StepSums`."""
    return _together({field: _increase(metric, window, "bucket", "kind") for field, metric in STEP_FIELDS.items()})


def load(window: int) -> str:
    """Queue, lengths and the state of the scrapes; `field` names the figure."""
    running, waiting = _selected(MetricName.RUNNING), _selected(MetricName.WAITING)
    return _together(
        {
            "cores": _aggregate("count", running),
            "running": _aggregate("sum", running),
            "waiting": _aggregate("sum", waiting),
            "grown": f"{_aggregate('sum', f'delta({running}[{window}s])')}"
            f" + {_aggregate('sum', f'delta({waiting}[{window}s])')}",
            "kv_usage": _aggregate("max", _selected(MetricName.KV_CACHE_USAGE)),
            "kv_tokens": _aggregate("min", _selected(MetricName.KV_CACHE_TOKENS)),
            "held_tokens": _aggregate("sum", _selected(MetricName.RUNNING_KV_TOKENS)),
            "ended": _increase(MetricName.REQUESTS, window, extra='outcome!="refused"'),
            "shed": _increase(MetricName.ADMISSIONS, window, extra='decision="refused"'),
            "finished": _increase(MetricName.REQUESTS, window, extra='outcome="finished"'),
            "prompt_tokens": _increase(MetricName.PROMPT_TOKENS, window),
            "cached_tokens": _increase(MetricName.CACHED_PROMPT_TOKENS, window),
            "generated_tokens": _increase(MetricName.GENERATED_TOKENS, window),
            "age": _aggregate("max", f"time() - timestamp({running})"),
            "pods": _aggregate("count", f"{_selected('up')} == 1"),
            "interval": _aggregate("max", _scrape_interval()),
        }
    )


def _scrape_interval() -> str:
    """Seconds between the scrapes of each target over two minutes, from 5 s on: NaN before the second scrape."""
    times = f"timestamp({_selected('up')})[2m:5s]"
    return f"(max_over_time({times}) - min_over_time({times})) / changes({times})"


def outcomes(window: int) -> str:
    """Requests by objective and outcome in a window; `field` tells single objectives from all together."""
    single = _increase(MetricName.OBJECTIVE_REQUESTS, window, "objective", "outcome")
    together = _increase(MetricName.ALL_OBJECTIVES_REQUESTS, window, "objectives", "outcome")
    return _together({"objective": single, "all": together})
