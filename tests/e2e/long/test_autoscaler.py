"""Another autoscaler follows the number of replicas that the load needs: the examples of an HPA and of KEDA.

The pods run the simulated engine; Prometheus, the controller of HPAs, prometheus-adapter and KEDA are the real ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import yaml

from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from flyball_lab.simulator.presets import PRESETS
from flyball_operator.api.names import PLURAL
from support.cluster import apply, condition, delete, kubectl, patch, throughout
from support.external_metrics import external_metrics, rules
from support.keda import keda
from support.live import RESOURCE, Flyball, Service, in_time
from support.simulated_pods import simulated_service, simulator

pytestmark = pytest.mark.cluster

EXAMPLES: Final = ROOT / "docs/examples/autoscaler"
PRESET: Final = PRESETS["l4-8b"]
#: Where an example begins, and streams of requests that need more replicas than that.
FIRST, STREAMS, PAUSE = 2, 140, 4.0
#: What an HPA says where it cannot read what the load needs.
UNKNOWN = "FailedGetExternalMetric"
#: An autoscaler looks every 15 s. So long it does nothing while it has no number.
BLIND_SECONDS = 60.0
#: Who writes a number: the user of the cluster's kubeconfig, and the controller of HPAs.
USER, HPA_CONTROLLER = "admin", "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
#: Pods are removed once they were not needed for five minutes, and start slowly on a busy machine.
SECONDS = 1200.0


@dataclass(frozen=True)
class Scaled:
    """A service and the HPA that scales it, KEDA's own or not."""

    service: Service
    hpa: str

    @property
    def number(self) -> int | None:
        """Replicas that are asked for, None where the service has no number."""
        found: int | None = self.service.read()["spec"].get("replicas")
        return found

    @property
    def replicas(self) -> tuple[int | None, int]:
        """Asked for, and Ready."""
        return self.number, self.service.read()["status"].get("readyReplicas", 0)

    def follows(self) -> int | None:
        """The replicas that the load needs, where they are more than at first, asked for and Ready."""
        needed: int = self.service.read()["status"].get("desiredReplicas", 0)
        return needed if needed > FIRST and self.replicas == (needed, needed) else None

    def says(self, type_: str) -> str:
        """The reason of a condition of the HPA, empty where it has none yet."""
        found = json.loads(kubectl("get", "hpa", self.hpa, "-n", self.service.namespace, "-o", "json"))
        return str(condition(found, type_).get("reason", ""))


@contextmanager
def by_hpa(service: Service, folder: Path) -> Iterator[Scaled]:
    """An HPA by prometheus-adapter, which keeps its files in the folder."""
    example = EXAMPLES / "hpa.yaml"
    with external_metrics(folder, rules(example)):
        apply(yaml.safe_load(example.read_text().replace("chat", service.name)), namespace=service.namespace)
        yield Scaled(service, service.name)
        delete("hpa", service.name, namespace=service.namespace)


@contextmanager
def by_keda(service: Service, _: Path) -> Iterator[Scaled]:
    """A ScaledObject, of which KEDA makes an HPA."""
    example = (EXAMPLES / "keda.yaml").read_text().replace("chat", service.name)
    # This cluster's Prometheus honours no labels.
    example = example.replace('namespace="default"', f'exported_namespace="{service.namespace}"')
    with keda():
        apply(yaml.safe_load(example), namespace=service.namespace)
        yield Scaled(service, f"keda-hpa-{service.name}")
        delete("scaledobjects.keda.sh", service.name, namespace=service.namespace)


@pytest.fixture(params=[by_hpa, by_keda], ids=["hpa", "keda"])
def scaled(request: pytest.FixtureRequest, flyball: Flyball, tmp_path: Path) -> Iterator[Scaled]:
    """A service that another autoscaler scales, with a first number as the examples say."""
    service = Service("scaled-by-others", flyball.watched)
    apply(simulator(PRESET, start_seconds=2.0), namespace=service.namespace)
    asked = simulated_service(service.name, PRESET, image=flyball.refs["engine-cpu"], objectives=in_time("3s", "150ms"))
    apply(asked, namespace=service.namespace)
    service.expect_governed()
    kubectl("scale", RESOURCE, service.name, "-n", service.namespace, f"--replicas={FIRST}")
    with request.param(service, tmp_path) as scaling:
        yield scaling
    delete(RESOURCE, service.name, namespace=service.namespace)


@pytest.mark.timeout(3 * SECONDS)
def test_another_autoscaler_follows_the_number_of_replicas_that_the_load_needs(
    scaled: Scaled, flyball: Flyball, note_figure: Callable[[str], None]
) -> None:
    with scaled.service.streams(STREAMS, pause=PAUSE).running() as busy:
        followed = eventually(scaled.follows, expecting="the pods that the load needs", within=SECONDS)
        assert scaled.says("ScalingActive") == "ValidMetricFound"
        note_figure(f"{STREAMS} streams: {followed} pods asked for, and Ready")
        with flyball.away():
            eventually(lambda: scaled.says("ScalingActive") == UNKNOWN, expecting="nothing to follow", within=SECONDS)
            kept = scaled.replicas
            throughout(lambda: scaled.replicas == kept, expecting="the same pods", seconds=BLIND_SECONDS, every=5.0)
    busy.expect_nothing_lost()
    with scaled.service.streams(1, pause=PAUSE).running() as calm:
        eventually(lambda: scaled.replicas == (1, 1), expecting="one pod for a load that one carries", within=SECONDS)
    calm.expect_nothing_lost()
    note_figure(f"{busy.finished} and {calm.finished} requests finished, none was lost")
    written = writes(flyball, scaled.service)
    scalers = {user for user, subresource in written if subresource == "scale"}
    assert scalers == {USER, HPA_CONTROLLER}, "the number is the autoscaler's, after the first"
    ours = {what for user, what in written if user.startswith(f"system:serviceaccount:{flyball.namespace}:")}
    assert ours == {"status"}, "Flyball writes nothing else"
    patch(RESOURCE, scaled.service.name, {"spec": {"replicas": None}}, namespace=scaled.service.namespace)
    eventually(lambda: scaled.says("AbleToScale") == "FailedGetScale", expecting="without a number it is left alone")


def writes(flyball: Flyball, service: Service) -> set[tuple[str, str]]:
    """Who wrote what of the service, by the audit log: user and subresource, which is empty for the object itself."""
    asked = ((entry, entry.get("objectRef") or {}) for entry in flyball.audit.entries(service.name))
    return {
        (entry["user"]["username"], where.get("subresource", ""))
        for entry, where in asked
        if (where.get("resource"), where.get("name")) == (PLURAL, service.name)
        and entry["verb"] in ("create", "update", "patch", "delete")
    }
