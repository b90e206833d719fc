"""The PromQL the brain asks, a fixed set per tick for all services at once.

Everything is summed in Prometheus by namespace and service UID, both target labels: what a pod claims about itself
names no service, and a tick costs by the service, not by the pod. Each figure carries the label `field`, so that a
group of figures is one query and one evaluation time. Means are ratios of two `increase()` over one window, in which
Prometheus' extrapolation cancels.
"""

from __future__ import annotations

import json
from typing import Final

from flyball_engine.contract import STEP_FIELDS, MetricName
from flyball_operator.api.names import CONTAINER_ENGINE, LABEL_SERVICE_UID, PORT_CONTROL

NAMESPACE: Final = "namespace"
#: The pod label as Prometheus spells it.
UID: Final = LABEL_SERVICE_UID.replace(".", "_").replace("/", "_").replace("-", "_")
FIELD: Final = "field"
#: The field of the number of cells.
CELLS: Final = "cells"

#: What is asked of steps. Of the KV tokens that decodes read nothing is learnt: they go with the number of decodes.
_STEPS: Final = {field: metric for field, metric in STEP_FIELDS.items() if field != "kv_tokens"}
_TARGETS: Final = f'container="{CONTAINER_ENGINE}",port="{PORT_CONTROL}",{UID}!=""'


def targets(only: tuple[str, str] | None = None) -> str:
    """The matchers of control ports: of all services, or of one by namespace and UID."""
    if only is None:
        return _TARGETS
    # PromQL's strings have JSON's escapes.
    namespace, uid = (json.dumps(value, ensure_ascii=False) for value in only)
    return f"{_TARGETS},{NAMESPACE}={namespace},{UID}={uid}"


def _selected(metric: str, targets: str, extra: str = "") -> str:
    return f"{metric}{{{targets}{',' + extra if extra else ''}}}"


def _aggregate(function: str, expression: str, *labels: str) -> str:
    return f"{function} by ({', '.join((NAMESPACE, UID, *labels))}) ({expression})"


def _increase(metric: str, window: int, targets: str, *labels: str, extra: str = "") -> str:
    return _aggregate("sum", f"increase({_selected(metric, targets, extra)}[{window}s])", *labels)


def _named(field: str, expression: str) -> str:
    return f'label_replace({expression}, "{FIELD}", "{field}", "", "")'


def _together(figures: dict[str, str]) -> str:
    return " or ".join(_named(field, expression) for field, expression in figures.items())


def steps(window: int, targets: str = _TARGETS) -> str:
    """Sums over the steps of a window in seconds, by bucket and kind; `field` is that of `contract.StepSums`.

    Only what is above zero: of an engine's 42 cells most are idle, and each has seven sums. `cells` counts all of them,
    which tells an idle service from one that is not seen.
    """
    sums = {field: _increase(metric, window, targets, "bucket", "kind") for field, metric in _STEPS.items()}
    moved = {field: f"{increase} > 0" for field, increase in sums.items()}
    return _together({CELLS: _aggregate("count", sums["steps"]), **moved})


def load(window: int, targets: str = _TARGETS) -> str:
    """Queue, lengths and the state of the scrapes; `field` names the figure."""
    running, waiting, up = (_selected(name, targets) for name in (MetricName.RUNNING, MetricName.WAITING, "up"))
    return _together(
        {
            "cores": _aggregate("count", running),
            "running": _aggregate("sum", running),
            "waiting": _aggregate("sum", waiting),
            "grown": f"{_aggregate('sum', f'delta({running}[{window}s])')}"
            f" + {_aggregate('sum', f'delta({waiting}[{window}s])')}",
            "kv_usage": _aggregate("max", _selected(MetricName.KV_CACHE_USAGE, targets)),
            "kv_tokens": _aggregate("min", _selected(MetricName.KV_CACHE_TOKENS, targets)),
            "held_tokens": _aggregate("sum", _selected(MetricName.RUNNING_KV_TOKENS, targets)),
            "ended": _increase(MetricName.REQUESTS, window, targets, extra='outcome!="refused"'),
            "shed": _increase(MetricName.ADMISSIONS, window, targets, extra='decision="refused"'),
            "finished": _increase(MetricName.REQUESTS, window, targets, extra='outcome="finished"'),
            "prompt_tokens": _increase(MetricName.PROMPT_TOKENS, window, targets),
            "cached_tokens": _increase(MetricName.CACHED_PROMPT_TOKENS, window, targets),
            "generated_tokens": _increase(MetricName.GENERATED_TOKENS, window, targets),
            "age": _aggregate("max", f"time() - timestamp({running})"),
            "pods": _aggregate("count", f"{up} == 1"),
            "interval": _aggregate("max", _scrape_interval(up)),
        }
    )


def _scrape_interval(up: str) -> str:
    """Seconds between the scrapes of each target over two minutes, from 5 s on: NaN before the second scrape."""
    times = f"timestamp({up})[2m:5s]"
    return f"(max_over_time({times}) - min_over_time({times})) / changes({times})"


def outcomes(window: int, targets: str = _TARGETS) -> str:
    """Requests by objective and outcome in a window; `field` tells single objectives from all together."""
    single = _increase(MetricName.OBJECTIVE_REQUESTS, window, targets, "objective", "outcome")
    together = _increase(MetricName.ALL_OBJECTIVES_REQUESTS, window, targets, "objectives", "outcome")
    return _together({"objective": single, "all": together})


def ran(targets: str = _TARGETS) -> str:
    """The limits in effect in engine cores by the label `knob`, `field` says whether the least or the most of them."""
    limit = _selected(MetricName.LIMIT, targets)
    return _together({"least": _aggregate("min", limit, "knob"), "most": _aggregate("max", limit, "knob")})
