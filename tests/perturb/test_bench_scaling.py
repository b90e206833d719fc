"""`hack/bench scaling`: a fleet that grows and shrinks, and the rules it is compared under."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from flyball_engine.contract import Limits
from flyball_lab.benches.law.plays import FixedSetpoint, LoadCase
from flyball_lab.benches.options import Options
from flyball_lab.benches.scaling import compare
from flyball_lab.benches.scaling.compare import ATTAINED, CONSTANT, DAY, FLYBALL, HOURS, PRESET, RULES
from flyball_lab.benches.scaling.load import NIGHT, PEAK, Trace
from flyball_lab.benches.scaling.replica_fleet import ReplicaFleet, requests_of
from flyball_lab.benches.scaling.rules import Constant, Flyball, Stabilised
from flyball_lab.benches.scaling.trace import refusal
from flyball_lab.simulator.lengths import around
from flyball_lab.simulator.requests import Fate, Request
from flyball_lab.simulator.workload import ArrivalPhase, workload


def fleet(first: int = 1) -> ReplicaFleet:
    case = LoadCase(name="day", preset=PRESET, phases=(), mean_context=660, seconds=100.0)
    setpoint = FixedSetpoint(budget=0.1).setpoint(case).model_copy(update={"limits": Limits(max_num_active_seqs=64)})
    return ReplicaFleet(PRESET, setpoint, first=first, seed=1)


def test_a_new_replica_serves_after_its_start_and_costs_from_its_making() -> None:
    found = fleet()
    found.run(10.0)
    found.scale(3)
    assert (found.wanted, len(found.ready), found.cost) == (3, 1, 10.0)
    found.run(10.0 + PRESET.start_seconds)
    assert (len(found.ready), found.cost) == (3, 10.0 + 3 * PRESET.start_seconds)


def test_a_replica_that_is_removed_finishes_what_it_has_and_gets_no_more() -> None:
    found = fleet(2)
    requests = [Request(1.0, 600, 40) for _ in range(4)]
    for request in requests:
        found.submit(request)
    found.run(2.0)
    assert {one.requests for one in found.replicas} == {2}
    found.scale(1)
    late = Request(2.5, 600, 40)
    found.submit(late)
    found.run(60.0)
    assert all(request.fate is Fate.FINISHED for request in (*requests, late))
    assert len(found.replicas) == 1


def test_the_newest_replicas_are_removed_first() -> None:
    found = fleet(2)
    found.run(1.0)
    found.scale(3)
    first, second, third = found.replicas
    found.scale(1)
    assert [one.removed_at for one in (first, second, third)] == [None, 1.0, 1.0]


def test_the_day_is_the_same_for_a_seed_and_quiet_at_night() -> None:
    one, again, other = (DAY.requests(seed) for seed in (1, 1, 2))
    assert [request.arrival for request in one] == [request.arrival for request in again]
    assert len(one) != len(other)
    assert (DAY.rate(0.0), DAY.rate(DAY.seconds / 2)) == pytest.approx((NIGHT, PEAK))


def test_windows_and_policies_hold_what_the_hpa_would() -> None:
    hpa = Stabilised(down_seconds=60.0)
    numbers = [hpa.replicas(15.0 * turn, 4, wanted) for turn, wanted in enumerate([9, 2, 2, 2, 2])]
    assert numbers[:1] == [8], "four more at most, or twice as many"
    assert numbers[1:4] == [4, 4, 4]
    assert numbers[4] == 2


@pytest.mark.parametrize("name", RULES)
def test_each_rule_plays_the_begin_of_a_day(name: str) -> None:
    run = compare.play(RULES[name](1.0), seconds=300.0)
    assert 0.9 < run.attained <= 1.0
    assert 300.0 / 3600.0 <= run.hours <= 12 * 300.0 / 3600.0


def test_a_fleet_that_begins_too_small_has_no_queue_left_in_the_end() -> None:
    """Four times what the first replica carries. Replicas for the arrivals alone would leave the queue as it is."""
    waiting: list[int] = []

    class Watched(Flyball):
        def replicas(self, fleet: ReplicaFleet, recent: Sequence[Request]) -> int:
            waiting.append(requests_of(fleet.ready)[1])
            return super().replicas(fleet, recent)

    arrivals = ArrivalPhase(seconds=900.0, rate=6.0, shape=around(1000, 200), variation=1.5)
    compare.play(Watched(compare.tuning(1.0)), day=Trace(workload([arrivals], Random(1))))
    assert max(waiting) > 200
    assert waiting[-1] < 10


def test_a_trace_is_played_as_it_was_recorded_for_each_rule(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    lines = [f"2023-11-16 18:15:{second:02d}.0000000,{100 + second},20" for second in range(60)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    trace = Trace.read(path)
    assert trace.seconds == 59.0
    first, again = trace.requests(1), trace.requests(2)
    assert [(one.arrival, one.prompt, one.output) for one in first] == [
        (float(second), 100 + second, 20) for second in range(60)
    ]
    compare.play(Constant(1), day=trace)
    assert all(one.fate is not Fate.FINISHED for one in (*first, *again)), "a run has requests of its own"


@pytest.mark.parametrize(
    ("text", "why"), [(None, "--trace FILE"), ("", "no column TIMESTAMP"), ("TIMESTAMP\n", "no column ContextTokens")]
)
def test_a_trace_that_cannot_be_played_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "trace.csv"
    if text is not None:
        path.write_text(text)
    assert why in (refusal(Options(trace=None if text is None else path), ["trace"]) or "")


def test_a_constant_is_charged_for_all_its_replicas() -> None:
    assert compare.play(Constant(3), seconds=60.0).hours == pytest.approx(3 * 60.0 / 3600.0)


@pytest.mark.parametrize(("hours", "missed"), [(4.0, False), (9.0, True)])
def test_the_best_peer_that_attains_as_much_is_what_it_is_held_against(hours: float, missed: bool) -> None:
    figures = {
        FLYBALL: {ATTAINED: 0.992, HOURS: hours},
        "cheap, and worse": {ATTAINED: 0.95, HOURS: 1.0},
        "dear": {ATTAINED: 1.0, HOURS: 12.0},
        "best": {ATTAINED: 0.995, HOURS: 5.0},
        CONSTANT: {ATTAINED: 1.0, HOURS: 3.0},
    }
    for row in figures.values():
        row |= {compare.LARGEST: 4.0, compare.CHANGES: 3.0}
    first, second = compare.tables(figures)["asked"].rows
    assert first[1] == "0.9920"
    assert second[1] == f"{hours / 5:.2f} (best)" + (": missed" if missed else "")
