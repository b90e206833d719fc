"""docs/reference/metrics.md has every metric that operator and engines export."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry

from flyball_engine.contract import MetricName
from flyball_lab.tools import metrics
from flyball_operator.reconcile.metrics import OUTCOMES, Metrics
from flyball_operator.tuning.metrics import TunerMetrics

LOOKS = "flyball_operator_reconciles_total"
ROWS = dict(re.findall(r"^\| `(flyball_\w+)` \| (.+) \|$", metrics.metrics_page(), flags=re.MULTILINE))


def exported() -> list[str]:
    """What is registered without a cluster, named as it is scraped."""
    registry = CollectorRegistry()
    TunerMetrics(registry)
    found = [*registry.collect(), *Metrics().registry.collect()]
    return [f"{one.name}_total" if one.type == "counter" else one.name for one in found]


@pytest.mark.parametrize("name", [*exported(), "flyball_operator_leader", "flyball_operator_namespace_watched"])
def test_a_metric_of_the_operator_has_its_row(name: str) -> None:
    assert name in ROWS


def test_looks_are_counted_from_zero_so_that_the_first_bug_is_an_increase() -> None:
    metrics = Metrics()
    looks = {outcome: metrics.registry.get_sample_value(LOOKS, {"outcome": outcome}) for outcome in OUTCOMES}
    assert looks == dict.fromkeys(("ok", "error", "fenced", "bug"), 0.0)
    metrics.reconciled("bug")
    assert metrics.registry.get_sample_value(LOOKS, {"outcome": "bug"}) == 1.0


def test_a_row_has_type_labels_and_meaning() -> None:
    assert ROWS["flyball_operator_decisions_total"].startswith(
        "counter | `namespace`, `service`, `hold` | Decisions by"
    )
    assert ROWS["flyball_operator_leader"] == "gauge |  | 1 while this process may write"
    assert ROWS["flyball_limit"] == "gauge; engine, knob: effective live limit"


@pytest.mark.parametrize("name", list(MetricName))
def test_a_metric_of_the_engines_has_its_row(name: MetricName) -> None:
    assert name.value in ROWS
