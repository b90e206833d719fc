"""One service in the tuner, second by second: what is held in the dark, and what is not written."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from flyball_engine.contract import Knob, ReadBack
from flyball_lab.harness.service_tuners import AWAY, Engines, Harness
from flyball_lab.harness.tuners import ScriptedReader
from flyball_lab.harness.tuning import signals
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.engines.client import Address
from flyball_operator.engines.errors import UnreachableError
from flyball_operator.kube.errors import UnavailableError
from flyball_operator.tuning.observe.signals import Attainment, Missing, ObjectiveCounts, Signals, Unobserved
from flyball_operator.tuning.observe.stall import VERIFY_SECONDS
from flyball_operator.tuning.service_tuner import ServiceTuner
from flyball_operator.tuning.tuner import Tuner

OBSERVED, TUNED, MET = ConditionType.METRICS_AVAILABLE, ConditionType.TUNED, ConditionType.OBJECTIVES_MET
COUNTS = {"TimePerOutputToken/0.06": ObjectiveCounts(999, 1), "InterTokenLatency/0.25": ObjectiveCounts(9999, 1)}


def busy() -> Signals:
    """Long prompts among chat: the law shortens steps."""
    return signals(now(), waiting=0.0)


async def settled(harness: Harness) -> Any:
    """A tuner that has nothing left to change."""
    tuner = harness.tuner()
    for _ in range(30):
        await harness.tick(tuner, busy(), COUNTS)
    assert harness.condition(TUNED) == ("True", "Applied")
    return tuner


@in_virtual_time
async def test_an_operator_that_starts_in_an_outage_says_nothing_new() -> None:
    harness = Harness()
    tuner = await settled(harness)
    for _ in range(20):
        await harness.tick(tuner, AWAY, AWAY)
    assert harness.condition(OBSERVED) == ("False", "PrometheusUnreachable")
    before, harness.epoch = len(harness.written), 2
    again = harness.tuner()
    for _ in range(12):
        await harness.tick(again, AWAY, AWAY)
    assert [s["conditions"] for s in harness.written[before:]] == []
    assert harness.events.count("MetricsLost") == 1


@in_virtual_time
async def test_prometheus_has_time_to_come_to_pods_that_are_ready_at_last() -> None:
    harness = Harness()
    tuner, nobody = harness.tuner(), Unobserved(Missing.NOT_SCRAPED, "no target has a sample")
    for _ in range(2):
        harness.engines.starting.add("pod-1")
        for _ in range(30):
            await harness.tick(tuner, nobody, nobody)
        assert harness.condition(OBSERVED) == ("Unknown", "NoReadyPods")
        harness.engines.starting.clear()
        await harness.tick(tuner, nobody, nobody)
        assert harness.condition(OBSERVED) == ("Unknown", "NotScraped")
        await harness.tick(tuner, busy(), COUNTS)
        assert harness.condition(OBSERVED) == ("True", "Scraped")
    assert "MetricsLost" not in harness.events


@in_virtual_time
async def test_pods_that_two_jobs_scrape_are_tuned_and_the_jobs_named_once() -> None:
    harness = Harness()
    tuner = await settled(harness)
    for _ in range(20):
        await harness.tick(tuner, replace(busy(), twice="jobs `a`, `b` scrape its pods; only `a` is counted"), COUNTS)
    assert harness.condition(OBSERVED) == ("True", "ScrapedTwice")
    assert "jobs `a`, `b` scrape its pods" in harness.message(OBSERVED)
    assert harness.condition(TUNED) == ("True", "Applied")
    assert harness.events.count("ScrapedTwice") == 1
    await harness.tick(tuner, busy(), COUNTS)
    assert harness.condition(OBSERVED) == ("True", "Scraped")


@in_virtual_time
async def test_an_operator_that_starts_writes_nothing() -> None:
    harness = Harness()
    await settled(harness)
    before, harness.epoch = len(harness.written), 2
    again = harness.tuner()
    for _ in range(3):
        await harness.tick(again, signals(now(), arrivals=0, running=0), COUNTS)
    assert [held.epoch for held in harness.engines.held.values() if held is not None] == [2]
    assert [(s["conditions"], s["tuning"]) for s in harness.written[before:]] == []


@in_virtual_time
async def test_a_model_learnt_from_read_backs_makes_no_service_tuned_before_the_first_decision() -> None:
    harness = Harness()
    harness.engines.busy.add("pod-1")
    tuner, nobody = harness.tuner(), Unobserved(Missing.NOT_SCRAPED, "no target has a sample")
    for _ in range(40):
        await harness.tick(tuner, nobody, nobody)
        assert harness.condition(TUNED)[0] != "True"
    assert "ModelLearned" in harness.events
    assert harness.condition(TUNED) == ("False", "Learning")
    assert "the model is there" in harness.message(TUNED)
    for _ in range(30):
        await harness.tick(tuner, busy(), COUNTS)
    assert harness.condition(TUNED) == ("True", "Applied")


@in_virtual_time
@pytest.mark.parametrize("objectives", [None, []])
async def test_an_operator_that_starts_in_an_outage_knows_that_the_service_is_tuned(objectives: Any) -> None:
    harness = Harness()
    if objectives is not None:
        harness.edit(objectives=objectives)  # Then the law leaves the upper bounds, and no change is noted.
    await settled(harness)
    harness.epoch, again = 2, harness.tuner()
    for _ in range(12):
        await harness.tick(again, AWAY, AWAY)
        assert harness.condition(TUNED) == ("True", "Applied")


@in_virtual_time
async def test_an_operator_that_starts_while_tuning_is_paused_knows_that_the_service_was_tuned() -> None:
    harness = Harness()
    tuner = await settled(harness)
    harness.annotate(tuning="Paused")
    await harness.tick(tuner, busy(), COUNTS)
    assert harness.condition(TUNED) == ("False", "Paused")
    harness.epoch, again = 2, harness.tuner()
    await harness.tick(again, AWAY, AWAY)
    harness.annotate()
    for _ in range(3):
        await harness.tick(again, AWAY, AWAY)
    assert harness.condition(TUNED) == ("True", "Applied")


@in_virtual_time
async def test_one_late_answer_of_prometheus_changes_no_condition() -> None:
    harness = Harness()
    tuner = await settled(harness)
    assert harness.condition(MET) == ("True", "Met")
    before = len(harness.written)
    late = Unobserved(Missing.TIMED_OUT, "Prometheus did not answer in 4 s")
    await harness.tick(tuner, late, late)
    await harness.tick(tuner, busy(), COUNTS)
    assert [s["conditions"] for s in harness.written[before:]] == []


@in_virtual_time
async def test_a_decision_that_could_not_be_written_is_not_made_live_in_an_outage() -> None:
    harness = Harness()
    tuner = harness.tuner()
    await harness.tick(tuner, AWAY)
    held = harness.engines.limits()
    harness.api_away = True
    harness.update_pods(tuner)
    with pytest.raises(UnavailableError):
        await tuner.tick(busy(), Attainment(outcomes=COUNTS))
    harness.api_away = False
    for _ in range(20):
        await harness.tick(tuner, AWAY, AWAY)
    assert harness.engines.limits() == held
    await harness.tick(tuner, busy(), COUNTS)
    assert harness.engines.limits() != held


@in_virtual_time
async def test_a_decision_taken_while_the_lease_was_not_sure_is_not_made_live_in_an_outage() -> None:
    harness = Harness()
    tuner = harness.tuner()
    await harness.tick(tuner, AWAY)
    held = harness.engines.limits()
    harness.leading = False
    await harness.tick(tuner, busy(), COUNTS)
    harness.leading = True
    for _ in range(20):
        await harness.tick(tuner, AWAY, AWAY)
    assert harness.engines.limits() == held


@in_virtual_time
async def test_a_pod_that_comes_later_tells_which_limit_it_cannot_move() -> None:
    harness = Harness(engines=Engines(unsupported={Knob.MAX_NUM_ACTIVE_SEQS: "this engine has none"}))
    tuner = harness.tuner()
    await harness.tick(tuner, busy(), COUNTS)
    harness.engines.held["pod-1"] = None
    for _ in range(30):
        await harness.tick(tuner, busy(), COUNTS)
    assert harness.condition(TUNED) == ("False", "KnobUnsupported")
    assert harness.engines.limits()[1] != 2048


@in_virtual_time
async def test_limits_hold_over_a_restart_where_one_of_them_cannot_be_moved() -> None:
    harness = Harness(engines=Engines("pod-1", unsupported={Knob.MAX_NUM_ACTIVE_SEQS: "this engine has none"}))
    tuner = harness.tuner()
    for _ in range(30):
        await harness.tick(tuner, busy(), COUNTS)
    held, harness.epoch = harness.engines.limits(), 2
    assert held[1] != 2048
    again = harness.tuner()
    for _ in range(5):
        await harness.tick(again, AWAY, AWAY)
    assert [held.epoch for held in harness.engines.held.values() if held is not None] == [2]
    assert harness.engines.limits() == held


@in_virtual_time
async def test_an_engine_whose_watchdog_tripped_is_not_tuned_until_the_next_change() -> None:
    harness = Harness()
    tuner = await settled(harness)
    (_, asked), writes = harness.engines.limits(), harness.engines.writes
    harness.engines.trip()
    for _ in range(60):
        await harness.tick(tuner, busy(), COUNTS)
    assert harness.condition(TUNED) == ("False", "WatchdogTripped")
    assert harness.message(TUNED).startswith("pod-1: requests stood still, start values hold until the next change: ")
    assert f"max_num_scheduled_tokens is 2048, not {asked}" in harness.message(TUNED)
    assert harness.service.status.tuning.applied_pods == "0/1"
    assert harness.engines.writes == writes, "the same setpoint would bring the same stall"
    assert harness.events.count("WatchdogTripped") == 1
    harness.edit(tuning={"mode": "Auto", "bounds": {"maxNumActiveSeqs": {"min": 1, "max": 2}}})
    await harness.tick(tuner, busy(), COUNTS)
    assert harness.condition(TUNED) == ("True", "Applied")
    assert harness.engines.limits()[0] == 2


@in_virtual_time
async def test_each_trip_of_each_pod_is_told() -> None:
    harness = Harness(engines=Engines("pod-1", "pod-2"))
    tuner = await settled(harness)
    for pod in ("pod-1", "pod-2"):
        harness.engines.trip(pod)
        for _ in range(10):
            await harness.tick(tuner, busy(), COUNTS)
    assert harness.events.count("WatchdogTripped") == 2
    assert harness.service.status.tuning.applied_pods == "0/2"


@in_virtual_time
async def test_a_trip_that_a_change_has_ended_is_told_too() -> None:
    harness = Harness()
    tuner = await settled(harness)
    harness.engines.trip()
    harness.edit(tuning={"mode": "Auto", "bounds": {"maxNumActiveSeqs": {"min": 1, "max": 2}}})
    await harness.tick(tuner, busy(), COUNTS)
    assert harness.condition(TUNED) == ("True", "Applied")
    assert harness.events.count("WatchdogTripped") == 1


@in_virtual_time
async def test_a_pod_that_goes_while_another_one_is_read_back_hurts_nobody() -> None:
    harness = Harness(engines=Engines("pod-1", "pod-2"))
    tuner = await settled(harness)
    held, read = harness.held(), harness.engines.read

    async def slowly(address: Address) -> ReadBack:
        harness.engines.held.pop("pod-2", None)
        harness.update_pods(tuner)
        if address.key not in harness.engines.held:
            raise UnreachableError("it is gone")
        return await read(address)

    await asyncio.sleep(VERIFY_SECONDS)
    harness.engines.read = slowly  # type: ignore[method-assign]
    await tuner.keep()
    assert harness.held() == held


@in_virtual_time
async def test_between_ticks_only_a_tuner_with_something_to_do_is_woken() -> None:
    harness = Harness()
    tuner = await settled(harness)
    await asyncio.sleep(VERIFY_SECONDS)
    assert tuner.to_be_kept()
    await tuner.keep()
    assert not tuner.to_be_kept()
    harness.engines.held["pod-2"] = None
    harness.update_pods(tuner)
    assert tuner.to_be_kept(), "a pod came that was told nothing"
    await tuner.keep()
    assert not tuner.to_be_kept()
    harness.edit(tuning={"mode": "Disabled"})
    harness.update_pods(tuner)
    assert tuner.to_be_kept()
    await tuner.keep()
    assert not tuner.to_be_kept()


@in_virtual_time
async def test_a_service_that_is_taken_up_again_counts_on_though_its_status_is_seen_late() -> None:
    harness = Harness()
    dependencies, late = harness.dependencies(), harness.service
    tuner = ServiceTuner(harness.service, dependencies)
    for _ in range(5):
        await harness.tick(tuner, busy(), COUNTS)
    given = harness.held()
    await tuner.close()
    again = ServiceTuner(late, dependencies)
    await harness.tick(again, busy(), COUNTS)
    assert harness.held() == given
    harness.edit(tuning={"mode": "Disabled"})
    await harness.tick(again, busy(), COUNTS)
    assert harness.held().order() > given.order()
    assert harness.raised == [], "what this process gave is no stranger's"


@in_virtual_time
async def test_an_outage_that_goes_on_is_told_once() -> None:
    harness = Harness()
    tuner = await settled(harness)
    for tick in range(6):
        await harness.tick(tuner, signals(now(), age=21 + 5 * tick), COUNTS)
    assert harness.condition(OBSERVED) == ("False", "StaleMetrics")
    before = len(harness.written)
    for tick in range(30):
        await harness.tick(tuner, signals(now(), age=51 + 5 * tick), COUNTS)
    assert [s["conditions"] for s in harness.written[before:]] == []


@in_virtual_time
async def test_an_api_server_that_is_away_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness(api_away=True)
    tuner = asyncio.create_task(
        Tuner(services=harness, reader=ScriptedReader(busy()), dependencies=harness.dependencies()).run()
    )
    await asyncio.sleep(30)
    assert "the API server is away" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    harness.api_away = False
    await asyncio.sleep(10)
    assert harness.written
    tuner.cancel()
    await asyncio.gather(tuner, return_exceptions=True)


@in_virtual_time
async def test_a_lease_that_was_lost_is_no_newer_leader() -> None:
    harness = Harness()
    tuner = await settled(harness)
    harness.leading, harness.epoch = False, 0
    await harness.tick(tuner, busy(), COUNTS)
    assert harness.condition(TUNED) != ("False", "NewerLeader")
    assert "NewerLeader" not in harness.events
