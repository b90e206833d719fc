"""A day of arrivals on pods that `spec.scaling` adds and removes, and what other rules make of the same day.

The pods run the simulated engine in real time: each carries as much as a GPU and takes a few hundredths of a core. So
operator, Prometheus, Service and kubelet are real, and the day is that of `hack/bench scaling`, several times as fast.
The other rules play in virtual time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest

from flyball_engine.contract import MetricName
from flyball_lab.benches.scaling.compare import CONSTANT, PRESET, RULES, SEED, TPOT, TTFT, play
from flyball_lab.benches.scaling.load import Day
from flyball_lab.benches.scaling.rules import DOWN_SECONDS, LEAST, MOST
from flyball_lab.harness import streams
from flyball_lab.harness.prometheus_api import PrometheusApi
from flyball_lab.harness.streams import PlannedStream, PlayedStream
from flyball_lab.quantiles import quantile
from flyball_operator.api.names import LABEL_SERVICE_UID
from support.cluster import apply, delete, get, items
from support.kubectl_watch import watched
from support.live import MODEL, RESOURCE, Flyball, Service
from support.simulated_pods import simulated_service, simulator

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

#: The bench's in 22 minutes. Three times as many requests make up for windows of the law that pass no faster.
DAY = Day(speed=4.0, split=3.0)
#: Of a pod's start these are the kubelet's and Python's: the rest is what the simulated engine waits.
POD_SECONDS = 7.0
WINDOW = round(DOWN_SECONDS / DAY.speed)
#: Asked: of the requests that keep both objectives with the largest fleet, so many.
ATTAINED = 0.99
#: A request that was sent later says more of this machine than of the fleet.
LATE_SECONDS = 0.25


@dataclass(frozen=True)
class Change:
    """Another number of replicas, and when it was heard of, in seconds of the day."""

    at: float
    before: int
    after: int


@pytest.fixture
def scaled(flyball: Flyball) -> Iterator[Service]:
    """A service of one simulated pod that the operator scales."""
    service = Service("scaled-by-us", flyball.watched)
    apply(simulator(PRESET, start_seconds=PRESET.start_seconds / DAY.speed - POD_SECONDS), namespace=service.namespace)
    asked = simulated_service(
        service.name,
        PRESET,
        image=flyball.refs["engine-cpu"],
        scaling={"minReplicas": LEAST, "maxReplicas": MOST, "scaleDown": {"stabilizationWindowSeconds": WINDOW}},
        objectives=[
            {"name": "first-token", "metric": "TimeToFirstToken", "threshold": f"{TTFT:g}s", "target": "99"},
            {"name": "per-token", "metric": "TimePerOutputToken", "threshold": f"{1000 * TPOT:g}ms", "target": "99"},
        ],
    )
    apply(asked, namespace=service.namespace)
    service.expect_governed()
    yield service
    delete(RESOURCE, service.name, namespace=service.namespace)


@pytest.mark.timeout(3600)
def test_a_day_of_load_is_carried_by_pods_that_come_and_go(scaled: Service, note_figure: Callable[[str], None]) -> None:
    planned = [PlannedStream(one.arrival, one.prompt, one.output) for one in DAY.requests(SEED)]
    pod_line = '{.type} {.object.metadata.name} {.object.status.conditions[?(@.type=="Ready")].status}{"\\n"}'
    with (
        watched(
            "deployment", scaled.name, '-o=jsonpath={.spec.replicas}{"\\n"}', namespace=scaled.namespace
        ) as numbers,
        watched(
            "pods",
            f"--selector={LABEL_SERVICE_UID}={scaled.uid}",
            "--output-watch-events",
            f"-o=jsonpath={pod_line}",
            namespace=scaled.namespace,
        ) as pods,
    ):
        began, clock = time.monotonic(), time.time()
        played = streams.play(scaled.url(), MODEL, planned)
        ended = time.time()
    changes = changed([(at - began, int(line)) for at, line in numbers])
    lives = lived([(at - began, line) for at, line in pods], DAY.seconds)
    hours = sum(gone - made for made, _, gone in lives) / 3600.0
    attained = sum(one.keeps(ttft=TTFT, tpot=TPOT) for one in played) / len(played)
    lost = [one for one in played if one.lost is not None]
    tell(note_figure, scaled, changes, played)
    note_figure(f"starts of pods: {', '.join(f'{ready - made:.0f} s' for made, ready, _ in lives[1:] if ready)}")
    note_figure(f"engines counted {counted(clock, ended)}")
    note_figure(f"cluster: {attained:.2%} kept both objectives, {hours:.2f} pod-hours, {len(changes)} changes")
    # A Service draws one pod for each request.
    peers = {name: play(rule(DAY.speed), day=DAY, choices=1) for name, rule in RULES.items()}
    for name, run in peers.items():
        note_figure(f"virtual: {name}: {run.attained:.2%}, {run.hours:.2f} replica-hours, {run.changes} changes")
    assert not lost, f"{len(lost)} requests lost, first: {lost[0]}"
    assert not undone(changes, WINDOW), undone(changes, WINDOW)
    feasible = peers[CONSTANT].attained
    assert attained >= ATTAINED * feasible


def changed(numbers: Sequence[tuple[float, int]]) -> list[Change]:
    """The changes among numbers of which some are told twice."""
    return [Change(after[0], before[1], after[1]) for before, after in pairwise(numbers) if before[1] != after[1]]


def undone(changes: Sequence[Change], window: float) -> list[tuple[Change, Change]]:
    """Pods that were added and not kept for the window, each with the removal."""
    return [
        (added, removed)
        for number, added in enumerate(changes)
        for removed in changes[number + 1 :]
        if added.after > added.before and removed.after < added.after and removed.at < added.at + window
    ]


def lived(told: Sequence[tuple[float, str]], seconds: float) -> list[tuple[float, float | None, float]]:
    """When each pod was made, Ready and gone, within the day."""
    made: dict[str, float] = {}
    ready: dict[str, float] = {}
    gone: dict[str, float] = {}
    for at, line in told:
        event, name, *status = line.split()
        made.setdefault(name, max(0.0, at))
        if status == ["True"]:
            ready.setdefault(name, at)
        if event == "DELETED":
            gone[name] = at
    return [(at, ready.get(name), min(seconds, gone.get(name, seconds))) for name, at in made.items() if at < seconds]


def tell(
    note_figure: Callable[[str], None], service: Service, changes: Sequence[Change], played: Sequence[PlayedStream]
) -> None:
    """What happened, and how much of it is this machine's doing."""
    events = [one for one in items("events", namespace=service.namespace) if one["reason"] == "Rescaled"]
    why = sorted((one.get("eventTime") or one["firstTimestamp"], one["message"]) for one in events)
    for change in changes:
        note_figure(f"at {change.at:.0f} s: {change.before} to {change.after} replicas")
    for at, message in why:
        note_figure(f"{at}: {message}")
    late = [one.late for one in played]
    note_figure(f"{len(played)} requests, sent {quantile(late, 0.99):.3f} s late (p99), {max(late):.3f} s (most)")
    missed = [one for one in played if not one.keeps(ttft=TTFT, tpot=TPOT)]
    note_figure(
        f"{len(missed)} missed an objective, {sum(one.late > LATE_SECONDS for one in missed)} of them sent late; at "
        f"{', '.join(f'{one.planned.at:.0f}' for one in missed[:200])} s"
    )


def counted(began: float, ended: float) -> dict[str, int]:
    """Requests of the day by the engines' own clocks."""
    address = get("service", "prometheus", namespace="monitoring")
    assert address is not None
    prometheus = PrometheusApi(f"http://{address['spec']['clusterIP']}:9090")
    name = f'{MetricName.ALL_OBJECTIVES_REQUESTS}{{namespace="flyball-e2e-work",pod=~"scaled-by-us-.*"}}'
    query = f"sum by (outcome) (max_over_time({name}[{round(ended - began)}s]))"
    found = prometheus.instant(query, ended)
    return {labels["outcome"]: int(next(iter(values.values()))) for labels, values in found}
