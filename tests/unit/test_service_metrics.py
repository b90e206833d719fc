"""What the operator exports of each service, for alerts and dashboards."""

from __future__ import annotations

from typing import Any

from flyball_engine.contract import Metric, ObjectiveSpec
from flyball_lab.harness.manifests import good
from flyball_operator.api.desire import Desire, read_desire
from flyball_operator.app import service_metrics

READY = {"type": "Ready", "status": "False", "reason": "Unschedulable", "message": "no room"}
OBJECTIVES = [
    {"name": "first", "metric": "TimeToFirstToken", "threshold": "500ms", "target": "99"},
    {"name": "stall", "metric": "InterTokenLatency", "threshold": "200ms", "target": "99.9"},
]


def service(**changes: Any) -> Desire:
    return read_desire(good(metadata__namespace="ns", metadata__name="chat", metadata__uid="u1", **changes))


def test_a_condition_has_its_status_and_reason() -> None:
    found = service_metrics.conditions([service(status={"conditions": [READY]})])
    assert found == {("ns", "chat", "Ready", "False", "Unschedulable"): 1.0}


def test_an_objective_has_its_target_under_the_id_that_engines_count_by() -> None:
    found = service_metrics.targets([service(spec__objectives=OBJECTIVES)])
    ids = [
        ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=0.5).id,
        ObjectiveSpec(metric=Metric.INTER_TOKEN_LATENCY, threshold_seconds=0.2).id,
    ]
    assert found == {
        ("ns", "chat", "u1", ids[0], "first"): 0.99,
        ("ns", "chat", "u1", ids[1], "stall"): 0.999,
    }


def test_a_service_that_cannot_be_read_has_conditions_and_no_targets() -> None:
    broken = service(spec__objectives=[{"name": "first"}], status={"conditions": [READY]})
    assert service_metrics.conditions([broken])
    assert not service_metrics.targets([broken])
