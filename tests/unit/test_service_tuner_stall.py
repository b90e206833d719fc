"""One service whose engines let nobody in though slots are free: it is named, and what worked before comes back."""

from __future__ import annotations

from typing import Any

from flyball_lab.harness.service_tuners import Engines, Harness
from flyball_lab.harness.tuning import signals, step_window
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.tuning.observe.signals import Signals
from flyball_operator.tuning.tunables import TUNABLES

TUNED = ConditionType.TUNED


def busy() -> Signals:
    return signals(now())


def slower() -> Signals:
    """Steps that take twice as long: the law wants other limits."""
    return signals(now(), window=step_window(start=now() - 15, end=now(), slower=2.0))


async def seconds(harness: Harness, tuner: Any, count: float, seen: Any = busy) -> None:
    for _ in range(int(count / 5)):
        await harness.tick(tuner, seen())


def reasons(harness: Harness) -> list[str]:
    return [decision.trigger for decision in harness.service.status.tuning.decisions]


@in_virtual_time
async def test_what_worked_before_comes_back_and_is_held() -> None:
    harness = Harness()
    tuner = harness.tuner()
    await seconds(harness, tuner, 180)
    worked = harness.engines.limits()
    while harness.engines.limits() == worked:
        await seconds(harness, tuner, 5, slower)
    harness.engines.stuck = {"pod-1"}
    await seconds(harness, tuner, 60, slower)
    assert harness.condition(TUNED) == ("True", "Applied"), "the engine's own watchdog goes first"
    await seconds(harness, tuner, 60, slower)
    assert harness.condition(TUNED) == ("False", "AdmissionStuck")
    assert "pod-1: requests wait, places are free" in harness.message(TUNED)
    assert harness.engines.limits() == worked
    assert "stand still on pod-1 with places free: what worked before" in reasons(harness)[0]
    harness.engines.stuck = set()
    await seconds(harness, tuner, TUNABLES.rollback_hold - 120, slower)
    assert harness.engines.limits() == worked
    assert harness.condition(TUNED) == ("True", "Applied")
    assert harness.events.count("AdmissionStuck") == 1
    await seconds(harness, tuner, 240, slower)
    assert harness.engines.limits() != worked, "the law may try again"


@in_virtual_time
async def test_where_that_is_what_stands_still_the_gate_opens_and_limits_are_those_of_the_start() -> None:
    harness = Harness()
    harness.sheds()
    tuner = harness.tuner()
    await seconds(harness, tuner, 180)
    assert harness.held().shed is not None
    harness.engines.stuck = {"pod-1"}
    await seconds(harness, tuner, 120)
    assert (harness.engines.limits(), harness.held().shed, harness.held().step) == ((128, 2048), None, None)
    assert "start values" in reasons(harness)[0]
    changes = len(reasons(harness))
    await seconds(harness, tuner, 3 * TUNABLES.rollback_hold)
    assert len(reasons(harness)) == changes, "there is nothing else to fall back to"


@in_virtual_time
async def test_one_of_many_pods_is_named_and_the_policy_left_alone() -> None:
    harness = Harness(engines=Engines("pod-1", "pod-2", "pod-3"))
    tuner = harness.tuner()
    await seconds(harness, tuner, 180)
    held = harness.held().generation
    harness.engines.stuck = {"pod-2"}
    await seconds(harness, tuner, 180)
    assert harness.condition(TUNED) == ("False", "AdmissionStuck")
    assert harness.message(TUNED).startswith("pod-2: ")
    assert harness.held().generation == held


@in_virtual_time
async def test_a_core_that_makes_no_step_is_helped_by_no_policy() -> None:
    harness = Harness()
    tuner = harness.tuner()
    await seconds(harness, tuner, 180)
    held = harness.held().generation
    harness.engines.stuck = harness.engines.frozen = {"pod-1"}
    await seconds(harness, tuner, 180)
    assert harness.condition(TUNED) == ("False", "AdmissionStuck")
    assert harness.message(TUNED).endswith("no step was made")
    assert harness.held().generation == held


@in_virtual_time
async def test_the_start_values_that_a_watchdog_put_in_force_stay() -> None:
    harness = Harness()
    tuner = harness.tuner()
    await seconds(harness, tuner, 180)
    held = harness.held().generation
    harness.engines.stuck = {"pod-1"}
    harness.engines.trip()
    await seconds(harness, tuner, 180)
    assert harness.condition(TUNED) == ("False", "WatchdogTripped")
    assert (harness.engines.limits(), harness.held().generation) == ((128, 2048), held)


@in_virtual_time
async def test_while_it_is_paused_it_is_only_said() -> None:
    harness = Harness()
    tuner = harness.tuner()
    await seconds(harness, tuner, 180)
    held = harness.held().generation
    harness.annotate(tuning="Paused")
    harness.engines.stuck = {"pod-1"}
    await seconds(harness, tuner, 240)
    assert harness.held().generation == held
    assert "pod-1: requests wait, places are free" in harness.message(TUNED)
