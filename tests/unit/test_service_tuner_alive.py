"""One service whose loop turns and does nothing, or does not turn: both are said, with the cause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from flyball_lab.harness.manifests import Object
from flyball_lab.harness.service_tuners import AWAY, Harness
from flyball_lab.harness.tuners import ScriptedReader
from flyball_lab.harness.tuning import signals, step_window
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import ConditionType, InferenceService
from flyball_operator.tuning.dependencies import LATE_SECONDS
from flyball_operator.tuning.metrics import TunerMetrics
from flyball_operator.tuning.observe.signals import Observation
from flyball_operator.tuning.ports import EventType
from flyball_operator.tuning.report.decision_age import NOT_DECIDING_SECONDS
from flyball_operator.tuning.tuner import Tuner

TUNED = ConditionType.TUNED
MINUTES = int(NOT_DECIDING_SECONDS / 60)


def alike() -> Observation:
    """Requests enough, but all steps are of one size: no model comes of them."""
    window = step_window(start=now() - 15, end=now(), decodes=(60,), prefills=(900,))
    return signals(now(), window=window)


async def minutes(harness: Harness, tuner: Any, count: int, seen: Any) -> None:
    for _ in range(12 * count):
        await harness.tick(tuner, seen() if callable(seen) else seen)


async def tuned(harness: Harness) -> Any:
    tuner = harness.tuner()
    await minutes(harness, tuner, 1, lambda: signals(now()))
    assert harness.condition(TUNED) == ("True", "Applied")
    return tuner


@in_virtual_time
async def test_minutes_of_requests_without_signals_are_no_tuning_and_say_what_is_missing() -> None:
    harness = Harness()
    tuner = await tuned(harness)
    harness.engines.running = 3
    await minutes(harness, tuner, MINUTES - 1, AWAY)
    assert harness.condition(TUNED) == ("True", "Applied")
    held = harness.engines.limits()
    await minutes(harness, tuner, 2, AWAY)
    assert harness.condition(TUNED) == ("False", "NotDeciding")
    assert "PrometheusUnreachable: connection refused" in harness.message(TUNED)
    assert harness.engines.limits() == held
    await minutes(harness, tuner, 3, AWAY)
    await minutes(harness, tuner, 1, lambda: signals(now()))
    assert harness.condition(TUNED) == ("True", "Applied")
    assert harness.events.count("NotDeciding") == 1


@in_virtual_time
async def test_without_requests_there_is_nothing_to_miss() -> None:
    harness = Harness()
    tuner = await tuned(harness)
    await minutes(harness, tuner, MINUTES + 3, AWAY)
    assert harness.condition(TUNED) == ("True", "Applied")


@in_virtual_time
async def test_a_model_that_does_not_come_is_said_with_what_is_wrong_with_it() -> None:
    harness = Harness()
    tuner = harness.tuner()
    await minutes(harness, tuner, MINUTES - 1, alike)
    assert harness.condition(TUNED) == ("False", "Learning")
    await minutes(harness, tuner, 2, alike)
    assert harness.condition(TUNED) == ("False", "NotDeciding")
    assert "the step-time model is not trusted: all engine steps seen are of like size" in harness.message(TUNED)


@in_virtual_time
async def test_a_new_leader_goes_on_saying_it_and_a_mode_that_decides_nothing_never_does() -> None:
    harness = Harness()
    tuner = await tuned(harness)
    harness.engines.running = 3
    await minutes(harness, tuner, MINUTES + 1, AWAY)
    harness.epoch = 2
    again = harness.tuner()
    await minutes(harness, again, 2, AWAY)
    assert harness.condition(TUNED) == ("False", "NotDeciding")
    assert harness.events.count("NotDeciding") == 1
    harness.edit(tuning={"mode": "Recommend"})
    await minutes(harness, again, 1, AWAY)
    assert harness.condition(TUNED) == ("False", "RecommendOnly")


@dataclass
class SlowHarness(Harness):
    """Events take for ever until they are let through."""

    through: asyncio.Event = field(default_factory=asyncio.Event)

    async def post(self, service: InferenceService, *, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        await self.through.wait()
        self.events.append(reason)


@asynccontextmanager
async def working(
    harness: Harness, registry: CollectorRegistry, metrics: TunerMetrics | None = None
) -> AsyncIterator[Tuner]:
    """A tuner at work in virtual time. `metrics`: by default its own, in the registry."""
    dependencies = replace(harness.dependencies(), metrics=metrics or TunerMetrics(registry))
    tuner = Tuner(services=harness, reader=ScriptedReader(signals(now())), dependencies=dependencies)
    task = asyncio.create_task(tuner.run())
    try:
        yield tuner
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def age(registry: CollectorRegistry, name: str) -> float:
    """The seconds that a gauge shows."""
    page = generate_latest(registry).decode()
    (line,) = [line for line in page.splitlines() if line.startswith(f"flyball_operator_{name}_age_seconds{{")]
    return float(line.rpartition(" ")[2])


@in_virtual_time
async def test_ticks_that_fail_are_said_in_status_with_the_error() -> None:
    harness, registry = Harness(), CollectorRegistry()
    async with working(harness, registry):
        await asyncio.sleep(60)
        assert harness.condition(TUNED) == ("True", "Applied")
        harness.engines.broken = True
        await asyncio.sleep(2 * LATE_SECONDS)
        assert age(registry, "tick") > LATE_SECONDS
        assert harness.condition(TUNED) == ("Unknown", "LoopStalled")
        assert "the last one failed: RuntimeError: a bug in the client" in harness.message(TUNED)
        harness.engines.broken = False
        await asyncio.sleep(20)
        assert age(registry, "tick") < 20
        assert harness.condition(TUNED) == ("True", "Applied")
    assert harness.events.count("LoopStalled") == 1


@in_virtual_time
async def test_a_tick_that_hangs_is_said_over_its_head() -> None:
    harness, registry = SlowHarness(), CollectorRegistry()
    async with working(harness, registry) as tuner:
        await asyncio.sleep(3 * LATE_SECONDS)
        assert harness.condition(TUNED) == ("Unknown", "LoopStalled")
        assert "the last one has not ended" in harness.message(TUNED)
        assert tuner.idle() < 10, "the others are looked at"
        harness.through.set()
        await asyncio.sleep(60)
        assert harness.condition(TUNED) == ("True", "Applied")


@in_virtual_time
async def test_a_read_of_prometheus_that_never_ends_ends_the_process() -> None:
    class Hung(ScriptedReader):
        async def read(self, pods: Any) -> Any:
            await asyncio.Event().wait()

    harness = Harness()
    tuner = Tuner(services=harness, reader=Hung(AWAY), dependencies=harness.dependencies())
    task = asyncio.create_task(tuner.run())
    await asyncio.sleep(300)
    assert tuner.idle() >= 300, "/healthz looks at this"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@in_virtual_time
async def test_the_age_of_the_last_decision_grows_while_nothing_is_seen() -> None:
    harness, registry = Harness(), CollectorRegistry()
    harness.engines.running = 1
    its_dependencies = replace(harness.dependencies(), metrics=TunerMetrics(registry))
    tuner = type(harness.tuner())(harness.service, its_dependencies)
    await minutes(harness, tuner, 1, lambda: signals(now()))
    assert age(registry, "decision") <= 5
    await minutes(harness, tuner, 2, AWAY)
    assert age(registry, "decision") >= 120
    assert age(registry, "tick") <= 5


@dataclass
class SlowToWrite(Harness):
    """Writes of status take until they are let through."""

    through: asyncio.Event = field(default_factory=asyncio.Event)

    async def apply(self, resource: object, body: Object, *, subresource: str) -> Object:
        await self.through.wait()
        return await super().apply(resource, body, subresource=subresource)


@in_virtual_time
async def test_what_a_tick_still_did_of_a_service_that_is_gone_is_shown_no_more() -> None:
    harness, registry = SlowToWrite(), CollectorRegistry()
    harness.through.set()
    async with working(harness, registry):
        await asyncio.sleep(30)
        assert 'service="chat"' in generate_latest(registry).decode()
        harness.through.clear()
        harness.edit(tuning={"mode": "Disabled"})
        await asyncio.sleep(6)
        harness.tuned = False
        await asyncio.sleep(3)
        harness.through.set()
        await asyncio.sleep(20)
        assert harness.engines.limits() == (128, 2048), "it came to its end"
        assert 'service="chat"' not in generate_latest(registry).decode()


@pytest.mark.parametrize("first_gone", [True, False])
@in_virtual_time
async def test_a_service_made_again_in_another_shard_of_the_replica_keeps_its_series(first_gone: bool) -> None:
    registry = CollectorRegistry()
    metrics, before, after = TunerMetrics(registry), Harness(), Harness(tuned=False)
    after.raw["metadata"]["uid"] = "s2"
    async with working(before, registry, metrics), working(after, registry, metrics):
        await asyncio.sleep(30)
        changes = [partial(setattr, before, "tuned", False), partial(setattr, after, "tuned", True)]
        for change in changes if first_gone else reversed(changes):
            change()
            await asyncio.sleep(30)
        assert age(registry, "tick") < 20
        assert age(registry, "decision") < 20
        after.tuned = False
        await asyncio.sleep(30)
        assert 'service="chat"' not in generate_latest(registry).decode()


@in_virtual_time
async def test_while_no_engine_has_told_its_sizes_there_is_nothing_to_decide() -> None:
    harness, registry = Harness(), CollectorRegistry()
    spec = {name: said for name, said in harness.raw["spec"].items() if name not in ("model", "engine", "batching")}
    harness.raw["spec"] = spec | {"workload": {"selector": {"matchLabels": {"app": "llm"}}}}
    harness.engines.plain = {"pod-1"}
    async with working(harness, registry):
        await asyncio.sleep(2 * NOT_DECIDING_SECONDS)
        assert age(registry, "decision") < 20
