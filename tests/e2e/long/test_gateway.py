"""A gateway before two pods: Istio and Envoy, and an endpoint picker that reads how much time each has for a prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

from flyball_engine.contract import API_PORT, MetricName
from flyball_lab.harness.streams import StreamLoad
from flyball_lab.harness.waiting import eventually
from support import endpoint_picker, istio_gateway
from support.cluster import Object, apply, condition, delete, get
from support.live import (
    ANSWER,
    ENGINE_START_SECONDS,
    MODEL,
    PROMPTS,
    RESOURCE,
    Flyball,
    Service,
    in_time,
    inference_service,
    scrape,
)

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

FIRST_TOKEN = "5s"
#: Prompts that keep one pod busy, sent past the gateway, and how many seconds less that leaves a new prompt there.
BUSY_CLIENTS, LONG_PROMPT, LESS_SECONDS = 24, 1400, 1.0
#: Short ones that come by the gateway meanwhile: how many, and which part of them goes to the pod that has time.
SHORT_PROMPT, CLIENTS, ENOUGH, MOST = 64, 2, 40, 0.8


@pytest.fixture
def gateway(flyball: Flyball, tmp_path: Path) -> Iterator[str]:
    """The address of a gateway that takes routes of the watched namespace."""
    with istio_gateway.istio_gateway(tmp_path, flyball.watched) as url:
        yield url


@pytest.fixture
def routed(flyball: Flyball, gateway: str) -> Iterator[Service]:
    """A service with two pods behind the gateway. While no picker answers, the gateway refuses: nobody else chooses."""
    service = Service("routed", flyball.watched)
    asked = inference_service(service.name, image=flyball.refs["engine-cpu"], objectives=in_time(FIRST_TOKEN, "1s"))
    asked["spec"]["replicas"] = 2
    asked["spec"]["gateway"] = {
        "parentRefs": [{"name": istio_gateway.NAME, "namespace": istio_gateway.NAMESPACE}],
        "endpointPicker": {"name": endpoint_picker.NAME},
    }
    with endpoint_picker.endpoint_picker(service.name, service.namespace):
        apply(asked, namespace=service.namespace)
        service.expect_governed()
        yield service
        delete(RESOURCE, service.name, namespace=service.namespace)


@pytest.mark.timeout(3 * ENGINE_START_SECONDS)
def test_requests_by_a_gateway_go_where_they_have_time_and_none_is_lost_with_a_pod(
    routed: Service, gateway: str, note_figure: Callable[[str], None]
) -> None:
    routed.expect_condition("Routed", "True", reason="AcceptedByGateway")
    expect_answers_of_the_controller(routed)
    expect_pods_answer(routed, gateway, note_figure)
    expect_headroom_followed(routed, gateway, note_figure)
    expect_removal_unnoticed(routed, gateway, note_figure)


def load(url: str, clients: int, prompts: int | tuple[int, ...], answer: int = ANSWER) -> StreamLoad:
    return StreamLoad(url=url, model=MODEL, concurrency=clients, prompt_tokens=prompts, max_tokens=answer)


def served(pod: Object) -> int:
    """Requests that a pod's engine has answered."""
    found = re.findall(r"^vllm:request_success_total{.*} (\S+)$", scrape(pod, API_PORT), flags=re.MULTILINE)
    return int(sum(map(float, found)))


def headroom(pod: Object) -> float | None:
    """What the picker reads of a pod, in seconds."""
    found = re.findall(rf"^{MetricName.HEADROOM_SECONDS} (\S+)$", scrape(pod, API_PORT), flags=re.MULTILINE)
    return float(found[0]) if found else None


