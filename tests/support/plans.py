"""Pasts of fleets, and the plans that `flyball plan` makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flyball_engine.contract import Metric
from flyball_operator.cli.plan.planned import ServicePlan, planned
from flyball_operator.cli.plan.windows import Capacity, Kind, ServicePast, Share, Window
from flyball_operator.tuning.spec import LatencyObjective

HOUR = 3600.0
TTFT = LatencyObjective("ttft", Metric.TIME_TO_FIRST_TOKEN, 0.5, 0.05)
TPOT = LatencyObjective("tpot", Metric.TIME_PER_OUTPUT_TOKEN, 0.05, 0.05)
ALL_MET = Share(0.99, 1.0, 1000.0)
MOST_LATE = Share(0.6, 0.7, 1000.0)


def hour(load: float, replicas: float = 4, **seen: Any) -> Window:
    """An hour of so many requests per second to each replica; all is well unless it is said."""
    usual: dict[str, Any] = {
        "waiting": 0.0,
        "running_peak": 20.0,
        "kv": 0.1,
        "kv_peak": 0.2,
        "met": {"ttft": ALL_MET, "tpot": ALL_MET},
    }
    return Window(at=0.0, seconds=HOUR, arrivals=load * replicas, replicas=replicas, **(usual | seen))


def fleet_of(*windows: Window, **known: Any) -> ServicePlan:
    """The plan of plain vLLM pods."""
    at = [replace(window, at=HOUR * (number + 1)) for number, window in enumerate(windows)]
    usual: dict[str, Any] = {
        "now": round(windows[-1].replicas),
        "name": "team/qwen",
        "kind": Kind.VLLM,
        "objectives": (TTFT, TPOT),
        "gpus": 2,
    }
    return planned(ServicePast(windows=tuple(at), **(usual | known)))


def governed(*windows: Window, rate: float, error: float = 0.0, **known: Any) -> ServicePlan:
    """The plan of pods with the plugin, of which one carries so many requests per second in each hour."""
    carried = [
        replace(
            one,
            capacity=Capacity(rate=rate, asked=one.arrivals, alone={"ttft": rate, "tpot": 2 * rate}, binding="ttft"),
        )
        for one in windows
    ]
    return fleet_of(*carried, kind=Kind.PLUGIN, error=error, **known)
