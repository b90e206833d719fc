"""When engines are read back, and how much of them: less where Prometheus shows what a read-back would."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from flyball_engine.contract import Generation, ReadBack
from flyball_lab.harness.service_tuners import AWAY, Engines, Harness
from flyball_lab.harness.tuning import signals
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.engines.client import Address
from flyball_operator.tuning.actuate.engine_handle import EngineHandle
from flyball_operator.tuning.actuate.engine_pods import VERIFY_CONFIRMED_SECONDS
from flyball_operator.tuning.observe.signals import Applied, Missing, Observation, RequestLoad, Signals, Unobserved
from flyball_operator.tuning.observe.stall import VERIFY_SECONDS
from flyball_operator.tuning.service_tuner import ServiceTuner

PODS = 2


class Counted(Engines):
    """Two engines that count how they are read back."""

    def __init__(self) -> None:
        super().__init__("pod-1", "pod-2")
        self.whole: Counter[str] = Counter()
        self.light: Counter[str] = Counter()

    async def read(self, address: Address) -> ReadBack:
        self.whole[address.key] += 1
        return await super().read(address)

    async def read_state(self, address: Address) -> ReadBack:
        self.light[address.key] += 1
        return (await super().read(address)).without_steps()

    @property
    def newest(self) -> Generation:
        """The number that they hold."""
        held = self.held["pod-1"]
        assert held is not None
        return Generation(epoch=held.epoch, generation=held.generation)

    def confirmed(self) -> Signals:
        """What Prometheus shows of both under it."""
        number = self.newest
        applied = Applied(PODS * number.epoch, PODS * number.generation, 0)
        return replace(signals(now()), cores=PODS, pods=PODS, applied=applied)


async def settled() -> tuple[Harness, Counted, ServiceTuner]:
    """A service that has nothing left to change."""
    engines = Counted()
    harness = Harness(engines=engines)
    tuner = harness.tuner()
    for _ in range(30):
        await harness.tick(tuner, replace(signals(now()), cores=PODS, pods=PODS))
    return harness, engines, tuner


async def reads(seconds: float, seen: Observation | None = None) -> int:
    """How often a pod is read back in so many seconds, if Prometheus shows this, or else what confirms."""
    harness, engines, tuner = await settled()
    before = engines.whole["pod-1"] + engines.light["pod-1"]
    for _ in range(int(seconds / 5)):
        await harness.tick(tuner, seen if seen is not None else engines.confirmed())
    return engines.whole["pod-1"] + engines.light["pod-1"] - before


@in_virtual_time
async def test_what_prometheus_confirms_is_read_back_seldom() -> None:
    seconds = 2 * VERIFY_CONFIRMED_SECONDS
    assert await reads(seconds) <= 3
    assert await reads(seconds, AWAY) >= seconds / VERIFY_SECONDS - 1


@in_virtual_time
async def test_once_it_confirms_no_more_a_pod_is_read_back_within_seconds() -> None:
    harness, engines, tuner = await settled()
    for _ in range(6):
        await harness.tick(tuner, engines.confirmed())
    before = engines.light["pod-1"]
    lost = replace(engines.confirmed(), applied=Applied(0, 0, 0))
    await harness.tick(tuner, lost)
    assert engines.light["pod-1"] == before + 1


@in_virtual_time
async def test_a_pod_that_starts_and_is_scraped_does_not_stand_in_for_a_ready_one_that_is_not() -> None:
    harness, engines, tuner = await settled()
    engines.held["pod-3"] = engines.held["pod-1"]
    engines.starting = {"pod-3"}
    before = engines.light["pod-1"]
    for _ in range(int(VERIFY_CONFIRMED_SECONDS / 5)):
        await harness.tick(tuner, engines.confirmed())
    assert engines.light["pod-1"] - before >= VERIFY_CONFIRMED_SECONDS / VERIFY_SECONDS - 1


def number(found: Signals, **changed: float) -> Signals:
    """With another figure of what cores apply."""
    assert found.applied is not None
    return replace(found, applied=replace(found.applied, **changed))


@pytest.mark.parametrize(
    "other",
    [
        lambda found: number(found, generation=found.applied.generation - 1),
        lambda found: number(found, epoch=found.applied.epoch + 1),
        lambda found: number(found, trips=1),
        lambda found: replace(found, pods=1),
        lambda found: replace(found, cores=1, applied=Applied(2, 7, 0)),
        lambda found: replace(found, pods=None),
        lambda found: replace(found, applied=None),
        lambda found: replace(found, load=replace(found.load, waiting=1.0)),
        lambda found: replace(found, load=AWAY),
    ],
    ids=[
        "one pod has another",
        "another leader's",
        "tripped",
        "one unseen",
        "one core unseen",
        "not counted",
        "not told",
        "waits",
        "dark",
    ],
)
def test_all_must_confirm(other: object) -> None:
    seven = Generation(epoch=2, generation=7)
    found = replace(signals(0.0), cores=PODS, pods=PODS, applied=Applied(2 * PODS, 7 * PODS, 0))
    assert isinstance(found.load, RequestLoad)
    assert found.confirms(seven, pods=PODS, cores=PODS, trips=0)
    assert callable(other)
    assert not other(found).confirms(seven, pods=PODS, cores=PODS, trips=0)


@in_virtual_time
async def test_steps_are_read_back_only_where_prometheus_has_none_or_requests_wait() -> None:
    harness, engines, tuner = await settled()
    engines.whole.clear()
    for _ in range(12):
        await harness.tick(tuner, signals(now()))
    assert not engines.whole
    engines.stuck.add("pod-1")
    for _ in range(12):
        await harness.tick(tuner, signals(now()))
    assert engines.whole["pod-1"] >= 3
    assert not engines.whole["pod-2"]
    engines.stuck.clear()
    for _ in range(12):
        await harness.tick(tuner, AWAY)
    assert engines.whole["pod-2"] >= 3


@in_virtual_time
async def test_steps_are_read_back_where_prometheus_has_none_at_the_ticks_that_ask_for_them() -> None:
    harness, engines, tuner = await settled()
    engines.whole.clear()
    engines.light.clear()
    for turn in range(24):
        steps = Unobserved(Missing.TOO_FEW_SAMPLES, "no steps") if turn % 3 == 0 else None
        await harness.tick(tuner, replace(engines.confirmed(), steps=steps))
    assert not engines.light
    assert engines.whole["pod-1"] >= 24 * 5 / VERIFY_SECONDS - 1


@in_virtual_time
async def test_a_pod_whose_requests_waited_is_read_back_often_though_prometheus_shows_none() -> None:
    harness, engines, tuner = await settled()
    engines.stuck.add("pod-1")
    engines.whole.clear()
    for _ in range(int((VERIFY_CONFIRMED_SECONDS + 5 * VERIFY_SECONDS) / 5)):
        await harness.tick(tuner, engines.confirmed())
    assert engines.whole["pod-1"] >= 4


@in_virtual_time
async def test_the_newest_setpoint_is_not_confirmed_by_what_was_shown_of_the_one_before() -> None:
    harness, engines, tuner = await settled()
    for _ in range(3):
        await harness.tick(tuner, engines.confirmed())
    old = engines.confirmed()
    harness.edit(tuning={"mode": "Disabled"})
    await harness.tick(tuner, old)
    before = engines.light["pod-1"]
    await asyncio.sleep(VERIFY_SECONDS)
    await harness.tick(tuner, replace(old, at=now()))
    assert engines.light["pod-1"] > before


@in_virtual_time
async def test_what_answers_of_two_pods_have_in_common_is_kept_once() -> None:
    _, engines, _ = await settled()
    answer = (await engines.read(Address("pod-1", "team", "127.0.0.1"))).model_dump_json()
    one, other = EngineHandle(("one", 0)), EngineHandle(("other", 0))
    for handle in (one, other):
        handle.take(ReadBack.model_validate_json(answer), now())
    assert one.read_back == other.read_back
    assert one.holds is other.holds is not None
    assert one.read_back is not None
    assert other.read_back is not None
    assert one.read_back.cores[0].ceilings is other.read_back.cores[0].ceilings
