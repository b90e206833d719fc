"""Faults at random for as long as asked: what must hold is looked at each second, and nothing grows.

`FLYBALL_TEST_SOAK_MINUTES` says for how long (120), `FLYBALL_TEST_SOAK_SEED` which faults in which order (a new seed
each time, which is printed).
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from flyball_lab.harness.streams import LostRequest, StreamLoad, StreamTotals
from flyball_lab.harness.waiting import eventually
from support.cluster import get, kubectl
from support.faults import FAULTS, Fault, engine_is_killed
from support.growth import Sample, slope
from support.invariants import Watch
from support.live import MODEL, RELEASE, Flyball, Service
from support.stepped_clock import have_stepped_clocks

pytestmark = pytest.mark.cluster

MINUTES = float(os.environ.get("FLYBALL_TEST_SOAK_MINUTES", "120"))
SEED = int(os.environ.get("FLYBALL_TEST_SOAK_SEED") or random.randrange(10_000))
#: Until all is as before, on a busy machine; an engine that was killed starts anew.
MEND_SECONDS = 600.0
#: Age in seconds from which an operator has filled its caches. Faults end it every few minutes.
SETTLED = 120.0
#: Growth over two hours that is none: pages that the allocator keeps, connections that come and go.
SLACK = {"memory": 32.0, "tasks": 8.0, "files": 8.0}


@dataclass(frozen=True)
class Period:
    """From when a fault began to when it was mended, on the monotonic clock."""

    fault: Fault
    began: float
    ended: float

    def meets(self, lost: LostRequest) -> bool:
        """Whether the request was under way then: a connection that nobody took may be given up when all is well."""
        return lost.sent <= self.ended and self.began <= lost.ended


@pytest.fixture
def watched(chat: Service, flyball: Flyball) -> Iterator[Watch]:
    """The service and two operators whose clocks can be stepped."""
    flyball.install(replicas=2)
    have_stepped_clocks(flyball)
    chat.expect_governed()
    yield Watch(chat, flyball)
    flyball.install(replicas=1)


@pytest.mark.timeout(60 * MINUTES + 3600)
def test_faults_at_random_break_nothing_and_nothing_grows(
    watched: Watch, chat: Service, flyball: Flyball, note_figure: Callable[[str], None]
) -> None:
    note_figure(f"seed {SEED}, {MINUTES:g} minutes")
    print(f"FLYBALL_TEST_SOAK_SEED={SEED}", flush=True)  # noqa: T201 - to be run again, also where it is cut off
    until, suffered = time.monotonic() + 60 * MINUTES, dict.fromkeys(FAULTS, 0)
    writes, transitions = len(flyball.writes()), lease_transitions(flyball)
    periods: list[Period] = []
    load = StreamLoad(url=chat.url(), model=MODEL, concurrency=4, prompt_tokens=(16, 200, 900), max_tokens=16)
    try:
        with load.running() as totals, watched.looking():
            for fault in in_turns(random.Random(SEED)):
                if time.monotonic() > until:
                    break
                watched.kills += fault is engine_is_killed
                began = time.monotonic()
                fault(chat, flyball)
                expect_mended(chat)
                periods.append(Period(fault, began, time.monotonic()))
                suffered[fault] += 1
                expect_requests_to_go_on(totals)
                broken = [*watched.broken, *unserved(totals, periods)]
                print(f"{fault.__name__}: {time.monotonic() - began:.0f} s, {broken}", flush=True)  # noqa: T201
    finally:  # also of a run that a fault ended
        watched.broken += unserved(load.totals, periods)
        note_figure(", ".join(f"{fault.__name__} {count} times" for fault, count in suffered.items()))
        note_figure(f"{load.totals.finished} requests finished, {len(lost_requests(load.totals))} lost")
        note_figure(f"looked at {watched.checks}, {len(watched.broken)} violations")
    expect_governed_by_one_after_another(flyball, writes, lease_transitions(flyball) - transitions, note_figure)
    for name, samples in watched.held.items():
        expect_flat(name, samples, note_figure)
    assert not watched.broken, watched.broken


def in_turns(chances: random.Random) -> Iterator[Fault]:
    """Faults without end; each once before any comes again, so that a short run has all of them."""
    for _ in itertools.count():
        yield from chances.sample(list(FAULTS), len(FAULTS))


def expect_mended(chat: Service) -> None:
    """All is as before: served, governed, measured, and its node heard from."""
    eventually(lambda: kubectl("get", "--raw", "/readyz"), expecting="the API server answers", within=MEND_SECONDS)
    # Two faults in a row that it cannot write in would make a node NotReady, whose pods are no endpoints.
    before = eventually(lambda: heard_from(chat), expecting="the kubelet has a Lease", within=MEND_SECONDS)
    eventually(lambda: heard_from(chat) > before, expecting="the kubelet renews its Lease", within=MEND_SECONDS)
    chat.expect_condition("MetricsAvailable", "True", within=MEND_SECONDS)
    chat.expect_condition("Ready", "True", within=MEND_SECONDS)
    chat.expect_governed(within=MEND_SECONDS)


def heard_from(chat: Service) -> str:
    """When the kubelet of the service's pod last renewed its Lease; later is more. Empty where nobody knows."""
    nodes = {str(pod["spec"].get("nodeName")) for pod in chat.pods()}
    leases = [get("lease", node, namespace="kube-node-lease") for node in nodes]
    return max((str(lease["spec"]["renewTime"]) for lease in leases if lease is not None), default="")


