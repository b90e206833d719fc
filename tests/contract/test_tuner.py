"""The tuner over the real control server: the order of a change, fencing, engines that come back, modes, failures."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from flyball_engine.contract import Knob, Metric, StepKind
from flyball_lab.harness import virtual_time
from flyball_lab.harness.engines import PlantEngine, objective, serving
from flyball_lab.harness.plant import CPU, PlantPhase
from flyball_lab.harness.tuners import ScriptedReader, TunerEnvironment, inference_service, thinking, until
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.tuning.observe.signals import (
    CellKey,
    Missing,
    ObjectiveCounts,
    RequestLoad,
    Signals,
    StepWindow,
    Sums,
    Unobserved,
)

TUNED, OBSERVED = ConditionType.TUNED, ConditionType.METRICS_AVAILABLE
AWAY = Unobserved(Missing.UNREACHABLE, "connection refused")


def seen(at: float | None = None) -> Signals:
    """Signals of a busy CPU engine, with steps enough to learn from."""
    now = at if at is not None else time.time()
    cells: dict[CellKey, Sums] = {}
    for decodes in (1, 3, 7, 15, 31, 60):
        for prefill in (0, 50, 200, 900):
            tokens = decodes + prefill
            kind = StepKind.MIXED if prefill else StepKind.DECODE
            bucket = 1 << (tokens - 1).bit_length()
            seconds = CPU.seconds(decodes=decodes, prefill_tokens=prefill)
            step = Sums(
                steps=20,
                seconds=20 * seconds,
                seconds_squared=20 * seconds**2,
                tokens=20 * tokens,
                prefill_tokens=20 * prefill,
                decodes=20 * decodes,
                prefill_attention=20 * prefill**2 / 2,
            )
            key = CellKey(bucket, kind)
            cells[key] = cells.get(key, Sums()).plus(step)
    load = RequestLoad(
        arrivals=4.0,
        finished=60,
        prompt_tokens=60 * 300,
        cached_tokens=0,
        generated_tokens=60 * 64,
        running=10,
        waiting=0,
        kv_tokens=100_000,
        held_tokens=3000,
    )
    window = StepWindow(start=now - 15, end=now, cells=cells)
    return Signals(at=now, age_seconds=1.0, window_seconds=15.0, cores=1, steps=window, load=load, outcomes={})


async def test_a_new_service_is_tuned_and_every_pod_confirms() -> None:
    world = TunerEnvironment()
    pods = [world.engine("chat-0"), world.engine("chat-1")]
    world.serve(inference_service(), *pods)
    async with serving(*pods), thinking(world, ScriptedReader(seen())) as tuner:
        for pod in pods:
            # What is learnt first goes to one pod, and to the other once that has made steps under it.
            pod.load([PlantPhase(3600, 4, 100, 16)], seed=1)
        await until("tuned", lambda: world.condition(TUNED) == ("True", "Applied"))
        live = world.tuning().setpoint
        assert {pod.limits for pod in pods} == {(live.max_num_active_seqs, live.max_num_scheduled_tokens)}
        assert (live.max_num_scheduled_tokens or 0) < 2048
        assert world.tuning().applied_pods == "2/2"
        assert "flyball_operator_push_acknowledged_seconds_count 0.0" not in tuner.metrics()
        await until("both are told", lambda: {"Retuned", "ModelLearned"} <= set(world.reasons()))


async def test_the_intent_is_in_status_before_any_engine_hears_of_it() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    world.serve(inference_service(), pod)
    async with serving(pod), thinking(world, ScriptedReader(seen())):
        await until("tuned", lambda: world.condition(TUNED) == ("True", "Applied"))
        written = [(tuning.epoch, tuning.generation) for _, tuning in world.writes]
        pushed = [(setpoint.epoch, setpoint.generation) for setpoint in pod.engine.history]
        assert set(pushed) <= set(written)
        assert sorted(set(pushed)) == list(dict.fromkeys(pushed)), "numbers only grow"


async def test_without_its_intent_in_status_nothing_is_pushed() -> None:
    world = TunerEnvironment(refuse_writes=True)
    pod = world.engine()
    world.serve(inference_service(), pod)
    async with serving(pod), thinking(world, reader := ScriptedReader(seen())):
        await until("it tried", lambda: reader.reads > 5)
        assert pod.engine.history == []
        world.refuse_writes = False
        await until("tuned after all", lambda: world.condition(TUNED) == ("True", "Applied"))


async def test_an_engine_that_was_killed_gets_its_setpoint_back() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    world.serve(inference_service(), pod)
    async with serving(pod), thinking(world, ScriptedReader(seen())):
        await until("tuned", lambda: world.condition(TUNED) == ("True", "Applied"))
        pod.ready = False
        await pod.restart()
        assert pod.limits == (128, 2048)
        pod.ready = True
        await until("the limits are back", lambda: pod.limits != (128, 2048) and world.holds_setpoint(pod))


async def test_a_new_leader_adopts_what_runs_and_writes_nothing() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    world.serve(inference_service(), pod)
    reader = ScriptedReader(seen())
    async with serving(pod):
        async with thinking(world, reader):
            await until("tuned", lambda: world.condition(TUNED) == ("True", "Applied"))
            await until("settled", lambda: reader.reads > 20)
        status, reader.observation = world.services["uid-1"].status, replace(seen(), load=idle(seen()))
        world.epoch = 2
        async with thinking(world, reader):
            await until("the engine knows its leader", lambda: pod.engine.history[-1].epoch == 2)
            await until("some ticks passed", lambda: reader.reads > 30)
        assert world.services["uid-1"].status.tuning.generation == status.tuning.generation
        assert world.services["uid-1"].status.tuning.setpoint == status.tuning.setpoint
        assert world.services["uid-1"].status.tuning.epoch == status.tuning.epoch, "status says nothing new"


def idle(signals: Signals) -> RequestLoad:
    """The same engine without requests."""
    assert isinstance(signals.load, RequestLoad)
    return replace(signals.load, arrivals=0.0, running=0.0, waiting=0.0, finished=0.0)


async def test_a_stale_leader_is_refused_and_stops() -> None:
    world = TunerEnvironment(epoch=5)
    pod = world.engine()
    world.serve(inference_service(), pod)
    reader = ScriptedReader(seen())
    async with serving(pod):
        async with thinking(world, reader):
            await until("tuned", lambda: world.condition(TUNED) == ("True", "Applied"))
        heard = len(pod.engine.history)
        world.epoch = 4
        async with thinking(world, reader):
            await until("it says so", lambda: world.condition(TUNED)[1] == "NewerLeader")
            assert len(pod.engine.history) == heard
        # A fresh pod alone would have accepted the old leader: it is not asked either.
        assert pod.engine.applied is not None
        assert pod.engine.applied.epoch == 5


async def test_nothing_is_written_once_the_lease_is_lost() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    world.serve(inference_service(), pod)
    async with serving(pod), thinking(world, reader := ScriptedReader(seen())):
        await until("tuned", lambda: world.condition(TUNED) == ("True", "Applied"))
        world.leading = False
        reads, writes = reader.reads, len(world.writes)
        await pod.restart()
        # A leading tuner would give a restarted engine its setpoint within a second.
        await until("a leader had acted", lambda: world.asked > asked + 25) if (asked := world.asked) else None
        assert pod.engine.history == []
        assert len(world.writes) == writes
        assert reader.reads <= reads + 1


async def test_prometheus_away_holds_the_limits_and_says_so() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    world.serve(inference_service(), pod)
    async with serving(pod), thinking(world, reader := ScriptedReader(seen()), grace=0.5):
        await until("tuned", lambda: world.condition(TUNED) == ("True", "Applied"))
        await until("settled", lambda: reader.reads > 20)
        held, reader.observation = pod.limits, AWAY
        await until("it says so", lambda: world.condition(OBSERVED) == ("False", "PrometheusUnreachable"))
        assert pod.limits == held
        assert world.condition(TUNED) == ("True", "Applied")
        reader.observation = seen()
        await until("it is back", lambda: world.condition(OBSERVED) == ("True", "Scraped"))
    assert world.reasons().count("MetricsLost") == 1


async def test_modes_are_switched_live() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    world.serve(inference_service(), pod)
    async with serving(pod), thinking(world, reader := ScriptedReader(seen())):
        await until("tuned", lambda: world.condition(TUNED) == ("True", "Applied"))
        world.edit(tuning={"mode": "Disabled"})
        await until("upper bounds", lambda: pod.limits == (128, 2048) and world.condition(TUNED)[1] == "Disabled")
        world.edit(tuning={"mode": "Recommend"})
        await until("recommended", lambda: world.condition(TUNED)[1] == "RecommendOnly")
        reads = reader.reads
        await until("the law has settled", lambda: reader.reads > reads + 20)
        assert pod.limits == (128, 2048), "live limits are left alone"
        recommended = world.tuning().recommended
        assert recommended is not None
        wanted = (recommended.max_num_active_seqs, recommended.max_num_scheduled_tokens)
        assert wanted != (128, 2048)
        world.edit(tuning={"mode": "Auto"})
        await until("the law's again, at once", lambda: pod.limits == wanted)


async def test_edited_bounds_are_followed_at_once_not_at_the_next_tick() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    world.serve(inference_service(), pod)
    async with serving(pod), thinking(world, ScriptedReader(seen()), tick=3600.0):
        await until("the first tick", lambda: world.condition(TUNED) == ("True", "Applied"))
        for seqs in (8, 48, 16):
            pinned = {"min": seqs, "max": seqs}
            world.edit(tuning={"bounds": {"maxNumActiveSeqs": pinned}})
            await until(f"{seqs} seqs", lambda: pod.limits[0] == seqs and world.tuning().applied_pods == "1/1")  # noqa: B023
        assert [d.after.max_num_active_seqs for d in world.tuning().decisions[:3]] == [16, 48, 8]
        assert world.tuning().decisions[0].trigger == "the bounds changed, and the limits with them"


def test_many_edits_in_a_row_do_not_put_off_the_ticks_after_them() -> None:
    reader = ScriptedReader(AWAY)

    async def story() -> None:
        world = TunerEnvironment()
        async with thinking(world, reader, tick=5.0, clock=asyncio.get_running_loop().time):
            for generation in range(1, 101):
                world.serve(inference_service(generation=generation))
                await asyncio.sleep(1.1)
            edited = reader.reads
            await asyncio.sleep(60)
            assert 11 <= reader.reads - edited <= 13

    virtual_time.run(story())


async def test_an_edited_objective_reaches_the_engine_without_moving_limits() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    world.serve(inference_service(tuning={"mode": "Disabled"}), pod)
    async with serving(pod), thinking(world, ScriptedReader(seen())):
        await until("first setpoint", lambda: len(pod.engine.history) > 0)
        world.edit(objectives=[{"name": "ttft", "metric": "TimeToFirstToken", "threshold": "1s"}])
        wanted = (objective(Metric.TIME_TO_FIRST_TOKEN, 1.0),)
        await until("new objective", lambda: pod.engine.history[-1].objectives == wanted)
        assert pod.limits == (128, 2048)


async def test_one_unreachable_pod_does_not_keep_the_others_waiting() -> None:
    world = TunerEnvironment()
    pod, gone, other = world.engine("chat-0"), world.engine("chat-1"), world.engine("chat-0", "uid-2")
    world.serve(inference_service(), pod, gone)
    world.serve(inference_service("uid-2", name="other"), other)
    async with serving(pod, other), thinking(world, ScriptedReader(seen())):
        await until("the other service", lambda: world.condition(TUNED, "uid-2") == ("True", "Applied"))
        await until("the reachable pod", lambda: pod.engine.applied is not None)
        await until("it says so", lambda: world.condition(TUNED) == ("False", "EngineUnreachable"))


async def test_a_pod_that_hangs_keeps_no_other_from_coming_back() -> None:
    world = TunerEnvironment()
    pod, hung = world.engine("chat-0"), world.engine("chat-1")
    world.serve(inference_service(tuning={"mode": "Disabled"}), pod, hung)
    async with serving(pod, hung), thinking(world, ScriptedReader(seen())):
        await until("both hold it", lambda: world.tuning().applied_pods == "2/2")
        hung.engine.silent = True
        world.edit(tuning={"mode": "Auto"})
        await until("the other is tuned", lambda: pod.limits != (128, 2048))
        await until("it says so", lambda: world.condition(TUNED)[1] in ("Pushing", "PushFailed"))
        await pod.restart()
        await until("it came back meanwhile", lambda: pod.limits != (128, 2048))
        hung.engine.silent = False
        await until("all are well", lambda: world.condition(TUNED) == ("True", "Applied"))


async def test_an_engine_without_the_plugin_is_named() -> None:
    world = TunerEnvironment()
    pod = world.engine(make=lambda: PlantEngine(governed=False))
    world.serve(inference_service(), pod)
    async with serving(pod), thinking(world, ScriptedReader(seen())):
        await until("it says so", lambda: world.condition(TUNED) == ("False", "EngineUngoverned"))


async def test_a_knob_the_engine_cannot_move_is_left_out_and_named() -> None:
    world = TunerEnvironment()
    pod = world.engine(make=lambda: PlantEngine(unsupported={Knob.MAX_NUM_ACTIVE_SEQS: "vLLM 0.25 has none"}))
    world.serve(inference_service(), pod)
    async with serving(pod), thinking(world, ScriptedReader(seen())):
        await until("it says so", lambda: world.condition(TUNED) == ("False", "KnobUnsupported"))
        await until("the other knob moves", lambda: pod.limits[1] not in (None, 2048))
        assert all(s.limits.max_num_active_seqs is None for s in pod.engine.history)


async def test_a_service_deleted_and_recreated_starts_anew() -> None:
    world = TunerEnvironment()
    first, second = world.engine(), world.engine("chat-0", "uid-2")
    world.serve(inference_service(), first)
    async with serving(first, second), thinking(world, ScriptedReader(seen())) as tuner:
        await until("tuned", lambda: world.condition(TUNED) == ("True", "Applied"))
        world.services.clear()
        world.serve(inference_service("uid-2"), second)
        await until("the new one", lambda: world.condition(TUNED, "uid-2") == ("True", "Applied"))
        assert {s.service for s in second.engine.history} == {"uid-2"}
        assert tuner.metrics().count('flyball_operator_limit{knob="max_num_active_seqs"') == 1


async def test_objectives_are_reported_against_their_targets() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    world.serve(inference_service(), pod)
    counts = {"TimePerOutputToken/0.06": ObjectiveCounts(970, 30), "InterTokenLatency/0.25": ObjectiveCounts(9990, 10)}
    async with serving(pod), thinking(world, ScriptedReader(seen(), counts)):
        await until("reported", lambda: world.condition(ConditionType.OBJECTIVES_MET) == ("False", "Violated"))
        status = world.services["uid-1"].status
        assert status.objectives_met == "1/2"
        assert [(o.name, o.attained, o.budget_remaining) for o in status.objectives] == [
            ("tpot", "97.0", "-200"),
            ("itl", "99.9", "90"),
        ]


async def test_status_resumes_the_law_after_a_restart_of_the_operator() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    world.serve(inference_service(), pod)
    async with serving(pod):
        async with thinking(world, reader := ScriptedReader(seen())):
            await until("tuned", lambda: world.condition(TUNED) == ("True", "Applied"))
            await until("settled", lambda: reader.reads > 20)
        tuned = pod.limits
        world.epoch = 2
        async with thinking(world, ScriptedReader(AWAY)):
            await until("adopted", lambda: pod.engine.history[-1].epoch == 2)
            assert pod.limits == tuned
            assert world.tuning().model.trusted
    assert tuned != (128, 2048), "the law had moved them"


SHEDDING: dict[str, Any] = {
    "objectives": [
        {"name": "ttft", "metric": "TimeToFirstToken", "threshold": "2s"},
        {"name": "tpot", "metric": "TimePerOutputToken", "threshold": "60ms"},
    ],
    "tuning": {"mode": "Auto", "overload": "Shed"},
}


async def test_budget_and_deadline_reach_the_engine_and_go_when_the_user_says_so() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    world.serve(inference_service(**SHEDDING), pod)
    async with serving(pod):
        async with thinking(world, ScriptedReader(seen())):
            await until("gated", lambda: pod.engine.history[-1:] != [] and pod.engine.history[-1].shed is not None)
            await until("confirmed", lambda: world.condition(TUNED) == ("True", "Applied"))
        gated = pod.engine.history[-1]
        assert gated.step is not None
        setpoint = world.tuning().setpoint
        assert (setpoint.first_token_deadline, setpoint.step_budget) == ("2s", "55.2ms")
        world.epoch = 2
        async with thinking(world, ScriptedReader(AWAY)):
            await until("adopted", lambda: pod.engine.history[-1].epoch == 2)
            adopted = pod.engine.history[-1]
            assert (adopted.step, adopted.shed) == (gated.step, gated.shed)
            world.edit(tuning={"mode": "Auto", "overload": "Queue"})
            await until("open", lambda: pod.engine.history[-1].shed is None)
            ordered = pod.engine.history[-1]
            assert ordered.on_time == gated.on_time, "the order stays"
            assert ordered.step == gated.step, "and so does the time of a step"
            world.edit(tuning={"mode": "Auto", "overload": "Queue", "order": "Arrival"})
            await until("in order of arrival", lambda: pod.engine.history[-1].on_time is None)


async def test_an_engine_that_cannot_refuse_requests_is_named_and_told_limits() -> None:
    def ungated() -> PlantEngine:
        engine = PlantEngine()
        engine.ungated = "this vLLM has another way to its prompts"
        return engine

    world = TunerEnvironment()
    pod = world.engine(make=ungated)
    world.serve(inference_service(**SHEDDING), pod)
    async with serving(pod), thinking(world, ScriptedReader(seen())):
        await until("it says so", lambda: world.condition(TUNED) == ("False", "KnobUnsupported"))
        await until("it is told limits", lambda: any(one.limits.given() for one in pod.engine.history))
        assert all(one.shed is None for one in pod.engine.history)
