"""One service whose tuning is paused by an annotation: nothing moves, all is kept, and it is said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.tuning.actuate.engine_pods import RENEW_SHARE
from flyball_operator.tuning.observe.signals import Signals
from flyball_operator.tuning.report.metrics import BrainMetrics
from support.seats import Desk
from support.tuning import signals, step_window
from support.virtual_time import in_virtual_time, now

TUNED = ConditionType.TUNED


def busy() -> Signals:
    return signals(now())


def slower() -> Signals:
    """Steps that take twice as long: the law wants other limits."""
    return signals(now(), window=step_window(start=now() - 15, end=now(), slower=2.0))


async def ticks(desk: Desk, seat: Any, number: int, seen: Any = busy) -> None:
    for _ in range(number):
        await desk.tick(seat, seen())


async def tuned(desk: Desk) -> Any:
    seat = desk.seat()
    await ticks(desk, seat, 15)
    assert desk.condition(TUNED) == ("True", "Applied")
    return seat


@in_virtual_time
async def test_what_is_decided_stays_a_shadow_until_the_annotation_goes() -> None:
    desk = Desk()
    seat = await tuned(desk)
    held, generation = desk.engines.limits(), desk.held().generation
    desk.annotate(tuning="Paused")
    await ticks(desk, seat, 30, slower)
    assert desk.engines.limits() == held
    assert desk.held().generation == generation
    assert desk.condition(TUNED) == ("False", "Paused")
    assert desk.message(TUNED).startswith(f"annotation serving.flyball.dev/tuning: {held[0]} seqs, {held[1]} tokens")
    shadow = desk.service.status.tuning.recommended
    assert shadow is not None
    assert (shadow.max_num_active_seqs, shadow.max_num_scheduled_tokens) != held, "the law went on"
    desk.annotate()
    await ticks(desk, seat, 1, slower)
    assert desk.engines.limits() == (shadow.max_num_active_seqs, shadow.max_num_scheduled_tokens)
    assert desk.condition(TUNED) == ("True", "Applied")
    assert [event for event in desk.events if event.startswith("Tuning")] == ["TuningPaused", "TuningResumed"]


@in_virtual_time
async def test_it_is_heard_of_between_two_ticks() -> None:
    desk = Desk()
    seat = await tuned(desk)
    desk.annotate(tuning="Paused")
    desk.muster(seat)
    await seat.keep()
    assert desk.condition(TUNED) == ("False", "Paused")


@in_virtual_time
async def test_edits_of_mode_bounds_and_objectives_wait_too() -> None:
    desk = Desk()
    seat = await tuned(desk)
    desk.annotate(tuning="Paused")
    held = desk.held()
    for spec in (
        {"tuning": {"mode": "Disabled"}},
        {"tuning": {"mode": "Auto", "bounds": {"maxNumActiveSeqs": {"max": 5}}}},
        {"objectives": [{"name": "e2e", "metric": "EndToEndLatency", "threshold": "9s"}]},
    ):
        desk.edit(**spec)
        await ticks(desk, seat, 2)
        assert desk.held() == held
    desk.annotate()
    await ticks(desk, seat, 1)
    assert (desk.held().limits.max_num_active_seqs or 0) <= 5
    assert [objective.id for objective in desk.held().objectives] == ["EndToEndLatency/9"]


@in_virtual_time
async def test_what_the_engines_hold_is_renewed_and_given_back_to_those_that_lost_it() -> None:
    desk = Desk()
    seat = await tuned(desk)
    held = desk.held()
    desk.annotate(tuning="Paused")
    await ticks(desk, seat, 2)
    desk.engines.held["pod-1"] = None
    await ticks(desk, seat, 4)
    assert desk.held() == held
    writes = desk.engines.writes
    await asyncio.sleep(held.expires_seconds * RENEW_SHARE)
    await ticks(desk, seat, 1)
    assert desk.engines.writes > writes
    assert desk.held() == held


@in_virtual_time
async def test_the_next_leader_keeps_it_paused() -> None:
    desk = Desk()
    await tuned(desk)
    held = desk.engines.limits()
    desk.annotate(tuning="Paused")
    seat = desk.seat()
    await ticks(desk, seat, 2)
    desk.epoch = 2
    desk.engines.held["pod-1"] = None
    again = desk.seat()
    await ticks(desk, again, 30, slower)
    assert (desk.held().epoch, desk.engines.limits()) == (2, held)
    assert desk.condition(TUNED) == ("False", "Paused")
    assert desk.events.count("TuningPaused") == 1


@in_virtual_time
async def test_a_service_that_is_born_paused_is_told_nothing() -> None:
    desk = Desk()
    desk.annotate(tuning="Paused")
    seat = desk.seat()
    await ticks(desk, seat, 30)
    assert desk.engines.held == {"pod-1": None}
    assert desk.condition(TUNED) == ("False", "Paused")
    assert "start values until it is removed" in desk.message(TUNED)


@pytest.mark.parametrize("value", ["paused", "", "Yes, for the demo of Thursday and until I am back from it"])
def test_a_slip_of_the_pen_pauses_too_and_is_named(value: str) -> None:
    @in_virtual_time
    async def story() -> None:
        desk = Desk()
        seat = await tuned(desk)
        held = desk.engines.limits()
        desk.annotate(tuning=value)
        await ticks(desk, seat, 20, slower)
        assert desk.engines.limits() == held
        assert desk.condition(TUNED) == ("False", "PauseNotUnderstood")
        assert f"is {value[:40]!r}, accepted: Paused, or none to resume; taken for Paused" in desk.message(TUNED)
        assert desk.events.count("TuningPaused") == 1

    story()


@in_virtual_time
async def test_what_is_wrong_with_a_pod_is_told_beside_it() -> None:
    desk = Desk()
    seat = await tuned(desk)
    desk.annotate(tuning="Paused")
    desk.engines.trip()
    await ticks(desk, seat, 15)
    assert desk.condition(TUNED) == ("False", "Paused")
    assert "pod-1: requests stood still" in desk.message(TUNED)


def test_alerts_read_that_it_is_paused() -> None:
    registry = CollectorRegistry()
    metrics = BrainMetrics(registry)
    metrics.paused("team", "chat", True)
    assert 'flyball_operator_tuning_paused{namespace="team",service="chat"} 1.0' in generate_latest(registry).decode()
    metrics.forget("team", "chat")
    assert "chat" not in generate_latest(registry).decode()
