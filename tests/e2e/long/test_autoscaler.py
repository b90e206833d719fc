"""Another autoscaler follows the number of replicas that the load needs: the HPA of the documentation's example."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from support.cluster import Object, apply, condition, delete, get, kubectl
from support.external_metrics import external_metrics, rules
from support.live import RESOURCE, SHEDDING_DEADLINE, Flyball, Service, in_time, shedding_service

pytestmark = pytest.mark.cluster

EXAMPLE = ROOT / "docs/examples/autoscaler/hpa.yaml"
#: Pods are removed once they were not needed for five minutes, and engines start slowly on a busy machine.
SECONDS = 1200.0


@pytest.fixture
def scaled(flyball: Flyball, tmp_path: Path) -> Iterator[Service]:
    """A service that an HPA scales."""
    with (
        shedding_service(flyball, "scaled", in_time(f"{SHEDDING_DEADLINE:g}s", "1s")) as service,
        external_metrics(tmp_path, rules(EXAMPLE)),
    ):
        hpa: Object = yaml.safe_load(EXAMPLE.read_text())
        hpa["metadata"]["name"] = service.name
        hpa["spec"]["scaleTargetRef"]["name"] = service.name
        hpa["spec"]["maxReplicas"] = 2
        hpa["spec"]["metrics"][0]["external"]["metric"]["selector"]["matchLabels"]["service"] = service.name
        apply(hpa, namespace=service.namespace)
        yield service
        delete("hpa", service.name, namespace=service.namespace)


@pytest.mark.timeout(3 * SECONDS)
def test_an_hpa_follows_the_number_of_replicas_that_the_load_needs(
    scaled: Service, note_figure: Callable[[str], None]
) -> None:
    with scaled.streams(48).running() as totals:
        wanted = eventually(lambda: above_one(scaled), expecting="the load needs a second pod", within=SECONDS)
        note_figure(f"status.desiredReplicas is {wanted}")
        eventually(lambda: replicas(scaled) == (2, 2), expecting="the HPA has two pods run", within=SECONDS)
        hpa = json.loads(kubectl("get", "hpa", scaled.name, "-n", scaled.namespace, "-o", "json"))
        found = condition(hpa, "ScalingActive")
        assert (found["status"], found["reason"]) == ("True", "ValidMetricFound"), found
    with scaled.streams(1, pause=4.0).running() as calm:
        eventually(lambda: replicas(scaled) == (1, 1), expecting="the HPA has one pod run again", within=SECONDS)
    # Of the overload some were refused, also in a stream that had begun without a token.
    assert not totals.failures, totals.failures[0]
    calm.expect_nothing_lost()
    note_figure(f"{totals.finished} and {calm.finished} requests finished, {len(totals.refused)} were refused")
    assert writers_of_replicas(scaled) == {"kube-controller-manager"}, "the number is the autoscaler's"


def above_one(service: Service) -> int | None:
    """The replicas that the load needs, where it is more than one."""
    desired = service.read()["status"].get("desiredReplicas") or 0
    return desired if desired > 1 else None


def replicas(service: Service) -> tuple[int, int]:
    """Asked for, and Ready."""
    found = service.read()
    return found["spec"]["replicas"], found["status"].get("readyReplicas", 0)


def writers_of_replicas(service: Service) -> set[str]:
    """Who last set `spec.replicas`."""
    found = get(RESOURCE, service.name, namespace=service.namespace, managed=True)
    assert found is not None
    return {
        entry["manager"]
        for entry in found["metadata"]["managedFields"]
        if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
    }
