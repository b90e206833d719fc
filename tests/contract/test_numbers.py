"""Engines that answer with numbers which nobody gave: named, not believed, repaired, and no other pod's trouble."""

from __future__ import annotations

from typing import Any

import pytest

from flyball_engine.contract import Generation, Refusal
from flyball_lab.harness.engines import serving
from flyball_lab.harness.tuners import ScriptedReader, TunerEnvironment, inference_service, thinking, until
from flyball_operator.api.status import SetpointStatus, TuningStatus
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.tuning.observe.signals import Missing, Unobserved
from support.spoofing import Spoof, SpoofingPod, forge

TUNED = ConditionType.TUNED
AWAY = Unobserved(Missing.UNREACHABLE, "connection refused")
UNEXPLAINED = ("False", "SetpointUnexplained")


def pinned(seqs: int) -> dict[str, Any]:
    """Bounds that leave one batch size: what the user asks for is then what engines must have."""
    return {"mode": "Disabled", "bounds": {"maxNumActiveSeqs": {"min": seqs, "max": seqs}}}


def message(world: TunerEnvironment) -> str:
    (found,) = [c for c in world.services["uid-1"].status.conditions if c.type == TUNED]
    return found.message


def numbers(world: TunerEnvironment) -> list[tuple[int, int]]:
    """All that was ever written into status."""
    return [(tuning.epoch, tuning.generation) for _, tuning in world.writes]


async def test_an_epoch_that_nobody_had_is_named_and_the_other_pod_follows_every_edit() -> None:
    world = TunerEnvironment(epoch=5)
    pod, forged = world.engine("chat-0"), world.engine("chat-1")
    world.serve(inference_service(tuning=pinned(8)), pod, forged)
    async with serving(pod, forged), thinking(world, ScriptedReader(AWAY)):
        await until("both are told", lambda: world.tuning().applied_pods == "2/2")
        await forge(world, forged, epoch=999_999, generation=1)
        for seqs in (16, 32):
            world.edit(tuning=pinned(seqs))
            await until(f"{seqs} in the other", lambda: pod.limits[0] == seqs)  # noqa: B023
        await until("it is named", lambda: world.condition(TUNED) == UNEXPLAINED)
        assert message(world).startswith("chat-1: answers with epoch 999999, and no leader had one above 5.")
        await until("one of two", lambda: world.tuning().applied_pods == "1/2")
        assert {epoch for epoch, _ in numbers(world)} == {5}
        assert world.epoch == 5
        # What the sentence asks for: a new container begins without a setpoint.
        await forged.restart()
        await until("both again", lambda: world.tuning().applied_pods == "2/2" and forged.limits[0] == 32)
        await until("nothing is wrong", lambda: world.condition(TUNED) == ("False", "Disabled"))


@pytest.mark.parametrize(("epoch", "generation"), [(5, 10**9), (5, 2**53), (11, 3)])
async def test_an_engine_with_numbers_that_nobody_gave_comes_back_by_itself(epoch: int, generation: int) -> None:
    world = TunerEnvironment(epoch=5)
    pod, forged = world.engine("chat-0"), world.engine("chat-1")
    world.serve(inference_service(tuning=pinned(8)), pod, forged)
    async with serving(pod, forged), thinking(world, ScriptedReader(AWAY)):
        await until("both are told", lambda: world.tuning().applied_pods == "2/2")
        await forge(world, forged, epoch=epoch, generation=generation)
        world.edit(tuning=pinned(16))
        await until("both follow", lambda: (pod.limits[0], forged.limits[0]) == (16, 16))
        await until("both are counted", lambda: world.tuning().applied_pods == "2/2")
        assert world.epoch == epoch + 1
        assert pod.engine.applied is not None
        assert pod.engine.applied.epoch == world.tuning().epoch == epoch + 1
        assert max(generation for _, generation in numbers(world)) < 10


