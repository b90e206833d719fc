"""What the tuner exports of a service from its beginning to its end."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from flyball_engine.contract import Limits
from flyball_operator.tuning.metrics import TunerMetrics
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.state import Decision

#: Limits move.
A_CHANGE = Decision(at=0.0, before=Policy(limits=Limits()), policy=Policy(limits=Limits()), hold=None, trigger="")
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
