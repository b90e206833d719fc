"""One service in the brain, second by second: what is held in the dark, and what is not written."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from flyball_engine.contract import Knob, ReadBack
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.engines.client import Address
from flyball_operator.engines.errors import UnreachableError
from flyball_operator.kube.errors import UnavailableError
from flyball_operator.tuning.actuate.engine_pods import VERIFY_SECONDS
from flyball_operator.tuning.observe.signals import Attainment, Missing, Outcome, Signals, Unobserved
from flyball_operator.tuning.service_tuner import Seat
from flyball_operator.tuning.tuner import Brain
from support.brains import ScriptedReader
from support.seats import AWAY, Desk, Engines
from support.tuning import signals
from support.virtual_time import in_virtual_time, now

OBSERVED, TUNED, MET = ConditionType.METRICS_AVAILABLE, ConditionType.TUNED, ConditionType.OBJECTIVES_MET
COUNTS = {"TimePerOutputToken/0.06": Outcome(999, 1), "InterTokenLatency/0.25": Outcome(9999, 1)}


def busy() -> Signals:
    """Long prompts among chat: the law shortens steps."""
    return signals(now(), waiting=0.0)


async def settled(desk: Desk) -> Any:
    """A seat that has nothing left to change."""
    seat = desk.seat()
    for _ in range(30):
        await desk.tick(seat, busy(), COUNTS)
    assert desk.condition(TUNED) == ("True", "Applied")
    return seat


@in_virtual_time
async def test_an_operator_that_starts_in_an_outage_says_nothing_new() -> None:
    desk = Desk()
    seat = await settled(desk)
    for _ in range(20):
        await desk.tick(seat, AWAY, AWAY)
    assert desk.condition(OBSERVED) == ("False", "PrometheusUnreachable")
    before, desk.epoch = len(desk.written), 2
    again = desk.seat()
    for _ in range(12):
        await desk.tick(again, AWAY, AWAY)
    assert [s["conditions"] for s in desk.written[before:]] == []
    assert desk.events.count("MetricsLost") == 1


@in_virtual_time
async def test_pods_that_two_jobs_scrape_are_tuned_and_the_jobs_named_once() -> None:
    desk = Desk()
    seat = await settled(desk)
    for _ in range(20):
        await desk.tick(seat, replace(busy(), twice="jobs `a`, `b` scrape its pods; only `a` is counted"), COUNTS)
    assert desk.condition(OBSERVED) == ("True", "ScrapedTwice")
    assert "jobs `a`, `b` scrape its pods" in desk.message(OBSERVED)
    assert desk.condition(TUNED) == ("True", "Applied")
    assert desk.events.count("ScrapedTwice") == 1
    await desk.tick(seat, busy(), COUNTS)
    assert desk.condition(OBSERVED) == ("True", "Scraped")


@in_virtual_time
async def test_an_operator_that_starts_writes_nothing() -> None:
    desk = Desk()
    await settled(desk)
    before, desk.epoch = len(desk.written), 2
    again = desk.seat()
    for _ in range(3):
        await desk.tick(again, signals(now(), arrivals=0, running=0), COUNTS)
    assert [held.epoch for held in desk.engines.held.values() if held is not None] == [2]
    assert [(s["conditions"], s["tuning"]) for s in desk.written[before:]] == []


@in_virtual_time
async def test_one_late_answer_of_prometheus_changes_no_condition() -> None:
    desk = Desk()
    seat = await settled(desk)
    assert desk.condition(MET) == ("True", "Met")
    before = len(desk.written)
    late = Unobserved(Missing.TIMED_OUT, "Prometheus did not answer in 4 s")
    await desk.tick(seat, late, late)
    await desk.tick(seat, busy(), COUNTS)
    assert [s["conditions"] for s in desk.written[before:]] == []


@in_virtual_time
async def test_a_decision_that_could_not_be_written_is_not_made_live_in_an_outage() -> None:
    desk = Desk()
    seat = desk.seat()
    await desk.tick(seat, AWAY)
    held = desk.engines.limits()
    desk.api_away = True
    desk.muster(seat)
    with pytest.raises(UnavailableError):
        await seat.tick(busy(), Attainment(outcomes=COUNTS))
    desk.api_away = False
    for _ in range(20):
        await desk.tick(seat, AWAY, AWAY)
    assert desk.engines.limits() == held
    await desk.tick(seat, busy(), COUNTS)
    assert desk.engines.limits() != held


@in_virtual_time
async def test_a_decision_taken_while_the_lease_was_not_sure_is_not_made_live_in_an_outage() -> None:
    desk = Desk()
    seat = desk.seat()
    await desk.tick(seat, AWAY)
    held = desk.engines.limits()
    desk.leading = False
    await desk.tick(seat, busy(), COUNTS)
    desk.leading = True
    for _ in range(20):
        await desk.tick(seat, AWAY, AWAY)
    assert desk.engines.limits() == held


@in_virtual_time
async def test_a_pod_that_comes_later_tells_which_limit_it_cannot_move() -> None:
    desk = Desk(engines=Engines(unsupported={Knob.MAX_NUM_ACTIVE_SEQS: "this engine has none"}))
    seat = desk.seat()
    await desk.tick(seat, busy(), COUNTS)
    desk.engines.held["pod-1"] = None
    for _ in range(30):
        await desk.tick(seat, busy(), COUNTS)
    assert desk.condition(TUNED) == ("False", "KnobUnsupported")
    assert desk.engines.limits()[1] != 2048


@in_virtual_time
async def test_limits_hold_over_a_restart_where_one_of_them_cannot_be_moved() -> None:
    desk = Desk(engines=Engines("pod-1", unsupported={Knob.MAX_NUM_ACTIVE_SEQS: "this engine has none"}))
    seat = desk.seat()
    for _ in range(30):
        await desk.tick(seat, busy(), COUNTS)
    held, desk.epoch = desk.engines.limits(), 2
    assert held[1] != 2048
    again = desk.seat()
    for _ in range(5):
        await desk.tick(again, AWAY, AWAY)
    assert [held.epoch for held in desk.engines.held.values() if held is not None] == [2]
    assert desk.engines.limits() == held


@in_virtual_time
async def test_an_engine_whose_watchdog_tripped_is_not_tuned_until_the_next_change() -> None:
    desk = Desk()
    seat = await settled(desk)
    (_, asked), writes = desk.engines.limits(), desk.engines.writes
    desk.engines.trip()
    for _ in range(60):
        await desk.tick(seat, busy(), COUNTS)
    assert desk.condition(TUNED) == ("False", "WatchdogTripped")
    assert desk.message(TUNED).startswith("pod-1: requests stood still, start values hold until the next change: ")
    assert f"max_num_scheduled_tokens is 2048, not {asked}" in desk.message(TUNED)
    assert desk.service.status.tuning.applied_pods == "0/1"
    assert desk.engines.writes == writes, "the same setpoint would bring the same stall"
    assert desk.events.count("WatchdogTripped") == 1
    desk.edit(tuning={"mode": "Auto", "bounds": {"maxNumActiveSeqs": {"min": 1, "max": 2}}})
    await desk.tick(seat, busy(), COUNTS)
    assert desk.condition(TUNED) == ("True", "Applied")
    assert desk.engines.limits()[0] == 2


@in_virtual_time
async def test_each_trip_of_each_pod_is_told() -> None:
    desk = Desk(engines=Engines("pod-1", "pod-2"))
    seat = await settled(desk)
    for pod in ("pod-1", "pod-2"):
        desk.engines.trip(pod)
        for _ in range(10):
            await desk.tick(seat, busy(), COUNTS)
    assert desk.events.count("WatchdogTripped") == 2
    assert desk.service.status.tuning.applied_pods == "0/2"


@in_virtual_time
async def test_a_trip_that_a_change_has_ended_is_told_too() -> None:
    desk = Desk()
    seat = await settled(desk)
    desk.engines.trip()
    desk.edit(tuning={"mode": "Auto", "bounds": {"maxNumActiveSeqs": {"min": 1, "max": 2}}})
    await desk.tick(seat, busy(), COUNTS)
    assert desk.condition(TUNED) == ("True", "Applied")
    assert desk.events.count("WatchdogTripped") == 1


@in_virtual_time
async def test_a_pod_that_goes_while_another_one_is_read_back_hurts_nobody() -> None:
    desk = Desk(engines=Engines("pod-1", "pod-2"))
    seat = await settled(desk)
    held, read = desk.held(), desk.engines.read

    async def slowly(address: Address) -> ReadBack:
        desk.engines.held.pop("pod-2", None)
        desk.muster(seat)
        if address.key not in desk.engines.held:
            raise UnreachableError("it is gone")
        return await read(address)

    await asyncio.sleep(VERIFY_SECONDS)
    desk.engines.read = slowly  # type: ignore[method-assign]
    await seat.keep()
    assert desk.held() == held


@in_virtual_time
async def test_between_ticks_only_a_seat_with_something_to_do_is_woken() -> None:
    desk = Desk()
    seat = await settled(desk)
    await asyncio.sleep(VERIFY_SECONDS)
    assert seat.to_be_kept()
    await seat.keep()
    assert not seat.to_be_kept()
    desk.engines.held["pod-2"] = None
    desk.muster(seat)
    assert seat.to_be_kept(), "a pod came that was told nothing"
    await seat.keep()
    assert not seat.to_be_kept()
    desk.edit(tuning={"mode": "Disabled"})
    desk.muster(seat)
    assert seat.to_be_kept()
    await seat.keep()
    assert not seat.to_be_kept()


@in_virtual_time
async def test_a_service_that_is_taken_up_again_counts_on_though_its_status_is_seen_late() -> None:
    desk = Desk()
    tools, late = desk.tools(), desk.service
    seat = Seat(desk.service, tools)
    for _ in range(5):
        await desk.tick(seat, busy(), COUNTS)
    given = desk.held()
    await seat.close()
    again = Seat(late, tools)
    await desk.tick(again, busy(), COUNTS)
    assert desk.held() == given
    desk.edit(tuning={"mode": "Disabled"})
    await desk.tick(again, busy(), COUNTS)
    assert desk.held().order() > given.order()
    assert desk.raised == [], "what this process gave is no stranger's"


@in_virtual_time
async def test_an_outage_that_goes_on_is_told_once() -> None:
    desk = Desk()
    seat = await settled(desk)
    for tick in range(6):
        await desk.tick(seat, signals(now(), age=21 + 5 * tick), COUNTS)
    assert desk.condition(OBSERVED) == ("False", "StaleMetrics")
    before = len(desk.written)
    for tick in range(30):
        await desk.tick(seat, signals(now(), age=51 + 5 * tick), COUNTS)
    assert [s["conditions"] for s in desk.written[before:]] == []


@in_virtual_time
async def test_an_api_server_that_is_away_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(api_away=True)
    brain = asyncio.create_task(Brain(services=desk, reader=ScriptedReader(busy()), tools=desk.tools()).run())
    await asyncio.sleep(30)
    assert "the API server is away" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    desk.api_away = False
    await asyncio.sleep(10)
    assert desk.written
    brain.cancel()
    await asyncio.gather(brain, return_exceptions=True)


@in_virtual_time
async def test_a_lease_that_was_lost_is_no_newer_leader() -> None:
    desk = Desk()
    seat = await settled(desk)
    desk.leading, desk.epoch = False, 0
    await desk.tick(seat, busy(), COUNTS)
    assert desk.condition(TUNED) != ("False", "NewerLeader")
    assert "NewerLeader" not in desk.events
