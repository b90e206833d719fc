"""What the tuner exports of a service from its beginning to its end."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from flyball_operator.tuning.metrics import TunerMetrics

CHANGED = {"namespace": "team", "service": "chat", "hold": "changed"}


def test_the_first_change_of_limits_is_an_increase() -> None:
    registry = CollectorRegistry()
    metrics = TunerMetrics(registry)
    metrics.began("team", "chat")
    assert registry.get_sample_value("flyball_operator_decisions_total", CHANGED) == 0.0
    metrics.ended("team", "chat")
    assert registry.get_sample_value("flyball_operator_decisions_total", CHANGED) is None
