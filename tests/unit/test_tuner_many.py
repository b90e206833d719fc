"""The tuner with many services: none waits for long, and they do not all do the same in the same tick."""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from flyball_lab.harness.service_tuners import AWAY, Harness
from flyball_lab.harness.tuners import ScriptedReader, inference_service
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.tuning.service_tuner import ServiceTuner
from flyball_operator.tuning.tuner import BEGUN_AT_ONCE, TICKS_OF_A_WINDOW, Tuner, collect_garbage_seldom


@dataclass
class Many(Harness):
    """Surroundings with other services than one."""

    services: list[InferenceService] = field(default_factory=list)

    def all(self) -> list[InferenceService]:
        return self.services


def numbered(*numbers: int) -> list[InferenceService]:
    return [inference_service(f"uid-{number}", name=f"chat-{number}") for number in numbers]


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """When each service, by its name, had its ticks, in seconds since the first of all."""
    seen: dict[str, list[float]] = defaultdict(list)
    began: list[float] = []

    async def tick(tuner: ServiceTuner, *_: Any) -> None:
        began[:] = began or [now()]
        seen[tuner.labels[1]].append(now() - began[0])

    async def take_over(_: ServiceTuner) -> None:
        """Nothing runs."""

    monkeypatch.setattr(ServiceTuner, "tick", tick)
    monkeypatch.setattr(ServiceTuner, "take_over", take_over)
    return seen


@pytest.fixture
def thresholds() -> Iterator[None]:
    """Those of garbage collection are the process's: as they were, in the end."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


async def work(harness: Many, seconds: float) -> None:
    tuner = asyncio.create_task(
        Tuner(services=harness, reader=ScriptedReader(AWAY), dependencies=harness.dependencies()).run()
    )
    await asyncio.sleep(seconds)
    tuner.cancel()
    await asyncio.gather(tuner, return_exceptions=True)


@in_virtual_time
async def test_many_services_are_taken_up_one_part_in_each_tick_of_a_window(ticks: dict[str, list[float]]) -> None:
    share = 2 * BEGUN_AT_ONCE
    await work(Many(services=numbered(*range(TICKS_OF_A_WINDOW * share))), 31)
    firsts = [times[0] for times in ticks.values()]
    assert len(firsts) == TICKS_OF_A_WINDOW * share
    groups = [sum(5 * part <= first < 5 * part + 5 for first in firsts) for part in range(TICKS_OF_A_WINDOW)]
    assert groups == [share] * TICKS_OF_A_WINDOW
    assert all(later - earlier <= 5 for times in ticks.values() for earlier, later in pairwise(times))


@in_virtual_time
async def test_a_few_services_begin_at_once(ticks: dict[str, list[float]]) -> None:
    await work(Many(services=numbered(*range(BEGUN_AT_ONCE))), 1)
    assert [times[0] for times in ticks.values()] == [0.0] * BEGUN_AT_ONCE


@in_virtual_time
async def test_a_service_that_comes_later_waits_for_nobody(ticks: dict[str, list[float]]) -> None:
    harness = Many(services=numbered(*range(BEGUN_AT_ONCE)))
    tuner = asyncio.create_task(work(harness, 60))
    await asyncio.sleep(22)
    harness.services = [*harness.services, *numbered(1000)]
    await asyncio.sleep(3)
    assert ticks["chat-1000"]
    await tuner


@in_virtual_time
async def test_what_runs_is_taken_over_in_the_first_tick_by_all(
    ticks: dict[str, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_over: set[str] = set()

    async def take_over(tuner: ServiceTuner) -> None:
        taken_over.add(tuner.labels[1])

    monkeypatch.setattr(ServiceTuner, "take_over", take_over)
    many = range(3 * BEGUN_AT_ONCE)
    await work(Many(services=numbered(*many)), 1)
    assert taken_over | ticks.keys() == {f"chat-{number}" for number in many}


@in_virtual_time
async def test_a_service_whose_watch_fails_stops_no_other(
    ticks: dict[str, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def to_be_kept(tuner: ServiceTuner) -> bool:
        if tuner.labels[1] == "chat-0":
            raise RuntimeError
        return False

    monkeypatch.setattr(ServiceTuner, "to_be_kept", to_be_kept)
    await work(Many(services=numbered(0, 1)), 31)
    assert len(ticks["chat-0"]) == len(ticks["chat-1"]) >= 7


@in_virtual_time
@pytest.mark.usefixtures("ticks")
async def test_generations_are_remembered_of_all_services_and_of_some_that_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flyball_operator.tuning.tuner.GONE_REMEMBERED", 2, raising=False)
    harness = Many(services=numbered(*range(6)))
    dependencies = harness.dependencies()
    dependencies.given.update({f"uid-{number}": 7 for number in range(6)})
    tuner = asyncio.create_task(Tuner(services=harness, reader=ScriptedReader(AWAY), dependencies=dependencies).run())
    await asyncio.sleep(11)
    assert len(dependencies.given) == 6
    harness.services = numbered(0)
    await asyncio.sleep(11)
    assert dependencies.given == {"uid-0": 7, "uid-4": 7, "uid-5": 7}
    tuner.cancel()
    await asyncio.gather(tuner, return_exceptions=True)


@in_virtual_time
async def test_of_services_that_are_another_replicas_no_series_are_left(ticks: dict[str, list[float]]) -> None:
    harness = Many(services=numbered(*range(3)))
    dependencies = harness.dependencies()
    tuner = Tuner(services=harness, reader=ScriptedReader(AWAY), dependencies=dependencies)
    running = asyncio.create_task(tuner.run())
    await asyncio.sleep(10)
    dependencies.metrics.paused("team", "chat-1", paused=True)
    assert dependencies.metrics.services._value.get() == 3
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await tuner.close()
    assert dependencies.metrics.services._value.get() == 0
    assert ("team", "chat-1") not in dependencies.metrics._paused._metrics


@pytest.mark.parametrize(("services", "objects"), [(1, 20_000), (100, 20_000), (300, 60_000)])
@in_virtual_time
@pytest.mark.usefixtures("ticks", "thresholds")
async def test_garbage_of_watch_events_is_kept_by_the_number_of_services(services: int, objects: int) -> None:
    collect_garbage_seldom()
    await work(Many(services=numbered(*range(services))), 1)
    assert gc.get_threshold()[0] == objects
