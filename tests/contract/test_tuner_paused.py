"""The tuner over the real control server, while an annotation pauses tuning."""

from __future__ import annotations

import time

from flyball_lab.harness.engines import serving
from flyball_lab.harness.tuners import ScriptedReader, TunerEnvironment, inference_service, thinking, until
from flyball_lab.harness.tuning import signals
from flyball_operator.api.v1alpha1 import ConditionType

TUNED = ConditionType.TUNED


async def test_the_annotation_stops_changes_at_once_and_lets_them_go_on_when_it_goes() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    world.serve(inference_service(), pod)
    # One tick an hour: what happens is the watch's doing, though an annotation moves no generation.
    async with serving(pod), thinking(world, ScriptedReader(signals(time.time())), tick=3600.0) as tuner:
        await until("the first tick", lambda: world.condition(TUNED) == ("True", "Applied"))
        held = pod.limits
        world.annotate(tuning="Paused")
        await until("it is said", lambda: world.condition(TUNED) == ("False", "Paused"))
        assert 'flyball_operator_tuning_paused{namespace="team",service="chat"} 1.0' in tuner.metrics()
        world.edit(tuning={"mode": "Disabled"})
        await pod.restart()
        await until("the restarted engine has it back", lambda: pod.limits == held)
        world.annotate()
        await until("the mode is followed", lambda: pod.limits == (128, 2048))
        # The engine obeys before the event is written.
        await until("the end is said", lambda: "TuningResumed" in world.reasons())
    assert world.reasons().count("TuningPaused") == world.reasons().count("TuningResumed") == 1


async def test_a_service_that_is_paused_before_its_first_tick_is_seen_without_waiting_for_one() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    world.serve(inference_service(), pod)
    world.annotate(tuning="Paused")
    async with serving(pod), thinking(world, ScriptedReader(signals(time.time())), tick=3600.0):
        await until("it is said", lambda: world.condition(TUNED) == ("False", "Paused"))
        assert pod.engine.history == []
        world.annotate()
        await until("it begins", lambda: pod.engine.history != [])
