"""A new revision is aborted when it surely misses what the earlier one keeps, and else promoted at the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_engine.contract import Metric
from flyball_operator.api.v1alpha1 import AnalysisPhase
from flyball_operator.tuning.observe.signals import Missing, ObjectiveCounts, PodCounts, PodOutcomes, Unobserved
from flyball_operator.tuning.ports import EnginePod
from flyball_operator.tuning.revision_analysis import (
    FINAL_ERRORS,
    GAPS_PER_REQUEST,
    INTERIM_ERRORS,
    LEAST_REQUESTS,
    Compared,
    Verdict,
    compared,
    judge,
    wilson_upper,
)
from flyball_operator.tuning.spec import LatencyObjective

TTFT = LatencyObjective("ttft", Metric.TIME_TO_FIRST_TOKEN, 0.5, 0.05)
E2E = LatencyObjective("e2e", Metric.END_TO_END_LATENCY, 5.0, 0.01)
GAPS = LatencyObjective("itl", Metric.INTER_TOKEN_LATENCY, 0.1, 0.05)
PODS = Compared(frozenset({"new-0"}), frozenset({"old-0", "old-1"}), 1000.0)
DURATION = 600.0
WELL = ObjectiveCounts(990, 10)


def counted(new: ObjectiveCounts, earlier: ObjectiveCounts = WELL, objective: LatencyObjective = TTFT) -> PodOutcomes:
    return {"new-0": PodCounts({objective.id: new}), "old-0": PodCounts({objective.id: earlier}), "old-1": PodCounts()}


def ended(new: tuple[float, float], earlier: tuple[float, float]) -> PodOutcomes:
    """Requests without an error and with one, of which each of the former met the objective."""
    (answered, failed), (before, failed_before) = new, earlier
    return {
        "new-0": PodCounts({TTFT.id: ObjectiveCounts(answered, 0)}, answered, failed),
        "old-0": PodCounts({TTFT.id: ObjectiveCounts(before, 0)}, before, failed_before),
    }


def verdict(outcomes: PodOutcomes | Unobserved, *, passed: float = 60.0, objective: LatencyObjective = TTFT) -> Verdict:
    return judge(PODS, outcomes, (objective,), passed=passed, duration=DURATION)


def expect(phase: AnalysisPhase, found: Verdict, *words: str) -> None:
    assert found.phase is phase, found.message
    for word in words:
        assert word in found.message


def test_a_revision_that_surely_misses_is_aborted_at_once() -> None:
    found = verdict(counted(ObjectiveCounts(160, 40)))
    expect(AnalysisPhase.FAILED, found, "missed ttft (95 % wanted): 80.00 % of 200 requests, earlier 99.00 % of 1000")
    assert "remove spec.rollout.canary" in found.message


def test_one_that_keeps_its_target_is_promoted_when_the_time_is_over_and_not_before() -> None:
    well = counted(ObjectiveCounts(198, 2))
    expect(AnalysisPhase.RUNNING, verdict(well), "judged for 9m more", "ttft (95 % wanted): 99.00 % of 200 requests")
    expect(AnalysisPhase.SUCCESSFUL, verdict(well, passed=DURATION), "misses no objective")


def test_the_last_look_takes_less_to_abort_than_each_before() -> None:
    """Looks before the end are many, and each may be wrong by chance."""
    doubtful = counted(ObjectiveCounts(184, 16))
    assert wilson_upper(184, 200, FINAL_ERRORS) < 0.96 < wilson_upper(184, 200, INTERIM_ERRORS)
    strict = replace(TTFT, allowed=0.04)
    expect(AnalysisPhase.RUNNING, verdict(doubtful, objective=strict))
    expect(AnalysisPhase.FAILED, verdict(doubtful, objective=strict, passed=DURATION))


@pytest.mark.parametrize("passed", [60.0, DURATION])
def test_what_the_earlier_revision_misses_too_is_not_the_new_ones_fault(passed: float) -> None:
    found = verdict(counted(ObjectiveCounts(100, 100), ObjectiveCounts(940, 60)), passed=passed)
    assert found.phase is not AnalysisPhase.FAILED


def test_what_the_earlier_revision_was_not_asked_is_nothing_it_kept() -> None:
    found = verdict(counted(ObjectiveCounts(100, 100), ObjectiveCounts(0, 0)), passed=DURATION)
    expect(AnalysisPhase.SUCCESSFUL, found, "earlier no requests")


def test_too_few_requests_say_nothing() -> None:
    """There are two earlier pods, so the new one has half of what they have."""
    few = counted(ObjectiveCounts(0, LEAST_REQUESTS - 1), ObjectiveCounts(4 * LEAST_REQUESTS - 1, 0))
    expect(AnalysisPhase.RUNNING, verdict(few))
    expect(AnalysisPhase.SUCCESSFUL, verdict(few, passed=DURATION), f"fewer than {LEAST_REQUESTS} requests")
    expect(AnalysisPhase.FAILED, verdict(counted(ObjectiveCounts(0, LEAST_REQUESTS))))


def test_one_that_finishes_too_few_requests_by_being_slow_is_not_promoted_for_it() -> None:
    slow = counted(ObjectiveCounts(0, LEAST_REQUESTS - 1), ObjectiveCounts(4 * LEAST_REQUESTS, 0))
    expect(AnalysisPhase.RUNNING, verdict(slow))
    expect(AnalysisPhase.INCONCLUSIVE, verdict(slow, passed=DURATION), "0.00 % of 49 requests, earlier 100.00 % of 200")
    later = counted(ObjectiveCounts(0, LEAST_REQUESTS), ObjectiveCounts(5 * LEAST_REQUESTS, 0))
    expect(AnalysisPhase.FAILED, verdict(later, passed=2 * DURATION))


def test_gaps_of_one_answer_are_not_as_many_requests() -> None:
    few = counted(ObjectiveCounts(0, (LEAST_REQUESTS - 1) * GAPS_PER_REQUEST), objective=GAPS)
    expect(AnalysisPhase.RUNNING, verdict(few, objective=GAPS), "gaps")
    many = counted(ObjectiveCounts(0, LEAST_REQUESTS * GAPS_PER_REQUEST), objective=GAPS)
    expect(AnalysisPhase.FAILED, verdict(many, objective=GAPS))


def test_one_missed_objective_of_several_is_enough_and_is_the_one_that_is_named() -> None:
    outcomes = {
        "new-0": PodCounts({TTFT.id: ObjectiveCounts(1000, 0), E2E.id: ObjectiveCounts(900, 100)}),
        "old-0": PodCounts({TTFT.id: WELL, E2E.id: ObjectiveCounts(1000, 0)}),
    }
    found = judge(PODS, outcomes, (TTFT, E2E), passed=60.0, duration=DURATION)
    expect(AnalysisPhase.FAILED, found, "missed e2e")
    assert "ttft" not in found.message


@pytest.mark.parametrize("passed", [60.0, DURATION])
@pytest.mark.parametrize("new", [(0, 10), (900, 100)])
def test_a_revision_whose_requests_end_with_errors_is_aborted(new: tuple[float, float], passed: float) -> None:
    found = verdict(ended(new, (900, 1)), passed=passed)
    expect(AnalysisPhase.FAILED, found, "more requests to the new revision end with an error: without an error")
    assert f"{new[0] / sum(new):.2%}".replace("%", f" % of {sum(new)} requests, earlier 99.89 %") in found.message


@pytest.mark.parametrize("passed", [60.0, DURATION])
@pytest.mark.parametrize(
    ("new", "earlier"),
    [((0, 1), (100_000, 0)), ((79, 1), (99_900, 100)), ((90, 10), (900, 100)), ((0, 100), (0, 0)), ((0, 0), (900, 0))],
    ids=["the first one", "one by chance", "as many as earlier", "nothing to compare with", "none"],
)
def test_errors_that_may_be_chance_or_are_the_earlier_ones_too_abort_nothing(
    new: tuple[float, float], earlier: tuple[float, float], passed: float
) -> None:
    assert verdict(ended(new, earlier), passed=passed).phase is not AnalysisPhase.FAILED


@pytest.mark.parametrize(
    ("outcomes", "says"),
    [
        (Unobserved(Missing.UNREACHABLE, "connection refused"), "PrometheusUnreachable: connection refused"),
        ({"old-0": PodCounts({TTFT.id: WELL})}, "no series of new-0"),
        ({"new-0": PodCounts({TTFT.id: WELL})}, "no series of the earlier pods"),
    ],
)
def test_what_cannot_be_seen_is_held_however_long(outcomes: PodOutcomes | Unobserved, says: str) -> None:
    expect(
        AnalysisPhase.INCONCLUSIVE, verdict(outcomes, passed=10 * DURATION), says, "no more pods are replaced before"
    )


def pod(name: str, spec_hash: str, since: float | None) -> EnginePod:
    return EnginePod(name, name, None, since is not None, "c", 0, "team", 8001, spec_hash, since)


def test_the_time_begins_when_as_many_pods_as_are_judged_are_ready() -> None:
    earlier = pod("old-0", "good", 5.0)
    news = [pod("new-0", "next", 30.0), pod("new-1", "next", 20.0), pod("new-2", "next", None)]
    assert compared([earlier, *news], "next", "good", 3).since is None
    assert compared([earlier, *news], "next", "good", 2) == Compared(
        frozenset({"new-0", "new-1"}), frozenset({"old-0"}), 30.0
    )
    # Kubernetes, or an autoscaler, adds one: the time goes on.
    assert compared([earlier, *news, pod("new-3", "next", 90.0)], "next", "good", 2).since == 30.0
    assert compared([*news, pod("other-0", "third", 5.0)], "next", "good", 2).earlier == frozenset()


@pytest.mark.parametrize(
    ("met", "total", "upper"),
    [
        # Newcombe (1998), Two-sided confidence intervals for the single proportion, table I, method 3.
        (81, 263, 0.3662),
        (15, 148, 0.1605),
        (0, 20, 0.1611),
        (1, 29, 0.1718),
    ],
)
def test_the_interval_is_wilsons(met: int, total: int, upper: float) -> None:
    assert wilson_upper(met, total, 1.959964) == pytest.approx(upper, abs=5e-5)


def test_of_nothing_all_is_possible() -> None:
    assert wilson_upper(0, 0, FINAL_ERRORS) == 1.0
