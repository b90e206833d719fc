"""One service whose new revision is judged: when requests are counted, what status says, and what a restart keeps."""

from __future__ import annotations

from typing import Any

from flyball_lab.harness.service_tuners import AWAY, Engines, Harness
from flyball_lab.harness.tuning import signals
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import AnalysisPhase, AnalysisStatus
from flyball_operator.kube.status import QUIET_SECONDS
from flyball_operator.tuning.observe.signals import ObjectiveCounts, PodCounts, PodOutcomes
from flyball_operator.tuning.report.analysis_report import LOOK_SECONDS
from flyball_operator.tuning.spec import tuning_spec

CANARY = {"revision": "next", "baseline": "good", "startTime": "2026-01-01T00:00:00Z", "pods": 1}
DURATION = 300


def judging(**canary: Any) -> Harness:
    """A service whose new revision has just become Ready on one pod beside two of the earlier one."""
    harness = Harness(Engines("old-1", "old-2", "new-1"))
    harness.edit(rollout={"canary": {"duration": f"{DURATION}s"}})
    harness.raw["status"] = {"canary": CANARY | canary}
    harness.revisions = {"old-1": ("good", 0.0), "old-2": ("good", 0.0), "new-1": ("next", now())}
    harness.by_pod = counted(harness, met=100)
    return harness


def counted(harness: Harness, *, met: int) -> PodOutcomes:
    """So many of 100 requests to the new pod met each objective, and all of the earlier pods' did."""
    objectives = tuning_spec(harness.service.spec, {}).objectives
    # Gaps come by the hundred.
    many = {one.id: 100 if one.name == "itl" else 1 for one in objectives}
    new = {name: ObjectiveCounts(met * times, (100 - met) * times) for name, times in many.items()}
    earlier = {name: ObjectiveCounts(900 * times, 0) for name, times in many.items()}
    return {"new-1": PodCounts(new), "old-1": PodCounts(earlier), "old-2": PodCounts()}


async def seconds(harness: Harness, tuner: Any, count: float) -> None:
    until = now() + count
    while now() < until:
        await harness.tick(tuner, signals(now()))


def analysis(harness: Harness) -> AnalysisStatus | None:
    return harness.service.status.analysis


def phase(harness: Harness) -> AnalysisPhase | None:
    found = analysis(harness)
    return None if found is None else found.phase


@in_virtual_time
async def test_requests_are_counted_since_the_new_pods_were_ready_every_15_s() -> None:
    harness = judging()
    tuner = harness.tuner()
    await seconds(harness, tuner, 4 * LOOK_SECONDS)
    assert harness.windows == [1, 15, 30, 45]
    found = analysis(harness)
    assert found is not None
    assert (found.revision, found.start_time, found.phase) == ("next", CANARY["startTime"], AnalysisPhase.RUNNING)


@in_virtual_time
async def test_a_look_that_was_not_made_is_made_at_the_next_tick() -> None:
    """Prometheus is asked for a few services at once."""
    harness = judging()
    tuner = harness.tuner()
    harness.update_pods(tuner)
    for _ in range(3):
        assert tuner.judged_window() is not None
    await seconds(harness, tuner, LOOK_SECONDS / 3)
    assert tuner.judged_window() is None


@in_virtual_time
async def test_what_misses_is_told_at_once_and_what_keeps_when_the_time_is_over() -> None:
    worse, better = judging(), judging()
    worse.by_pod = counted(worse, met=20)
    tuner = worse.tuner()
    await seconds(worse, tuner, LOOK_SECONDS)
    assert phase(worse) is AnalysisPhase.FAILED
    tuner = better.tuner()
    better.revisions["new-1"] = ("next", now())
    await seconds(better, tuner, DURATION - LOOK_SECONDS)
    assert phase(better) is AnalysisPhase.RUNNING
    await seconds(better, tuner, 2 * LOOK_SECONDS)
    assert phase(better) is AnalysisPhase.SUCCESSFUL


@in_virtual_time
async def test_a_verdict_stays_and_a_restart_keeps_it() -> None:
    harness = judging()
    harness.by_pod = counted(harness, met=20)
    tuner = harness.tuner()
    await seconds(harness, tuner, LOOK_SECONDS)
    before, asked = analysis(harness), len(harness.windows)
    harness.by_pod = counted(harness, met=100)
    await seconds(harness, tuner, DURATION)
    await seconds(harness, harness.tuner(), DURATION)
    assert analysis(harness) == before
    assert len(harness.windows) == asked, "nothing more is asked"


@in_virtual_time
async def test_another_attempt_is_judged_anew_and_with_none_nothing_is_said() -> None:
    harness = judging()
    harness.by_pod = counted(harness, met=20)
    tuner = harness.tuner()
    await seconds(harness, tuner, LOOK_SECONDS)
    harness.by_pod = counted(harness, met=100)
    harness.raw["status"] = {**harness.raw["status"], "canary": CANARY | {"startTime": "2026-01-02T00:00:00Z"}}
    await seconds(harness, tuner, LOOK_SECONDS)
    found = analysis(harness)
    assert found is not None
    assert (found.phase, found.start_time) == (AnalysisPhase.RUNNING, "2026-01-02T00:00:00Z")
    harness.raw["status"] = {name: value for name, value in harness.raw["status"].items() if name != "canary"}
    await seconds(harness, tuner, LOOK_SECONDS)
    assert analysis(harness) is None


@in_virtual_time
async def test_while_prometheus_is_away_nothing_is_decided_and_then_all_is_counted() -> None:
    harness = judging()
    harness.by_pod = AWAY
    tuner = harness.tuner()
    await seconds(harness, tuner, 2 * DURATION)
    found = analysis(harness)
    assert found is not None
    assert found.phase is AnalysisPhase.INCONCLUSIVE
    assert "cannot be judged" in found.message
    harness.by_pod = counted(harness, met=20)
    await seconds(harness, tuner, 2 * LOOK_SECONDS)
    assert phase(harness) is AnalysisPhase.FAILED
    assert harness.windows[-1] >= 2 * DURATION, "what was counted meanwhile counts"


@in_virtual_time
async def test_nothing_is_asked_before_as_many_pods_are_ready_as_are_judged() -> None:
    harness = judging(pods=2)
    tuner = harness.tuner()
    await seconds(harness, tuner, 2 * LOOK_SECONDS)
    assert harness.windows == []
    assert analysis(harness) is None


@in_virtual_time
async def test_figures_that_change_are_written_once_a_minute() -> None:
    harness = judging()
    tuner = harness.tuner()
    await seconds(harness, tuner, LOOK_SECONDS)
    written = len(harness.written)
    await seconds(harness, tuner, QUIET_SECONDS)
    assert len(harness.written) - written <= 2
