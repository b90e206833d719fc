"""The console of an installed operator: on its pod's loopback, read by whoever may forward its ports."""

from __future__ import annotations

from contextlib import AbstractContextManager

import httpx
import pytest

from flyball_lab.harness.waiting import eventually
from support.cluster import Object
from support.listening_kubectl import listening
from support.live import Flyball, Service

pytestmark = pytest.mark.cluster

PORT = 8081


@pytest.fixture
def console_pod(flyball: Flyball) -> Object:
    """The operator's pod. Whoever asks for it has the console on."""
    eventually(lambda: len(flyball.operator_pods()) == 1, expecting="one pod of the operator")
    return flyball.operator_pods()[0]


def forwarded(pod: Object) -> AbstractContextManager[str]:
    """URL by which the pod's port answers here."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    return listening("port-forward", "-n", namespace, f"pod/{name}", f":{PORT}")


def test_who_may_forward_the_pods_ports_sees_a_service_and_changes_nothing(chat: Service, console_pod: Object) -> None:
    page = f"/services/{chat.namespace}/{chat.name}"
    with forwarded(console_pod) as url, httpx.Client(base_url=url, timeout=60) as reader:
        eventually(lambda: chat.name in reader.get("/").text, expecting="the fleet page names the service")
        shown = reader.get(page)
        assert shown.status_code == 200
        assert all(words in shown.text for words in ("ttft", "tpot", "Tuned", "Step-time model"))
        assert [reader.get(f"{page}/{more}").status_code for more in ("decisions", "what-if")] == [200, 200]
        assert reader.post(page).status_code == 405


def test_nobody_reaches_it_by_the_pods_address(console_pod: Object) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{console_pod['status']['podIP']}:{PORT}/", timeout=10)
