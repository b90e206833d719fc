"""Ceilings are what engines are started with: an edit concerns new pods, and those that run keep their limits."""

from __future__ import annotations

from flyball_lab.harness.service_tuners import Engines, Harness
from flyball_lab.harness.tuning import signals
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.tuning.service_tuner import ServiceTuner

LOWER = {"maxNumSeqs": 1, "maxNumBatchedTokens": 2048}
#: The ceilings of the engines there are.
SEQS = 128


async def tuned(harness: Harness) -> ServiceTuner:
    harness.edit(batching={"maxNumSeqs": SEQS, "maxNumBatchedTokens": 2048})
    tuner = harness.tuner()
    await ticks(harness, tuner)
    assert harness.engines.limits() == (SEQS, 2048)
    return tuner


async def ticks(harness: Harness, tuner: ServiceTuner) -> None:
    for _ in range(4):
        await harness.tick(tuner, signals(now(), arrivals=0, running=0))


async def edited(harness: Harness, tuner: ServiceTuner) -> None:
    """The user asks for less, and the tuner hears of it."""
    harness.edit(batching=LOWER)
    harness.update_pods(tuner)
    if tuner.to_be_kept():
        await tuner.keep()
    await ticks(harness, tuner)


async def edited_beside_a_new_pod() -> tuple[Harness, ServiceTuner]:
    """`pod-1` was started with what was asked for before, `pod-2` with what is asked for now."""
    harness = Harness(engines=Engines("pod-1"))
    tuner = await tuned(harness)
    harness.engines.held["pod-2"], harness.engines.seqs["pod-2"] = None, 1
    await edited(harness, tuner)
    return harness, tuner


@in_virtual_time
async def test_lower_ceilings_take_nothing_from_the_pods_that_run() -> None:
    harness = Harness(engines=Engines("pod-1"))
    await edited(harness, await tuned(harness))
    assert harness.engines.limits() == (SEQS, 2048)


@in_virtual_time
async def test_nor_do_they_while_a_new_pod_has_them_or_under_a_new_leader() -> None:
    harness, _ = await edited_beside_a_new_pod()
    assert harness.engines.limits() == (SEQS, 2048)
    await ticks(harness, harness.tuner())
    assert harness.engines.limits() == (SEQS, 2048)


@in_virtual_time
async def test_once_the_pods_that_had_more_are_gone_the_limits_are_within_the_new_ones() -> None:
    harness, tuner = await edited_beside_a_new_pod()
    del harness.engines.held["pod-1"]
    await ticks(harness, tuner)
    assert harness.engines.limits("pod-2") == (1, 2048)
