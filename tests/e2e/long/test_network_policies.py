"""NetworkPolicies of the chart and of the operator, held by a network that enforces them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flyball_engine.contract import API_PORT, CONTROL_PORT
from flyball_lab.harness.waiting import eventually
from support.cluster import Object, items, patch
from support.live import RESOURCE, Flyball, Service
from support.network_enforcement import connects, enforced
from support.node import on_node

pytestmark = pytest.mark.cluster

METRICS_PORT = 8080
#: This cluster's Prometheus has another label than the chart expects. It stands in for clients, too.
PROMETHEUS = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
    "podSelector": {"matchLabels": {"app": "prometheus"}},
}


@pytest.fixture
def fenced(flyball: Flyball, chat: Service) -> Iterator[Service]:
    """The service, while Prometheus alone may use the API and scrape."""
    flyball.install(networkPolicy={"enabled": True, "prometheus": [PROMETHEUS], "clients": [PROMETHEUS]})
    yield chat
    patch(RESOURCE, chat.name, {"spec": {"tuning": {"bounds": None}}}, namespace=chat.namespace)
    flyball.install(networkPolicy={"enabled": True})


def the_pod(namespace: str, selector: str) -> Object:
    return items("pods", namespace=namespace, selector=selector)[0]


def address(pod: Object) -> str:
    return str(pod["status"]["podIP"])


def expect_batch(engine: Object, limit: int) -> None:
    """The engine says that it runs so many requests at once. The node asks it, which is held off from no pod."""
    url = f"http://{address(engine)}:{CONTROL_PORT}/v1/setpoint"

    def runs() -> bool:
        said = json.loads(on_node("curl", "--silent", "--fail", url))
        return bool(said["cores"][0]["effective"]["max_num_active_seqs"] == limit)

    eventually(runs, expecting=f"the engine runs {limit} at once")


def test_whom_no_policy_names_reaches_no_port_and_the_operator_goes_on(
    flyball: Flyball, fenced: Service, tmp_path: Path, note_figure: Callable[[str], None]
) -> None:
    engine, (operator, *_) = fenced.pod(), flyball.operator_pods()
    stranger, named = the_pod("kube-system", "k8s-app=kube-dns"), the_pod("monitoring", "app=prometheus")
    ports = [
        (address(engine), API_PORT),
        (address(engine), CONTROL_PORT),
        (address(operator), METRICS_PORT),
    ]

    def reached(by: Object) -> list[int]:
        return [port for to, port in ports if connects(by, to, port)]

    everything = [port for _, port in ports]
    assert reached(stranger) == everything, "as long as nothing enforces the policies"
    with enforced(tmp_path, engine["spec"]["nodeName"]):
        eventually(lambda: reached(stranger) == [], expecting="a stranger reaches no port")
        assert reached(named) == everything
        # Of the operator's two ways to an engine one is pushed through here, and the other asks what came of it.
        for limit in (9, 11):
            bounds = {"maxNumActiveSeqs": {"min": limit, "max": limit}}
            patch(RESOURCE, fenced.name, {"spec": {"tuning": {"bounds": bounds}}}, namespace=fenced.namespace)
            expect_batch(engine, limit)
            fenced.expect_governed()
        assert reached(stranger) == []
    eventually(lambda: reached(stranger) == everything, expecting="the network is as it was")
    note_figure(f"ports {everything}: open to a stranger without enforcement, none with it; two setpoints went through")
