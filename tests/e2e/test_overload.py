"""More requests than the objectives allow: refused before anything was sent where the user wants that, or all wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from flyball_engine.contract import Metric, ObjectiveSpec
from flyball_lab.harness.streams import StreamTotals
from flyball_lab.harness.waiting import eventually
from support.cluster import delete, patch
from support.engine_starts import EngineStarts
from support.live import RESOURCE, SHEDDING, SHEDDING_DEADLINE, Flyball, Service

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

DEADLINE = SHEDDING_DEADLINE
FIRST_TOKEN = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=DEADLINE)
#: Requests that are let in before the share of those in time is taken.
ENOUGH = 40


@pytest.fixture
def shedding(flyball: Flyball, starts: EngineStarts) -> Iterator[Service]:
    """A service of its own whose overload is shed, gone at the end."""
    service = Service(SHEDDING, flyball.watched)
    starts.ask(service.name)
    service.expect_governed()
    yield service
    delete(RESOURCE, service.name, namespace=service.namespace)


def test_beyond_capacity_requests_are_refused_until_the_user_wants_them_to_wait(
    shedding: Service, note_figure: Callable[[str], None]
) -> None:
    pod = shedding.pod()
    # A load that the slowest of processors carries.
    with shedding.streams(2, pause=4.0).running() as calm:
        eventually(
            lambda: {"firstTokenDeadline", "stepBudget"} <= shedding.tuning()["setpoint"].keys(),
            expecting="the model is learnt, and budget and deadline are in the status",
            within=300,
        )
        eventually(lambda: shedding.read_back()["accepted"]["shed"], expecting="the engine has the deadline")
        found = shedding.expect_condition("CapacitySufficient", "True", within=300)
        note_figure(f"calm: {found['message']}")
    assert not calm.failures, calm.failures[0]
    setpoint = shedding.tuning()["setpoint"]
    assert setpoint["firstTokenDeadline"] == f"{DEADLINE:g}s"
    assert {"firstTokenMargin", "stepModel"} <= setpoint.keys()

    with shedding.streams(64).running() as totals:
        gated_since, before = time.monotonic(), shedding.kept(FIRST_TOKEN)
        eventually(lambda: totals.refused, expecting="a client is refused")
        eventually(
            lambda: len(let_in(totals, gated_since)) >= ENOUGH, expecting=f"{ENOUGH} requests are let in", within=300
        )
        shares = [seconds <= DEADLINE for seconds in let_in(totals, gated_since)]
        counted = shedding.kept(FIRST_TOKEN) - before
        note_figure(
            f"behind the gate {sum(shares) / len(shares):.0%} of {len(shares)} requests had their first token within"
            f" {DEADLINE:g} s by the clients, who share the processors with the engine; {counted.share:.0%} of"
            f" {counted.met + counted.violated} by its count; {len(totals.refused)} were refused"
        )
        assert counted.share > 0.5, "most of those let in keep their objective"
        assert min(totals.refused) >= 1, "Retry-After says when to come again"
        found = shedding.expect_condition("CapacitySufficient", "False", reason="Overloaded", within=300)
        note_figure(f"overload: {found['message']}")
        assert eventually(lambda: shedding.read()["status"].get("desiredReplicas"), expecting="advice") > 1

        patch(RESOURCE, shedding.name, {"spec": {"tuning": {"overload": "Queue"}}}, namespace=shedding.namespace)
        eventually(lambda: shedding.read_back()["accepted"]["shed"] is None, expecting="the engine has no deadline")
        assert "firstTokenDeadline" not in shedding.tuning()["setpoint"]
        finished = totals.finished
        # Whoever was refused as the gate went has heard of it by then.
        eventually(lambda: totals.finished >= finished + 10, expecting="requests go on ending", within=300)
        refused, finished = len(totals.refused), totals.finished
        eventually(lambda: totals.finished >= finished + 10, expecting="clients come again", within=300)
    # Everybody waits by then, and on leaving the block the last request of each of 64 clients has run to its end.
    assert len(totals.refused) == refused
    assert not totals.failures, totals.failures[0]
    after = shedding.pod()
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0


def let_in(totals: StreamTotals, since: float) -> list[float]:
    """Seconds to the first token of the requests sent since then that were answered."""
    return [first.seconds for first in totals.first_tokens if first.sent >= since]
