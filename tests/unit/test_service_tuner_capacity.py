"""One service whose pods carry its load, or not: what status, events and autoscalers are told."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from flyball_lab.harness.service_tuners import AWAY, WITH_DEADLINE, Harness
from flyball_lab.harness.tuners import ScriptedReader
from flyball_lab.harness.tuning import TPOT, TTFT, signals, tuning
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.tuning.capacity import Carried, weighed
from flyball_operator.tuning.metrics import TunerMetrics
from flyball_operator.tuning.observe.signals import Signals
from flyball_operator.tuning.report.capacity_report import STALE_SECONDS
from flyball_operator.tuning.service_tuner import ServiceTuner
from flyball_operator.tuning.tunables import TUNABLES
from flyball_operator.tuning.tuner import Tuner

CAPACITY = ConditionType.CAPACITY_SUFFICIENT


def calm() -> Signals:
    return signals(now())


def crowded() -> Signals:
    """Far more than one pod carries, most of it refused."""
    return signals(now(), refused=60.0)


def idle() -> Signals:
    """Nobody asks for anything, and nothing is left of who did."""
    return signals(
        now(), arrivals=0.0, finished=0.0, prompt_tokens=0.0, generated_tokens=0.0, running=0.0, held_tokens=0.0
    )  # fmt: skip


async def minutes(harness: Harness, tuner: Any, count: float, seen: Any = calm) -> None:
    for _ in range(int(12 * count)):
        await harness.tick(tuner, seen())


def serving(**spec: Any) -> Harness:
    harness = Harness()
    harness.sheds()
    harness.edit(**spec)
    return harness


@in_virtual_time
async def test_after_a_minute_status_says_what_the_pods_carry() -> None:
    harness = serving()
    tuner = harness.tuner()
    await minutes(harness, tuner, 0.5)
    assert harness.condition(CAPACITY) == ("Unknown", "Learning")
    assert harness.service.status.tuning.capacity == ""
    assert harness.service.status.desired_replicas is None, "no advice while nothing is known"
    await minutes(harness, tuner, 3)
    assert harness.condition(CAPACITY) == ("True", "Sufficient")
    capacity = harness.service.status.tuning.capacity
    assert float(capacity) > 4
    assert harness.service.status.tuning.arrivals == "4"
    assert harness.message(CAPACITY) == f"carries {capacity} requests/s at the objectives, 4 arrive"
    assert harness.service.status.desired_replicas == 1
    assert not [event for event in harness.events if event.startswith("Capacity")]


@in_virtual_time
async def test_an_overload_is_told_once_and_its_end_once() -> None:
    harness = serving()
    tuner = harness.tuner()
    await minutes(harness, tuner, 3)
    await minutes(harness, tuner, 5, crowded)
    assert harness.condition(CAPACITY) == ("False", "Overloaded")
    assert "1 pod carries" in harness.message(CAPACITY)
    assert harness.message(CAPACITY).endswith(f"{harness.service.status.desired_replicas} pods would do")
    assert (harness.service.status.desired_replicas or 0) > 1
    await minutes(harness, tuner, 5)
    assert harness.condition(CAPACITY) == ("True", "Sufficient")
    await minutes(harness, tuner, 6)
    assert harness.service.status.desired_replicas == 1
    told = [event for event in harness.events if event.startswith("Capacity")]
    assert told == ["CapacityOverloaded", "CapacitySufficient"]


@in_virtual_time
async def test_objectives_that_no_engine_keeps_are_named() -> None:
    first, token = WITH_DEADLINE
    harness = serving(objectives=[first | {"threshold": "5ms"}, token])
    await minutes(harness, harness.tuner(), 3)
    assert harness.condition(CAPACITY) == ("False", "Infeasible")
    assert harness.message(CAPACITY).startswith(
        "even an idle engine cannot keep ttft within 5ms, the least that it can keep is "
    )
    assert harness.events.count("CapacityInfeasible") == 1
    assert harness.service.status.tuning.capacity == "0"


@in_virtual_time
async def test_of_edited_objectives_nothing_is_said_that_was_found_of_the_old_ones() -> None:
    first, token = WITH_DEADLINE
    harness = serving(objectives=[first | {"threshold": "5ms"}, token])
    tuner = harness.tuner()
    await minutes(harness, tuner, 3)
    assert harness.condition(CAPACITY) == ("False", "Infeasible")
    harness.edit(objectives=[first, token])
    harness.update_pods(tuner)
    await tuner.keep()
    assert harness.condition(CAPACITY) == ("Unknown", "Learning")
    await minutes(harness, tuner, 3)
    assert harness.condition(CAPACITY) == ("True", "Sufficient")


@in_virtual_time
async def test_an_operator_that_starts_says_the_same() -> None:
    harness = serving()
    tuner = harness.tuner()
    await minutes(harness, tuner, 3)
    await minutes(harness, tuner, 5, crowded)
    said, advised = harness.condition(CAPACITY), harness.service.status.desired_replicas
    before, harness.epoch = len(harness.written), 2
    again = harness.tuner()
    for _ in range(6):
        await harness.tick(again, crowded())
    assert [s["conditions"] for s in harness.written[before:]] == []
    await minutes(harness, again, 3, crowded)
    assert (harness.condition(CAPACITY), harness.service.status.desired_replicas) == (said, advised)
    assert harness.events.count("CapacityOverloaded") == 1


@in_virtual_time
async def test_in_the_dark_it_is_unknown_and_the_advice_stands() -> None:
    harness = serving()
    tuner = harness.tuner()
    await minutes(harness, tuner, 3)
    await minutes(harness, tuner, 5, crowded)
    advised = harness.service.status.desired_replicas
    for _ in range(20):
        await harness.tick(tuner, AWAY, AWAY)
    assert harness.condition(CAPACITY) == ("Unknown", "NotObserved")
    assert harness.service.status.desired_replicas == advised
    told = harness.service.status.tuning
    assert (told.arrivals, bool(told.capacity)) == ("", True), "what they carry is still known, not what comes"


@in_virtual_time
async def test_advice_of_long_ago_is_told_no_more_and_comes_back_with_the_signals() -> None:
    harness = serving()
    tuner = harness.tuner()
    await minutes(harness, tuner, 3)
    await minutes(harness, tuner, 5, crowded)
    advised = harness.service.status.desired_replicas
    await minutes(harness, tuner, STALE_SECONDS / 60 - 1, lambda: AWAY)
    assert harness.service.status.desired_replicas == advised
    await minutes(harness, tuner, 3, lambda: AWAY)
    assert "desiredReplicas" not in harness.written[-1]
    assert harness.service.status.tuning.capacity == ""
    assert harness.condition(CAPACITY) == ("Unknown", "NotObserved")
    await minutes(harness, tuner, 2, crowded)
    assert harness.condition(CAPACITY) == ("False", "Overloaded")
    assert harness.service.status.desired_replicas == advised


@in_virtual_time
async def test_a_load_that_ended_before_a_restart_needs_no_estimate_to_need_fewer() -> None:
    harness = serving()
    await minutes(harness, harness.tuner(), 5, crowded)
    assert harness.service.status.desired_replicas == 4
    harness.epoch, registry = 2, CollectorRegistry()
    again = ServiceTuner(harness.service, replace(harness.dependencies(), metrics=TunerMetrics(registry)))

    def advised() -> tuple[int | None, float | None]:
        """What users read, and what another autoscaler does: without a series it would leave the pods."""
        service = harness.service
        labels = {"namespace": service.metadata.namespace, "service": service.metadata.name}
        return service.status.desired_replicas, registry.get_sample_value("flyball_operator_desired_replicas", labels)

    await minutes(harness, again, 4.5, idle)
    assert advised() == (4, 4.0)
    await minutes(harness, again, 20, idle)
    assert advised() == (1, 1.0)
    assert harness.condition(CAPACITY) == ("Unknown", "NoRequests"), "the last leader's verdict is of another time"
    assert not harness.service.status.tuning.capacity
    await minutes(harness, again, 0.5, lambda: AWAY)
    assert advised() == (1, 1.0), "the advice stands"
    await minutes(harness, again, STALE_SECONDS / 60, lambda: AWAY)
    assert advised() == (None, None)


@in_virtual_time
async def test_of_a_service_that_is_tuned_no_more_nothing_is_claimed() -> None:
    harness = serving()
    tuner = Tuner(services=harness, reader=ScriptedReader(calm()), dependencies=harness.dependencies())
    work = asyncio.create_task(tuner.run())
    await asyncio.sleep(120)
    assert harness.service.status.desired_replicas == 1
    harness.tuned = False
    await asyncio.sleep(5)
    assert harness.condition(CAPACITY) == harness.condition(ConditionType.TUNED) == ("Unknown", "NotTuned")
    assert "desiredReplicas" not in harness.written[-1]
    assert harness.service.status.tuning.model.trusted, "what was learnt is kept for when it is tuned again"
    harness.tuned = True
    await asyncio.sleep(120)
    assert harness.condition(ConditionType.TUNED) == ("True", "Applied")
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


@in_virtual_time
async def test_other_objectives_are_learnt_of_anew() -> None:
    harness = serving()
    tuner = harness.tuner()
    await minutes(harness, tuner, 3)
    harness.edit(objectives=[WITH_DEADLINE[0]])
    await harness.tick(tuner, calm())
    assert harness.condition(CAPACITY) == ("Unknown", "Learning")
    harness.edit(objectives=[], tuning={"mode": "Auto"})
    await harness.tick(tuner, calm())
    assert harness.condition(CAPACITY) == ("Unknown", "NoObjectives")
    assert "desiredReplicas" not in harness.written[-1]


@in_virtual_time
async def test_a_load_that_scatters_changes_no_word() -> None:
    harness = serving()
    tuner = harness.tuner()
    await minutes(harness, tuner, 5)
    told = harness.service.status.tuning
    said = {(harness.message(CAPACITY), told.arrivals, told.capacity)}
    for number in range(60):
        await harness.tick(tuner, signals(now(), arrivals=4.0 + 0.3 * (number % 3 - 1)))
        told = harness.service.status.tuning
        said.add((harness.message(CAPACITY), told.arrivals, told.capacity))
    assert len(said) == 1


def test_autoscalers_read_both_figures_while_they_are_known() -> None:
    registry, spec, known = CollectorRegistry(), tuning(TTFT, TPOT), None
    metrics = TunerMetrics(registry)
    for number in range(6):
        metrics.capacity("team", "chat", known, nodes=1)
        assert "chat" not in generate_latest(registry).decode()
        known = weighed(
            known,
            Carried(rate=5.0),
            arrivals=14.0,
            cores=2,
            pods=2,
            spec=spec,
            now=TUNABLES.window_seconds * min(number, 3),
        )
    settled = weighed(known, Carried(rate=5.0), arrivals=14.0, cores=2, pods=2, spec=spec, now=60.0)
    metrics.capacity("team", "chat", settled, nodes=1)
    page = generate_latest(registry).decode()
    assert 'flyball_operator_capacity_requests_per_second{namespace="team",service="chat"} 10.0' in page
    assert 'flyball_operator_desired_replicas{namespace="team",service="chat"} 3.0' in page
    metrics.capacity("team", "chat", settled, nodes=2)
    of_groups = generate_latest(registry).decode()
    assert 'flyball_operator_desired_replicas{namespace="team",service="chat"} 2.0' in of_groups, "of two pods each"
    metrics.forget("team", "chat")
    assert "chat" not in generate_latest(registry).decode()
    metrics.capacity("team", "chat", settled, nodes=1)
    assert "chat" in generate_latest(registry).decode(), "one that comes back is shown, be its figures the same"
