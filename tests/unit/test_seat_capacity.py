"""One service whose pods carry its load, or not: what status, events and autoscalers are told."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.tuning.capacity import WEIGHED_SECONDS, Carried, weighed
from flyball_operator.tuning.observe.signals import Signals
from flyball_operator.tuning.report.capacity_report import STALE_SECONDS
from flyball_operator.tuning.report.metrics import BrainMetrics
from flyball_operator.tuning.tuner import Brain
from support.brains import ScriptedReader
from support.seats import AWAY, WITH_DEADLINE, Desk
from support.tuning import TPOT, TTFT, signals, tuning
from support.virtual_time import in_virtual_time, now

CAPACITY = ConditionType.CAPACITY_SUFFICIENT


def calm() -> Signals:
    return signals(now())


def crowded() -> Signals:
    """Far more than one pod carries, most of it refused."""
    return signals(now(), refused=60.0)


async def minutes(desk: Desk, seat: Any, count: float, seen: Any = calm) -> None:
    for _ in range(int(12 * count)):
        await desk.tick(seat, seen())


def serving(**spec: Any) -> Desk:
    desk = Desk()
    desk.sheds()
    desk.edit(**spec)
    return desk


@in_virtual_time
async def test_after_a_minute_status_says_what_the_pods_carry() -> None:
    desk = serving()
    seat = desk.seat()
    await minutes(desk, seat, 0.5)
    assert desk.condition(CAPACITY) == ("Unknown", "Learning")
    assert desk.service.status.tuning.capacity == ""
    assert desk.service.status.desired_replicas is None, "no advice while nothing is known"
    await minutes(desk, seat, 3)
    assert desk.condition(CAPACITY) == ("True", "Sufficient")
    capacity = desk.service.status.tuning.capacity
    assert float(capacity) > 4
    assert desk.message(CAPACITY) == f"carries {capacity} requests/s at the objectives, 4 arrive"
    assert desk.service.status.desired_replicas == 1
    assert not [event for event in desk.events if event.startswith("Capacity")]


@in_virtual_time
async def test_an_overload_is_told_once_and_its_end_once() -> None:
    desk = serving()
    seat = desk.seat()
    await minutes(desk, seat, 3)
    await minutes(desk, seat, 5, crowded)
    assert desk.condition(CAPACITY) == ("False", "Overloaded")
    assert "1 pod carries" in desk.message(CAPACITY)
    assert desk.message(CAPACITY).endswith(f"{desk.service.status.desired_replicas} pods would do")
    assert (desk.service.status.desired_replicas or 0) > 1
    await minutes(desk, seat, 5)
    assert desk.condition(CAPACITY) == ("True", "Sufficient")
    await minutes(desk, seat, 6)
    assert desk.service.status.desired_replicas == 1
    told = [event for event in desk.events if event.startswith("Capacity")]
    assert told == ["CapacityOverloaded", "CapacitySufficient"]


@in_virtual_time
async def test_objectives_that_no_engine_keeps_are_named() -> None:
    first, token = WITH_DEADLINE
    desk = serving(objectives=[first | {"threshold": "5ms"}, token])
    await minutes(desk, desk.seat(), 3)
    assert desk.condition(CAPACITY) == ("False", "Infeasible")
    assert desk.message(CAPACITY).startswith(
        "even an idle engine cannot keep ttft within 5ms, the least that it can keep is "
    )
    assert desk.events.count("CapacityInfeasible") == 1
    assert desk.service.status.tuning.capacity == "0"


@in_virtual_time
async def test_of_edited_objectives_nothing_is_said_that_was_found_of_the_old_ones() -> None:
    first, token = WITH_DEADLINE
    desk = serving(objectives=[first | {"threshold": "5ms"}, token])
    seat = desk.seat()
    await minutes(desk, seat, 3)
    assert desk.condition(CAPACITY) == ("False", "Infeasible")
    desk.edit(objectives=[first, token])
    desk.muster(seat)
    await seat.keep()
    assert desk.condition(CAPACITY) == ("Unknown", "Learning")
    await minutes(desk, seat, 3)
    assert desk.condition(CAPACITY) == ("True", "Sufficient")


@in_virtual_time
async def test_an_operator_that_starts_says_the_same() -> None:
    desk = serving()
    seat = desk.seat()
    await minutes(desk, seat, 3)
    await minutes(desk, seat, 5, crowded)
    said, advised = desk.condition(CAPACITY), desk.service.status.desired_replicas
    before, desk.epoch = len(desk.written), 2
    again = desk.seat()
    for _ in range(6):
        await desk.tick(again, crowded())
    assert [s["conditions"] for s in desk.written[before:]] == []
    await minutes(desk, again, 3, crowded)
    assert (desk.condition(CAPACITY), desk.service.status.desired_replicas) == (said, advised)
    assert desk.events.count("CapacityOverloaded") == 1


@in_virtual_time
async def test_in_the_dark_it_is_unknown_and_the_advice_stands() -> None:
    desk = serving()
    seat = desk.seat()
    await minutes(desk, seat, 3)
    await minutes(desk, seat, 5, crowded)
    advised = desk.service.status.desired_replicas
    for _ in range(20):
        await desk.tick(seat, AWAY, AWAY)
    assert desk.condition(CAPACITY) == ("Unknown", "NotObserved")
    assert desk.service.status.desired_replicas == advised


@in_virtual_time
async def test_advice_of_long_ago_is_told_no_more_and_comes_back_with_the_signals() -> None:
    desk = serving()
    seat = desk.seat()
    await minutes(desk, seat, 3)
    await minutes(desk, seat, 5, crowded)
    advised = desk.service.status.desired_replicas
    await minutes(desk, seat, STALE_SECONDS / 60 - 1, lambda: AWAY)
    assert desk.service.status.desired_replicas == advised
    await minutes(desk, seat, 3, lambda: AWAY)
    assert "desiredReplicas" not in desk.written[-1]
    assert desk.service.status.tuning.capacity == ""
    assert desk.condition(CAPACITY) == ("Unknown", "NotObserved")
    await minutes(desk, seat, 2, crowded)
    assert desk.condition(CAPACITY) == ("False", "Overloaded")
    assert desk.service.status.desired_replicas == advised


@in_virtual_time
async def test_of_a_service_that_is_tuned_no_more_nothing_is_claimed() -> None:
    desk = serving()
    brain = Brain(services=desk, reader=ScriptedReader(calm()), tools=desk.tools())
    work = asyncio.create_task(brain.run())
    await asyncio.sleep(120)
    assert desk.service.status.desired_replicas == 1
    desk.tuned = False
    await asyncio.sleep(5)
    assert desk.condition(CAPACITY) == desk.condition(ConditionType.TUNED) == ("Unknown", "NotTuned")
    assert "desiredReplicas" not in desk.written[-1]
    assert desk.service.status.tuning.model.trusted, "what was learnt is kept for when it is tuned again"
    desk.tuned = True
    await asyncio.sleep(120)
    assert desk.condition(ConditionType.TUNED) == ("True", "Applied")
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


@in_virtual_time
async def test_other_objectives_are_learnt_of_anew() -> None:
    desk = serving()
    seat = desk.seat()
    await minutes(desk, seat, 3)
    desk.edit(objectives=[WITH_DEADLINE[0]])
    await desk.tick(seat, calm())
    assert desk.condition(CAPACITY) == ("Unknown", "Learning")
    desk.edit(objectives=[], tuning={"mode": "Auto"})
    await desk.tick(seat, calm())
    assert desk.condition(CAPACITY) == ("Unknown", "NoObjectives")
    assert "desiredReplicas" not in desk.written[-1]


@in_virtual_time
async def test_a_load_that_scatters_changes_no_word() -> None:
    desk = serving()
    seat = desk.seat()
    await minutes(desk, seat, 5)
    said = {(desk.message(CAPACITY), desk.service.status.tuning.capacity)}
    for number in range(60):
        await desk.tick(seat, signals(now(), arrivals=4.0 + 0.3 * (number % 3 - 1)))
        said.add((desk.message(CAPACITY), desk.service.status.tuning.capacity))
    assert len(said) == 1


def test_autoscalers_read_both_figures_while_they_are_known() -> None:
    registry, spec, known = CollectorRegistry(), tuning(TTFT, TPOT), None
    metrics = BrainMetrics(registry)
    for number in range(6):
        metrics.capacity("team", "chat", known)
        assert "chat" not in generate_latest(registry).decode()
        known = weighed(
            known, Carried(rate=5.0), arrivals=14.0, cores=2, pods=2, spec=spec, now=WEIGHED_SECONDS * min(number, 3)
        )
    metrics.capacity(
        "team", "chat", weighed(known, Carried(rate=5.0), arrivals=14.0, cores=2, pods=2, spec=spec, now=60.0)
    )
    page = generate_latest(registry).decode()
    assert 'flyball_operator_capacity_requests_per_second{namespace="team",service="chat"} 10.0' in page
    assert 'flyball_operator_desired_replicas{namespace="team",service="chat"} 3.0' in page
    metrics.forget("team", "chat")
    assert "chat" not in generate_latest(registry).decode()
