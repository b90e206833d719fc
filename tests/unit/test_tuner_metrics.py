"""What the tuner exports of a service from its beginning to its end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from flyball_engine.contract import Limits
from flyball_lab.harness.service_tuners import Harness
from flyball_lab.harness.tuning import signals
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.tuning.metrics import TunerMetrics
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.service_tuner import ServiceTuner
from flyball_operator.tuning.state import ChangeCause, Decision

#: Limits move.
A_CHANGE = Decision(
    at=100.0, before=Policy(limits=Limits()), policy=Policy(limits=Limits()), hold=None, trigger="", cause="per-token"
)
CHANGED_AT = "flyball_operator_limits_changed_timestamp_seconds"
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
    metrics.limits_changed("team", "chat", "per-token", 100.0)
    metrics.limits_changed("team", "chat", ChangeCause.SPEC_EDITED, 160.0)
    assert changes(registry) == {"SpecEdited": 160.0}
    metrics.ended("team", "chat")
    assert changes(registry) == {}


async def tuned(harness: Harness, registry: CollectorRegistry) -> ServiceTuner:
    """After minutes under its mode."""
    tuner = ServiceTuner(harness.service, replace(harness.dependencies(), metrics=TunerMetrics(registry)))
    for _ in range(40):
        await harness.tick(tuner, signals(now()))
    return tuner


@in_virtual_time
async def test_the_cause_of_limits_is_told_that_an_edit_between_two_ticks_has_moved() -> None:
    harness, registry = Harness(), CollectorRegistry()
    tuner = await tuned(harness, registry)
    assert changes(registry).keys() <= {"tpot", "ttft", "UpperBound", "Learning"}
    harness.edit(tuning={"mode": "Auto", "bounds": {"maxNumActiveSeqs": {"max": 5}}})
    harness.update_pods(tuner)
    await tuner.keep()
    assert harness.engines.limits()[0] == 5
    assert changes(registry) == {"SpecEdited": pytest.approx(now())}


@in_virtual_time
async def test_what_is_only_recommended_is_no_change_of_limits() -> None:
    harness, registry = Harness(), CollectorRegistry()
    harness.edit(tuning={"mode": "Recommend"})
    await tuned(harness, registry)
    assert "Retuned" not in harness.events
    assert changes(registry) == {}


def test_the_causes_are_those_that_the_page_names() -> None:
    registry = CollectorRegistry()
    TunerMetrics(registry)
    (named,) = (one.documentation for one in registry.collect() if one.name == CHANGED_AT)
    assert all(cause in named for cause in ChangeCause)


def changes(registry: CollectorRegistry) -> dict[str, float]:
    """When limits changed last, by cause."""
    name = "flyball_operator_limits_changed_timestamp_seconds"
    return {
        one.labels["cause"]: one.value for family in registry.collect() for one in family.samples if one.name == name
    }
