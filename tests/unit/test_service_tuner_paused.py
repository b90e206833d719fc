"""One service whose tuning is paused by an annotation: nothing moves, all is kept, and it is said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from flyball_lab.harness.service_tuners import Harness
from flyball_lab.harness.tuning import signals, step_window
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.tuning.actuate.engine_pods import RENEW_SHARE
from flyball_operator.tuning.metrics import TunerMetrics
from flyball_operator.tuning.observe.signals import Signals

TUNED = ConditionType.TUNED


def busy() -> Signals:
    return signals(now())


def slower() -> Signals:
    """Steps that take twice as long: the law wants other limits."""
    return signals(now(), window=step_window(start=now() - 15, end=now(), slower=2.0))


async def ticks(harness: Harness, tuner: Any, number: int, seen: Any = busy) -> None:
    for _ in range(number):
        await harness.tick(tuner, seen())


async def tuned(harness: Harness) -> Any:
    tuner = harness.tuner()
    await ticks(harness, tuner, 15)
    assert harness.condition(TUNED) == ("True", "Applied")
    return tuner


@in_virtual_time
async def test_what_is_decided_stays_a_shadow_until_the_annotation_goes() -> None:
    harness = Harness()
    tuner = await tuned(harness)
    held, generation = harness.engines.limits(), harness.held().generation
    harness.annotate(tuning="Paused")
    await ticks(harness, tuner, 30, slower)
    assert harness.engines.limits() == held
    assert harness.held().generation == generation
    assert harness.condition(TUNED) == ("False", "Paused")
    assert harness.message(TUNED).startswith(f"annotation serving.flyball.dev/tuning: {held[0]} seqs, {held[1]} tokens")
    shadow = harness.service.status.tuning.recommended
    assert shadow is not None
    assert (shadow.max_num_active_seqs, shadow.max_num_scheduled_tokens) != held, "the law went on"
    harness.annotate()
    await ticks(harness, tuner, 1, slower)
    assert harness.engines.limits() == (shadow.max_num_active_seqs, shadow.max_num_scheduled_tokens)
    assert harness.condition(TUNED) == ("True", "Applied")
    assert [event for event in harness.events if event.startswith("Tuning")] == ["TuningPaused", "TuningResumed"]


@in_virtual_time
async def test_it_is_heard_of_between_two_ticks() -> None:
    harness = Harness()
    tuner = await tuned(harness)
    harness.annotate(tuning="Paused")
    harness.update_pods(tuner)
    await tuner.keep()
    assert harness.condition(TUNED) == ("False", "Paused")


@in_virtual_time
async def test_edits_of_mode_bounds_and_objectives_wait_too() -> None:
    harness = Harness()
    tuner = await tuned(harness)
    harness.annotate(tuning="Paused")
    held = harness.held()
    for spec in (
        {"tuning": {"mode": "Disabled"}},
        {"tuning": {"mode": "Auto", "bounds": {"maxNumActiveSeqs": {"max": 5}}}},
        {"objectives": [{"name": "e2e", "metric": "EndToEndLatency", "threshold": "9s"}]},
    ):
        harness.edit(**spec)
        await ticks(harness, tuner, 2)
        assert harness.held() == held
    harness.annotate()
    await ticks(harness, tuner, 1)
    assert (harness.held().limits.max_num_active_seqs or 0) <= 5
    assert [objective.id for objective in harness.held().objectives] == ["EndToEndLatency/9"]


@in_virtual_time
async def test_what_the_engines_hold_is_renewed_and_given_back_to_those_that_lost_it() -> None:
    harness = Harness()
    tuner = await tuned(harness)
    held = harness.held()
    harness.annotate(tuning="Paused")
    await ticks(harness, tuner, 2)
    harness.engines.held["pod-1"] = None
    await ticks(harness, tuner, 4)
    assert harness.held() == held
    writes = harness.engines.writes
    await asyncio.sleep(held.expires_seconds * RENEW_SHARE)
    await ticks(harness, tuner, 1)
    assert harness.engines.writes > writes
    assert harness.held() == held


@in_virtual_time
async def test_the_next_leader_keeps_it_paused() -> None:
    harness = Harness()
    await tuned(harness)
    held = harness.engines.limits()
    harness.annotate(tuning="Paused")
    tuner = harness.tuner()
    await ticks(harness, tuner, 2)
    harness.epoch = 2
    harness.engines.held["pod-1"] = None
    again = harness.tuner()
    await ticks(harness, again, 30, slower)
    assert (harness.held().epoch, harness.engines.limits()) == (2, held)
    assert harness.condition(TUNED) == ("False", "Paused")
    assert harness.events.count("TuningPaused") == 1


@in_virtual_time
async def test_a_service_that_is_born_paused_is_told_nothing() -> None:
    harness = Harness()
    harness.annotate(tuning="Paused")
    tuner = harness.tuner()
    await ticks(harness, tuner, 30)
    assert harness.engines.held == {"pod-1": None}
    assert harness.condition(TUNED) == ("False", "Paused")
    assert "start values until it is removed" in harness.message(TUNED)


@pytest.mark.parametrize("value", ["paused", "", "Yes, for the demo of Thursday and until I am back from it"])
def test_a_slip_of_the_pen_pauses_too_and_is_named(value: str) -> None:
    @in_virtual_time
    async def story() -> None:
        harness = Harness()
        tuner = await tuned(harness)
        held = harness.engines.limits()
        harness.annotate(tuning=value)
        await ticks(harness, tuner, 20, slower)
        assert harness.engines.limits() == held
        assert harness.condition(TUNED) == ("False", "PauseNotUnderstood")
        assert f"is {value[:40]!r}, accepted: Paused, or none to resume; taken for Paused" in harness.message(TUNED)
        assert harness.events.count("TuningPaused") == 1

    story()


@in_virtual_time
async def test_what_is_wrong_with_a_pod_is_told_beside_it() -> None:
    harness = Harness()
    tuner = await tuned(harness)
    harness.annotate(tuning="Paused")
    harness.engines.trip()
    await ticks(harness, tuner, 15)
    assert harness.condition(TUNED) == ("False", "Paused")
    assert "pod-1: requests stood still" in harness.message(TUNED)


def test_alerts_read_that_it_is_paused() -> None:
    registry = CollectorRegistry()
    metrics = TunerMetrics(registry)
    metrics.paused("team", "chat", True)
    assert 'flyball_operator_tuning_paused{namespace="team",service="chat"} 1.0' in generate_latest(registry).decode()
    metrics.forget("team", "chat")
    assert "chat" not in generate_latest(registry).decode()
