"""Nobody decides for ten minutes: the engine goes on with what it was told, and refuses what would come too late."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from flyball_engine.contract import Metric, ObjectiveSpec
from flyball_lab.harness.streams import StreamTotals
from flyball_lab.harness.waiting import eventually
from support.cluster import Object, throughout
from support.live import Flyball, Service, in_time, shedding_service

pytestmark = pytest.mark.cluster

#: First tokens shall come within so many seconds.
DEADLINE = 3.0
OBJECTIVES = in_time(f"{DEADLINE:g}s", "200ms")
FIRST_TOKEN = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=DEADLINE)
#: Of each load: within what the engine carries, and far beyond.
AWAY_SECONDS = 300.0


@pytest.fixture
def shedding(flyball: Flyball) -> Iterator[Service]:
    """A service of its own whose overload is shed."""
    with shedding_service(flyball, "alone", OBJECTIVES) as service:
        yield service


def test_without_an_operator_the_engine_keeps_what_objectives_it_can(
    shedding: Service, flyball: Flyball, note_figure: Callable[[str], None]
) -> None:
    with shedding.streams(3, pause=1.0).running():
        shedding.expect_condition("Tuned", "True", within=300)
        accepted = eventually(lambda: shedding.read_back()["accepted"], expecting="the engine has a setpoint")
        assert accepted["step"]
        assert accepted["shed"]
    with flyball.away():
        before, pod = shedding.read_back(), shedding.pod()
        last = before["cores"][0]["applied"]
        for name, load in (("within", shedding.streams(3, pause=1.0)), ("beyond", shedding.streams(48))):
            counted_before = shedding.kept(FIRST_TOKEN)
            with load.running() as totals:
                throughout(
                    lambda: holds(shedding, before),
                    expecting="budget, deadline and limits hold",
                    seconds=AWAY_SECONDS,
                    every=5,
                )
                came = outcome(totals)
                counted = shedding.kept(FIRST_TOKEN) - counted_before
                trips = shedding.read_back()["cores"][0]["watchdog_trips"]
            note_figure(
                f"{AWAY_SECONDS:.0f} s {name} capacity: {came}; {counted.share:.1%} in time by the engine's count"
            )
            assert not totals.failures, totals.failures[0]
            assert trips == before["cores"][0]["watchdog_trips"]
            assert counted.share > 0.5, "most of those let in keep their objective"
        assert totals.refused, "beyond capacity some are refused"
        returning = time.monotonic()
    after = eventually(lambda: newer(shedding, last), expecting="somebody decides again", within=240)
    note_figure(
        f"{time.monotonic() - returning:.1f} s after the operator was wanted again: generation {after['generation']}"
        f" of epoch {after['epoch']} after {last['generation']} of {last['epoch']}"
    )
    assert after["epoch"] > last["epoch"]
    assert after["generation"] >= last["generation"], "it goes on counting"
    now_told = shedding.read_back()["accepted"]
    assert now_told["shed"] == before["accepted"]["shed"], "it goes on with what status says"
    assert now_told["step"], "though it has learnt of the steps since"
    shedding.expect_governed()
    shedding.expect_condition("Tuned", "True")  # of what status holds: there is no load
    assert shedding.setpoints("expired") == 0
    now = shedding.pod()
    assert now["metadata"]["uid"] == pod["metadata"]["uid"]
    assert now["status"]["containerStatuses"][0]["restartCount"] == 0


def holds(service: Service, before: Object) -> bool:
    """The engine runs under the very setpoint, in full."""
    now = service.read_back()
    kept = all(now["cores"][0][field] == before["cores"][0][field] for field in ("applied", "effective"))
    return kept and now["accepted"] == before["accepted"]


def newer(service: Service, last: Object) -> Object | None:
    """The generation that the engine runs under, once it is another."""
    applied: Object | None = service.read_back()["cores"][0]["applied"]
    return applied if applied != last else None


def share_in_time(totals: StreamTotals) -> float:
    """Share of those let in and answered whose first token came in time."""
    return sum(first.seconds <= DEADLINE for first in totals.first_tokens) / len(totals.first_tokens)


def outcome(totals: StreamTotals) -> str:
    ranked = sorted(first.seconds for first in totals.first_tokens)
    return (
        f"{totals.finished} requests let in and answered, {share_in_time(totals):.1%} with the first token within"
        f" {DEADLINE:g} s (p99 {ranked[int(0.99 * (len(ranked) - 1))]:.2f} s); {len(totals.refused)} refused"
    )