def name(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def expect_answers_of_the_controller(service: Service) -> None:
    """Route and pool are accepted, and what they refer to is there: by Istio, not by anybody else."""
    for kind in ("httproute", "inferencepool"):
        found = get(kind, service.name, namespace=service.namespace)
        assert found is not None
        (parent,) = found["status"]["parents"]
        assert parent["parentRef"]["name"] == istio_gateway.NAME
        assert parent.get("controllerName", istio_gateway.CONTROLLER) == istio_gateway.CONTROLLER
        said = {one["type"]: one["status"] for one in parent["conditions"]}
        assert {said["Accepted"], said["ResolvedRefs"]} == {"True"}, said


def expect_pods_answer(service: Service, gateway: str, note_figure: Callable[[str], None]) -> None:
    """Each request by the gateway is answered by a pod of the pool, and no pod is left out."""
    pods = service.pods()
    before = {name(pod): served(pod) for pod in pods}
    with load(gateway, 6, PROMPTS).running() as totals:
        eventually(
            lambda: all(headroom(pod) is not None for pod in pods),
            expecting="each pod tells what time a prompt has",
            within=300,
        )
        eventually(
            lambda: all(served(pod) > before[name(pod)] for pod in pods), expecting="each pod has answered", within=300
        )
    totals.expect_nothing_lost()

    def counted() -> list[int] | None:
        counts = [served(pod) - before[name(pod)] for pod in pods]
        return counts if sum(counts) == totals.finished else None

    counts = eventually(counted, expecting=f"the pods have answered {totals.finished} requests, and no others")
    note_figure(f"{totals.finished} requests by the gateway, none lost; by pod: {counts}")


def expect_headroom_followed(service: Service, gateway: str, note_figure: Callable[[str], None]) -> None:
    """While one pod has long prompts to work through, new requests go to the other."""
    busy, other = service.pods()
    with load(f"http://{busy['status']['podIP']}:{API_PORT}", BUSY_CLIENTS, LONG_PROMPT, answer=8).running() as long:

        def has_less() -> tuple[float, float] | None:
            less, more = headroom(busy), headroom(other)
            return (less, more) if less is not None and more is not None and less < more - LESS_SECONDS else None

        less, more = eventually(has_less, expecting="the busy pod has less time for a prompt", within=300)
        before = served(other)
        with load(gateway, CLIENTS, SHORT_PROMPT).running() as totals:
            eventually(lambda: totals.finished >= ENOUGH, expecting=f"{ENOUGH} requests by the gateway", within=300)
        share = (served(other) - before) / totals.finished
    totals.expect_nothing_lost()
    assert not long.failures, long.failures[0]
    first = median(one.seconds for one in totals.first_tokens)
    note_figure(
        f"headroom {less:.1f} s and {more:.1f} s: {share:.0%} of {totals.finished} requests by the gateway went to the"
        f" pod with more; median of their first tokens {first:.2f} s"
    )
    assert share >= MOST


def expect_removal_unnoticed(service: Service, gateway: str, note_figure: Callable[[str], None]) -> None:
    """A pod goes under load and another takes its place: requests go on, and reach the new one."""
    gone, *_ = before = service.pods()
    known = {name(pod) for pod in before}

    def newcomer() -> Object | None:
        found = (pod for pod in service.pods() if name(pod) not in known)
        return next((pod for pod in found if condition(pod, "Ready").get("status") == "True"), None)

    with load(gateway, 4, SHORT_PROMPT).running() as totals:
        eventually(lambda: totals.finished >= ENOUGH, expecting="requests go through", within=300)
        at_removal = totals.finished
        delete("pod", name(gone), namespace=service.namespace, wait=False)
        eventually(lambda: name(gone) not in map(name, service.pods()), expecting="the pod is gone")
        after = totals.finished
        fresh = eventually(newcomer, expecting="another pod is Ready", within=ENGINE_START_SECONDS)
        eventually(lambda: served(fresh) > 0, expecting="requests reach it", within=300)
    totals.expect_nothing_lost()
    note_figure(
        f"a pod removed after {at_removal} requests: {after - at_removal} more were answered until it was gone,"
        f" {totals.finished - after} until the new one had its share; none lost"
    )
