"""The PromQL that dashboards share.

An engine's series name the service by its UID, the operator's by its name. `flyball_operator_objective_target_ratio`
has both, and joins them: a service without objectives has no figures of engines here.

Replicas of the operator export a service more than once, so its series are taken by `max`.
"""

from __future__ import annotations

from typing import Final

from flyball_engine.contract import MetricName
from flyball_operator.prometheus.queries import NAMESPACE, POD, UID

#: Grafana's: long enough for a rate at any zoom.
RATE: Final = "$__rate_interval"
#: Grafana's: the time that the dashboard shows.
SHOWN: Final = "$__range"
#: What each dashboard of one service selects by. `$uid` holds every UID that the service had in the time shown.
SERVICE: Final = 'namespace="$namespace",service="$service"'
ENGINES: Final = f'{NAMESPACE}="$namespace",{UID}=~"$uid"'
PODS: Final = f'{ENGINES},{POD}=~"$pod"'
#: And that of all services.
FLEET: Final = 'namespace=~"$namespace"'

TARGET: Final = "flyball_operator_objective_target_ratio"
CONDITION: Final = "flyball_operator_condition"
_CAPACITY: Final = "flyball_operator_capacity_requests_per_second"
_OBJECTIVE: Final = f"{NAMESPACE}, {UID}, objective"


def operators(metric: str, selector: str, *labels: str) -> str:
    """A figure of the operator's for each service and these labels."""
    return f"max by ({', '.join((NAMESPACE, 'service', *labels))}) ({metric}{{{selector}}})"


def capacity(selector: str) -> str:
    """Requests per second that the pods of each service carry at the objectives."""
    return operators(_CAPACITY, selector)


def rate(metric: MetricName, selector: str, *labels: str, window: str = RATE) -> str:
    """What a counter of engines grows by in a second, summed by these labels."""
    return _summed(f"rate({metric}{{{selector}}}[{window}])", *labels)


def gauge(metric: MetricName, selector: str, *labels: str, by: str = "sum") -> str:
    """A gauge of engines, taken together by these labels."""
    return f"{by} by ({', '.join(labels)}) ({metric}{{{selector}}})" if labels else f"{by}({metric}{{{selector}}})"


def ratio(upper: MetricName, lower: MetricName, selector: str, *labels: str) -> str:
    """The mean of what `upper` sums for each of what `lower` counts."""
    return f"{rate(upper, selector, *labels)} / {rate(lower, selector, *labels)}"


def attained(selector: str, window: str) -> str:
    """Share of requests within each objective, with the service's name and the objective's in the spec."""
    counted = f"{MetricName.OBJECTIVE_REQUESTS}"
    met = _summed(f'increase({counted}{{{selector},outcome="met"}}[{window}])', NAMESPACE, UID, "objective")
    total = _summed(f"increase({counted}{{{selector}}}[{window}])", NAMESPACE, UID, "objective")
    return f"{met} / {total} * on ({_OBJECTIVE}) group_right () ({_targets()} ^ 0)"


def budget_left(selector: str, window: str) -> str:
    """What is left of the requests that may miss an objective: 1 is all of them, 0 none, below 0 it is missed."""
    return f"1 - (1 - {attained(selector, window)}) / on ({_OBJECTIVE}, service, name) group_left () (1 - {_targets()})"


def burn_rate(selector: str, window: str) -> str:
    """How many times as often as it may an objective is missed, as the alerts have it."""
    return f"(1 - {attained(selector, window)}) / on ({_OBJECTIVE}, service, name) group_left () (1 - {_targets()})"


def named(expression: str) -> str:
    """A figure by namespace and UID, with the service's name, by namespace and service."""
    names = f"max by ({NAMESPACE}, service, {UID}) ({TARGET}) ^ 0"
    return f"sum by ({NAMESPACE}, service) ({expression} * on ({NAMESPACE}, {UID}) group_left (service) ({names}))"


def offered(selector: str, window: str = RATE) -> str:
    """Requests that arrive in a second, refused ones among them. A pod that two jobs scrape is counted once."""
    each = f"rate({MetricName.REQUESTS}{{{selector}}}[{window}])"
    return _summed(f"max by ({NAMESPACE}, {UID}, {POD}, outcome) ({each})", NAMESPACE, UID)


def pods(selector: str) -> str:
    """Pods that are scraped."""
    each = f"count by ({NAMESPACE}, {UID}, {POD}) ({MetricName.RUNNING}{{{selector}}})"
    return f"count by ({NAMESPACE}, {UID}) ({each})"


def pod_seconds(selector: str) -> str:
    """Seconds of a scraped pod for each request that met all objectives; no series while there is none."""
    met = f'{MetricName.ALL_OBJECTIVES_REQUESTS}{{{selector},outcome="met"}}'
    each = f"max by ({NAMESPACE}, {UID}, {POD}, objectives) (rate({met}[{RATE}]))"
    return f"{pods(selector)} / ({_summed(each, NAMESPACE, UID)} > 0)"


def quantile(share: float, metric: MetricName, selector: str, *labels: str) -> str:
    """A quantile of a histogram of engines."""
    by = ", ".join(("le", *labels))
    return f"histogram_quantile({share:g}, sum by ({by}) (rate({metric}_bucket{{{selector}}}[{RATE}])))"


def _targets() -> str:
    return f"max by ({_OBJECTIVE}, service, name) ({TARGET})"


def _summed(expression: str, *labels: str) -> str:
    return f"sum by ({', '.join(labels)}) ({expression})" if labels else f"sum({expression})"