async def test_an_epoch_that_is_taken_for_one_service_changes_nothing_for_another() -> None:
    world = TunerEnvironment(epoch=5)
    forged, other = world.engine("chat-0"), world.engine("chat-0", "uid-2")
    world.serve(inference_service(tuning=pinned(8)), forged)
    world.serve(inference_service("uid-2", name="other", tuning=pinned(8)), other)
    async with serving(forged, other), thinking(world, reader := ScriptedReader(AWAY)):
        await until("both are told", lambda: all(world.tuning(u).applied_pods == "1/1" for u in ("uid-1", "uid-2")))
        told = len(other.engine.history)
        await forge(world, forged, epoch=5, generation=10**9)
        world.edit(tuning=pinned(16))
        await until("it is repaired", lambda: forged.limits[0] == 16)
        reads = reader.reads
        await until("some ticks passed", lambda: reader.reads > reads + 10)
        assert len(other.engine.history) == told
        assert world.tuning("uid-2").epoch == 5
        world.edit("uid-2", tuning=pinned(32))
        await until("it follows under the newer epoch", lambda: other.limits[0] == 32)
        assert world.tuning("uid-2").epoch == 6


async def test_a_pause_keeps_what_engines_have_and_repairs_one_that_was_written_to() -> None:
    world = TunerEnvironment(epoch=5)
    pod = world.engine()
    world.serve(inference_service(tuning=pinned(8)), pod)
    async with serving(pod), thinking(world, ScriptedReader(AWAY)):
        await until("it is told", lambda: world.tuning().applied_pods == "1/1")
        world.annotate(tuning="Paused")
        await until("it is paused", lambda: world.condition(TUNED) == ("False", "Paused"))
        await forge(world, pod, epoch=5, generation=10**9)
        assert pod.limits[0] == 3
        await until("its limits are back", lambda: pod.limits[0] == 8)
        assert pod.engine.applied is not None
        assert pod.engine.applied.epoch == 6


def ever_more(refusal: Refusal, *, epochs: int, generations: int) -> Spoof:
    return lambda told: (
        refusal,
        Generation(epoch=told.epoch + epochs, generation=min(2**53, told.generation + generations)),
    )


@pytest.mark.parametrize(
    "spoof",
    [
        ever_more(Refusal.STALE_EPOCH, epochs=1, generations=0),
        ever_more(Refusal.STALE_EPOCH, epochs=999_999, generations=0),
        ever_more(Refusal.STALE_GENERATION, epochs=0, generations=1),
        ever_more(Refusal.STALE_GENERATION, epochs=0, generations=10**9),
        ever_more(Refusal.STALE_GENERATION, epochs=0, generations=2**53),
        ever_more(Refusal.CONFLICT, epochs=0, generations=0),
    ],
)
async def test_a_pod_that_lies_at_every_turn_moves_no_number_and_stops_nobody(spoof: Spoof) -> None:
    world = TunerEnvironment(epoch=5)
    pod, spoofing = world.engine("chat-0"), SpoofingPod(world, "chat-1", spoof)
    world.serve(inference_service(tuning=pinned(8)), pod, spoofing)
    reader = ScriptedReader(AWAY)
    async with serving(pod, spoofing), thinking(world, reader):
        for seqs in (16, 32, 64):
            world.edit(tuning=pinned(seqs))
            await until(f"{seqs} in the other", lambda: pod.limits[0] == seqs)  # noqa: B023
        offered, reads = len(spoofing.offered), reader.reads
        await until("it lied again", lambda: len(spoofing.offered) > offered and reader.reads > reads + 20)
        await until("it is named", lambda: world.condition(TUNED)[0] == "False" and "chat-1" in message(world))
        assert world.tuning().applied_pods == "1/2"
        # Four settings, and one number each time that something first seemed to be another's.
        assert max(generation for _, generation in numbers(world)) <= 6
        assert world.tuning().epoch <= world.epoch <= 7


async def test_a_status_with_numbers_that_cannot_be_is_counted_anew() -> None:
    world = TunerEnvironment(epoch=6)
    pod = world.engine()
    poisoned = TuningStatus(
        epoch=5, generation=10**9 + 1, setpoint=SetpointStatus(max_num_active_seqs=16, max_num_scheduled_tokens=2048)
    )
    service = inference_service()
    service = service.model_copy(update={"status": service.status.model_copy(update={"tuning": poisoned})})
    world.serve(service, pod)
    async with serving(pod):
        await forge(world, pod, epoch=5, generation=10**9 + 1)
        async with thinking(world, ScriptedReader(AWAY)):
            await until("the engine follows", lambda: pod.limits[0] == 16)
            await until("it is counted", lambda: world.tuning().applied_pods == "1/1")
            assert (world.tuning().epoch, world.tuning().generation) == (6, 1)
            assert [held.order() for held in pod.engine.history[1:]] == [(6, 1)]
