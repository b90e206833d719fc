"""A day of arrivals on pods that `spec.scaling` adds and removes, and the same day on pods that another rule scales.

The pods run the simulated engine in real time: each carries as much as a GPU and takes a few hundredths of a core. So
operator, Prometheus, Services and kubelet are real, and the day is that of `hack/bench scaling`, twice as fast. The
other rule, WVA's, has the same requests at the same time, on pods that are tuned alike. It has its second setting: with
its default it keeps 98.8 % here. All rules play the day in virtual time, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import pairwise

import pytest

from flyball_engine.contract import MetricName
from flyball_lab.benches.scaling.compare import CONSTANT, PRESET, RULES, SEED, SPARE_QUEUE, TPOT, TTFT, play
from flyball_lab.benches.scaling.load import Day
from flyball_lab.benches.scaling.rules import DOWN_SECONDS, LEAST, MOST, Saturation
from flyball_lab.harness import streams
from flyball_lab.harness.prometheus_api import PrometheusApi
from flyball_lab.harness.streams import PlannedStream, PlayedStream
from flyball_lab.quantiles import quantile
from flyball_operator.api.names import LABEL_SERVICE_UID
from support.cluster import Object, apply, delete, get, items
from support.kubectl_watch import watched
from support.live import MODEL, RESOURCE, Flyball, Service
from support.scaled_by_rule import scaled_by
from support.simulated_pods import simulated_service, simulator

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

#: The bench's in 45 minutes. Three times as many requests make up for windows of the law that pass no faster.
DAY = Day(speed=2.0, split=3.0)
#: Of a pod's start these are the kubelet's and Python's: the rest is what the simulated engine waits.
POD_SECONDS = 7.0
WINDOW = round(DOWN_SECONDS / DAY.speed)
#: Asked: of the requests that keep both objectives with the largest fleet, so many.
ATTAINED = 0.99
#: A request that was sent later says more of this machine than of the fleet.
LATE_SECONDS = 0.25
POD_LINE = '{.type} {.object.metadata.name} {.object.status.conditions[?(@.type=="Ready")].status}{"\\n"}'


@dataclass(frozen=True)
class Change:
    """Another number of replicas, and when it was heard of, in seconds of the day."""

    at: float
    before: int
    after: int


@dataclass(frozen=True)
class Scaled:
    """What came of the day on a service: its requests, its numbers of replicas, and when each pod was made and gone."""

    played: Sequence[PlayedStream]
    changes: Sequence[Change]
    lives: Sequence[tuple[float, float | None, float]]

    @property
    def attained(self) -> float:
        """Share of the requests that keep both objectives."""
        return sum(one.keeps(ttft=TTFT, tpot=TPOT) for one in self.played) / len(self.played)

    @property
    def hours(self) -> float:
        """Of all pods, from the making of each until it is gone."""
        return sum(gone - made for made, _, gone in self.lives) / 3600.0

    @property
    def most(self) -> int:
        """Replicas."""
        return max((one.after for one in self.changes), default=LEAST)


@dataclass(frozen=True)
class Services:
    """Two that are alike but for who sets their replicas."""

    ours: Service
    rule: Service


@pytest.fixture
def services(flyball: Flyball) -> Iterator[Services]:
    """Governed, with one simulated pod each."""
    found = Services(Service("scaled-by-us", flyball.watched), Service("scaled-by-rule", flyball.watched))
    apply(simulator(PRESET, start_seconds=PRESET.start_seconds / DAY.speed - POD_SECONDS), namespace=flyball.watched)
    scaling = {"minReplicas": LEAST, "maxReplicas": MOST, "scaleDown": {"stabilizationWindowSeconds": WINDOW}}
    by_rule = asked(found.rule.name, flyball)
    by_rule["spec"]["replicas"] = LEAST
    both = (found.ours, found.rule)
    try:
        for manifest in (asked(found.ours.name, flyball, scaling=scaling), by_rule):
            apply(manifest, namespace=flyball.watched)
        for service in both:
            service.expect_governed()
        yield found
    finally:
        for service in both:
            delete(RESOURCE, service.name, namespace=service.namespace)


def asked(name: str, flyball: Flyball, **spec: object) -> Object:
    """A service of simulated pods with the objectives of the bench."""
    objectives = [
        {"name": "first-token", "metric": "TimeToFirstToken", "threshold": f"{TTFT:g}s", "target": "99"},
        {"name": "per-token", "metric": "TimePerOutputToken", "threshold": f"{1000 * TPOT:g}ms", "target": "99"},
    ]
    return simulated_service(name, PRESET, image=flyball.refs["engine-cpu"], objectives=objectives, **spec)


@pytest.mark.timeout(5400)
def test_a_day_of_load_is_carried_by_fewer_pods_than_another_rule_needs(
    services: Services, note_figure: Callable[[str], None]
) -> None:
    clock = time.time()
    found, failed = play_on_both(services)
    ended = time.time()
    mine, peer = found[services.ours.name], found[services.rule.name]
    tell(note_figure, services.ours, mine)
    for service in (services.ours, services.rule):
        one = found[service.name]
        note_figure(f"engines of {service.name} counted {counted(service, clock, ended)}")
        note_figure(
            f"cluster: {service.name}: {one.attained:.2%} kept both objectives, {one.hours:.3f} pod-hours, at most"
            f" {one.most}, {len(one.changes)} changes"
        )
    note_figure(f"pod-hours, ours over the rule's: {mine.hours / peer.hours:.3f}; {len(failed)} looks of it failed")
    # A Service draws one pod for each request.
    virtual = {name: play(rule(DAY.speed), day=DAY, choices=1) for name, rule in RULES.items()}
    for name, run in virtual.items():
        note_figure(f"virtual: {name}: {run.attained:.2%}, {run.hours:.2f} replica-hours, {run.changes} changes")
    lost = [one for one in mine.played if one.lost is not None]
    assert not lost, f"{len(lost)} requests lost, first: {lost[0]}"
    assert not undone(mine.changes, WINDOW), undone(mine.changes, WINDOW)
    assert mine.attained >= ATTAINED * virtual[CONSTANT].attained
    assert peer.changes, f"the rule did nothing: {failed[:1]}"
    assert mine.hours < peer.hours


def play_on_both(services: Services) -> tuple[Mapping[str, Scaled], Sequence[str]]:
    """What came of the day on each service by name, and the looks of the rule that failed."""
    both = (services.ours, services.rule)
    planned = [PlannedStream(one.arrival, one.prompt, one.output) for one in DAY.requests(SEED)]
    with ExitStack() as stack:
        failed = stack.enter_context(scaled_by(Saturation(spare_queue=SPARE_QUEUE), services.rule, prometheus_api()))
        numbers, pods = (
            {service.name: stack.enter_context(watch(service)) for service in both} for watch in (numbers_of, pods_of)
        )
        began = time.monotonic()
        with ThreadPoolExecutor(len(both)) as pool:
            futures = {one.name: pool.submit(streams.play, one.url(), MODEL, planned) for one in both}
            played = {name: future.result() for name, future in futures.items()}
    assert all(pods.values()), "nothing was heard of the pods"
    found = {
        name: Scaled(
            played[name],
            changed([(at - began, int(line)) for at, line in numbers[name]]),
            lived([(at - began, line) for at, line in pods[name]], DAY.seconds),
        )
        for name in played
    }
    return found, failed


def numbers_of(service: Service) -> AbstractContextManager[list[tuple[float, str]]]:
    """The replicas that its Deployment asks for, as they change."""
    line = '-o=jsonpath={.spec.replicas}{"\\n"}'
    return watched("deployment", service.name, line, namespace=service.namespace)


def pods_of(service: Service) -> AbstractContextManager[list[tuple[float, str]]]:
    """Its pods, as they come, get Ready and go."""
    selector = f"--selector={LABEL_SERVICE_UID}={service.uid}"
    return watched("pods", selector, "--output-watch-events", f"-o=jsonpath={POD_LINE}", namespace=service.namespace)


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


def tell(note_figure: Callable[[str], None], service: Service, found: Scaled) -> None:
    """What happened, and how much of it is this machine's doing."""
    events = [one for one in items("events", namespace=service.namespace) if one["reason"] == "Rescaled"]
    why = sorted((one.get("eventTime") or one["firstTimestamp"], one["message"]) for one in events)
    for change in found.changes:
        note_figure(f"at {change.at:.0f} s: {change.before} to {change.after} replicas")
    for at, message in why:
        note_figure(f"{at}: {message}")
    note_figure(f"starts of pods: {', '.join(f'{ready - made:.0f} s' for made, ready, _ in found.lives[1:] if ready)}")
    late = [one.late for one in found.played]
    note_figure(f"{len(late)} requests, sent {quantile(late, 0.99):.3f} s late (p99), {max(late):.3f} s (most)")
    missed = [one for one in found.played if not one.keeps(ttft=TTFT, tpot=TPOT)]
    note_figure(
        f"{len(missed)} missed an objective, {sum(one.late > LATE_SECONDS for one in missed)} of them sent late; at "
        f"{', '.join(f'{one.planned.at:.0f}' for one in missed[:200])} s"
    )


def prometheus_api() -> PrometheusApi:
    address = get("service", "prometheus", namespace="monitoring")
    assert address is not None
    return PrometheusApi(f"http://{address['spec']['clusterIP']}:9090")


def counted(service: Service, began: float, ended: float) -> dict[str, int]:
    """Requests of the day by the engines' own clocks."""
    name = f'{MetricName.ALL_OBJECTIVES_REQUESTS}{{namespace="{service.namespace}",pod=~"{service.name}-.*"}}'
    query = f"sum by (outcome) (max_over_time({name}[{round(ended - began)}s]))"
    found = prometheus_api().instant(query, ended)
    return {labels["outcome"]: int(next(iter(values.values()))) for labels, values in found}