def expect_requests_to_go_on(totals: StreamTotals) -> None:
    finished = totals.finished
    eventually(lambda: totals.finished > finished + 8, expecting="requests go on", within=MEND_SECONDS)


def lost_requests(totals: StreamTotals) -> list[LostRequest]:
    """Of a stream that began, an engine that dies leaves an answer with too few tokens."""
    return [*totals.failures, *totals.truncated]


def unserved(totals: StreamTotals, periods: Sequence[Period]) -> list[str]:
    """Requests that were refused, and those that were lost while no killed engine was missing."""
    missing = [one for one in periods if one.fault is engine_is_killed]
    lost = [one for one in lost_requests(totals) if not any(period.meets(one) for period in missing)]
    refused = [f"{len(totals.refused)} refused"] if totals.refused else []
    beside = {period.fault.__name__: None for period in periods if any(period.meets(one) for one in lost)}
    return refused + ([f"{len(lost)} lost beside {', '.join(beside)}, first: {lost[0]}"] if lost else [])


def lease_transitions(flyball: Flyball) -> int:
    lease = get("lease", RELEASE, namespace=flyball.namespace)
    assert lease is not None
    return int(lease["spec"]["leaseTransitions"])


def expect_governed_by_one_after_another(
    flyball: Flyball, since: int, transitions: int, note_figure: Callable[[str], None]
) -> None:
    """By the audit log, writers changed no oftener than the Lease did: two at a time would take turns."""
    written = flyball.writes()[since:]
    order = [pod for pod, _ in itertools.groupby(pod for pod, _ in written)]
    note_figure(f"{len(written)} writes, {transitions} changes of the Lease, {len(order)} of the writer")
    assert len(order) <= transitions + 1, f"writers interleave: {order}"


def expect_flat(name: str, samples: list[Sample], note_figure: Callable[[str], None]) -> None:
    """It grows by less than the slack in two hours, and ends about where it began."""
    settled = [sample.figure for sample in samples if sample.age >= SETTLED]
    growth, third = slope(samples, settled=SETTLED), len(settled) // 3
    assert growth is not None, f"no operator lived for {SETTLED:g} s"
    assert third, "too few looks"
    first, last = statistics.median(settled[:third]), statistics.median(settled[-third:])
    note_figure(f"{name} of an operator: first third {first:.1f}, last third {last:.1f}, {growth:+.1f} an hour")
    assert 2 * growth < SLACK[name] or growth * MINUTES / 60 < SLACK[name], f"{name} grows by {growth:.1f} an hour"
    assert last < first + SLACK[name], f"{name} grew from {first:.1f} to {last:.1f}"
