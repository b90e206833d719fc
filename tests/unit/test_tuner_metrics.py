"""What the tuner exports of a service from its beginning to its end."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry

from flyball_engine.contract import Limits
from flyball_operator.tuning.filters.filters import HoldReason
from flyball_operator.tuning.metrics import TunerMetrics
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.state import Decision

#: Limits move.
A_CHANGE = Decision(
    at=100.0, before=Policy(limits=Limits()), policy=Policy(limits=Limits()), hold=None, trigger="", cause="per-token"
)
CHANGED = {"namespace": "team", "service": "chat", "hold": "changed"}


def test_the_first_change_of_limits_is_an_increase() -> None:
    registry = CollectorRegistry()
    metrics = TunerMetrics(registry)
    metrics.began("team", "chat")
    assert registry.get_sample_value("flyball_operator_decisions_total", CHANGED) == 0.0
    metrics.decided("team", "chat", A_CHANGE, None)
    metrics.ended("team", "chat")
    assert registry.get_sample_value("flyball_operator_decisions_total", CHANGED) is None


def test_a_service_that_is_made_again_counts_anew() -> None:
    registry = CollectorRegistry()
    metrics = TunerMetrics(registry)
    for _ in range(2):
        metrics.began("team", "chat")
        metrics.decided("team", "chat", A_CHANGE, None)
        assert registry.get_sample_value("flyball_operator_decisions_total", CHANGED) == 1.0
        metrics.ended("team", "chat")


def test_the_last_change_of_limits_has_one_series_with_its_cause_until_the_service_ends() -> None:
    registry = CollectorRegistry()
    metrics = TunerMetrics(registry)
    metrics.began("team", "chat")
    metrics.decided("team", "chat", A_CHANGE, None)
    metrics.decided("team", "chat", replace(A_CHANGE, at=160.0, cause="SpecEdited"), None)
    metrics.decided("team", "chat", replace(A_CHANGE, at=165.0, hold=HoldReason.GOOD_ENOUGH, cause="per-token"), None)
    assert changes(registry) == {"SpecEdited": 160.0}
    metrics.ended("team", "chat")
    assert changes(registry) == {}


def changes(registry: CollectorRegistry) -> dict[str, float]:
    """When limits changed last, by cause."""
    name = "flyball_operator_limits_changed_timestamp_seconds"
    return {
        one.labels["cause"]: one.value for family in registry.collect() for one in family.samples if one.name == name
    }
