"""A new revision on a share of the pods, with the real Deployment controller, operator and Prometheus.

Tests play the kubelet, and what engines count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flyball_engine.contract import Metric, ObjectiveSpec
from flyball_lab.harness.manifests import Object
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.waiting import eventually
from support.cluster import apply, items, patch
from support.kubelet import play_kubelet
from support.operators import IMAGE, RESOURCE, OperatorProcess, condition, idle_service, made, one, serve
from support.played_metrics import PlayedMetrics, played, scraping
from support.tenants import operator

NEXT = "vllm/next:1"
REPLICAS = 4
#: The shortest that may be asked for.
DURATION = 60
TTFT = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=0.5)
OBJECTIVES = [{"name": "ttft", "metric": "TimeToFirstToken", "threshold": "500ms", "target": "95"}]
CANARY = {"startupTimeout": "10s", "canary": {"weight": 50, "duration": f"{DURATION}s"}}
WELL, BADLY = (20, 0), (10, 10)


@dataclass
class Judged:
    """A service whose next revision runs on two of its pods beside the four of the earlier one."""

    place: str
    metrics: PlayedMetrics
    operator: OperatorProcess

    def images(self) -> dict[str, list[str]]:
        """Names of its pods that stay, by image."""
        found: dict[str, list[str]] = {}
        for pod in items("pods", namespace=self.place, selector="app.kubernetes.io/managed-by=flyball"):
            if not pod["metadata"].get("deletionTimestamp"):
                found.setdefault(pod["spec"]["containers"][0]["image"], []).append(pod["metadata"]["name"])
        return found

    def counts(self) -> dict[str, int]:
        """How many there are."""
        return {image: len(pods) for image, pods in self.images().items()}

    def play(self, *, new: tuple[int, int]) -> None:
        """Pods become Ready, and requests come to each; to those of the new revision with these outcomes."""
        for image in (NEXT, IMAGE):
            play_kubelet(self.place, image=image)
        self.metrics.outcomes = {
            pod: new if image == NEXT else WELL for image, pods in self.images().items() for pod in pods
        }

    def deployment(self) -> Object:
        """Its Deployment."""
        return one("deployment", self.place)


@pytest.fixture
def judged(place: str, tmp_path: Path) -> Iterator[Judged]:
    """The service, as soon as the new revision's pods are there."""
    port = free_port()
    with scraping(tmp_path, port) as prometheus, operator(place, tmp_path, prometheus_url=prometheus.url) as process:
        apply(idle_service(spec__replicas=REPLICAS, spec__objectives=OBJECTIVES, spec__rollout=CANARY), namespace=place)
        made(place)
        serve(place, replicas=REPLICAS)
        metrics = PlayedMetrics(place, one(RESOURCE, place)["metadata"]["uid"], TTFT.id)
        with played(metrics, port):
            service = Judged(place, metrics, process)
            patch(RESOURCE, "chat", {"spec": {"engine": {"image": NEXT}}}, namespace=place)
            # Until a test plays the kubelet, these wait for a node, and the condition may say so from the start.
            eventually(
                lambda: service.counts() == {IMAGE: REPLICAS, NEXT: 2}, expecting="two pods of the next revision"
            )
            yield service


def expect_held(service: Judged) -> None:
    """Kubernetes' own controller holds the others: the new pods are Ready, and not yet available."""
    deployment = service.deployment()
    assert deployment["spec"]["minReadySeconds"] > DURATION
    assert deployment["spec"]["progressDeadlineSeconds"] > deployment["spec"]["minReadySeconds"]
    assert service.counts() == {IMAGE: REPLICAS, NEXT: 2}
    assert deployment["status"]["availableReplicas"] == REPLICAS


def test_a_revision_that_misses_what_the_earlier_one_keeps_is_aborted(judged: Judged) -> None:
    def aborted() -> bool:
        judged.play(new=BADLY)
        found = condition(judged.place, "Progressing")[:2]
        if found == ("True", "CanaryAnalysis") and judged.deployment()["status"].get("readyReplicas") == REPLICAS + 2:
            assert judged.deployment()["status"]["availableReplicas"] == REPLICAS
        # No earlier pod is ever taken away for it.
        assert judged.counts()[IMAGE] == REPLICAS
        return found == ("False", "RolledBack")

    eventually(aborted, expecting="the revision to be aborted", within=300, every=1)
    message = condition(judged.place, "Progressing")[2]
    assert message.startswith("CanaryMissedObjectives: the new revision missed ttft (95 % wanted): 50.00 % of")
    assert "earlier 100.00 % of" in message
    eventually(lambda: judged.counts() == {IMAGE: REPLICAS}, expecting="the earlier pods alone")
    assert "minReadySeconds" not in judged.deployment()["spec"]
    status = one(RESOURCE, judged.place)["status"]
    assert "canary" not in status
    eventually(lambda: "analysis" not in one(RESOURCE, judged.place)["status"], expecting="nothing to be judged")


def test_a_revision_that_keeps_its_objectives_is_promoted_after_its_time(judged: Judged) -> None:
    eventually(lambda: ready(judged, new=WELL) == REPLICAS + 2, expecting="all pods Ready", every=1)
    expect_held(judged)

    def complete() -> bool:
        judged.play(new=WELL)
        return condition(judged.place, "Ready")[:2] == ("True", "Serving")

    eventually(complete, expecting="the revision to be promoted", within=600, every=1)
    assert judged.counts() == {NEXT: REPLICAS}
    assert "minReadySeconds" not in judged.deployment()["spec"]
    told = [one["message"] for one in items("events", namespace=judged.place) if one["reason"] == "RollingOut"]
    assert any("misses no objective that the earlier one keeps: ttft (95 % wanted): 100.00 %" in text for text in told)


@pytest.mark.long
def test_without_an_operator_kubernetes_goes_on_by_itself_with_no_pod_less(judged: Judged) -> None:
    eventually(lambda: ready(judged, new=WELL) == REPLICAS + 2, expecting="all pods Ready", every=1)
    judged.operator.stop()

    def replaced() -> bool:
        judged.play(new=WELL)
        assert judged.deployment()["status"].get("availableReplicas", 0) >= REPLICAS
        return judged.counts() == {IMAGE: REPLICAS - 2, NEXT: 4}

    eventually(replaced, expecting="two pods more of the next revision", within=600, every=1)


def ready(service: Judged, *, new: tuple[int, int]) -> int:
    """Ready pods, once the kubelet was played."""
    service.play(new=new)
    return int(service.deployment()["status"].get("readyReplicas", 0))
