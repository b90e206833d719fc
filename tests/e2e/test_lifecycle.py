"""Services that come, go and come again; upgrades of the operator; what the chart's account may do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flyball_lab.harness.streams import StreamLoad
from flyball_lab.harness.waiting import eventually
from support.cluster import apply, delete, get, items, kubectl, patch
from support.engine_starts import EngineStarts
from support.live import MODEL, RESOURCE, Flyball, Service, inference_service

pytestmark = pytest.mark.cluster

OWNED = ("deployments", "services", "poddisruptionbudgets", "controllerrevisions", "replicasets", "pods")


def owned_by(service: Service, uid: str) -> list[str]:
    """Names of everything on the cluster that carries this service's UID."""
    return [
        f"{kind}/{one['metadata']['name']}"
        for kind in OWNED
        for one in items(kind, namespace=service.namespace, selector=f"serving.flyball.dev/service-uid={uid}")
    ]


@pytest.fixture
def short(flyball: Flyball, starts: EngineStarts) -> Iterator[Service]:
    """A service of the scenario's own, gone however it ends: a second engine takes a core from the others."""
    made = Service("short", flyball.watched)
    starts.ask(made.name)
    yield made
    delete(RESOURCE, made.name, namespace=made.namespace)


def test_deleting_leaves_nothing(flyball: Flyball) -> None:
    service = Service("never-up", flyball.watched)
    apply(inference_service(service.name, image=flyball.refs["engine-cpu"]), namespace=service.namespace)
    eventually(service.pods, expecting="a pod")
    uid = service.uid
    assert owned_by(service, uid)
    delete(RESOURCE, service.name, namespace=service.namespace)
    eventually(lambda: not owned_by(service, uid), expecting="nothing of the service is left", within=240)


def test_a_service_that_is_made_again_governs_and_nothing_of_the_one_before_is_left(
    short: Service, starts: EngineStarts
) -> None:
    short.expect_governed()
    old = short.uid
    load = StreamLoad(url=short.url(), model=MODEL, concurrency=4)
    with load.running() as totals:  # its requests break when their pods go: that is what deleting asks for
        eventually(lambda: totals.finished > 0, expecting="requests")
        delete(RESOURCE, short.name, namespace=short.namespace, wait=False)
        eventually(lambda: get(RESOURCE, short.name, namespace=short.namespace) is None, expecting="gone")
        starts.ask(short.name)
    # Those that were still sent to the address of before have waited for it meanwhile.
    starts.ask_next()
    short.expect_governed(within=600)
    expect_served(short)
    assert short.uid != old
    assert short.read_back()["service"] == short.uid
    eventually(lambda: not owned_by(short, old), expecting="nothing of the old service is left", within=240)


def expect_served(service: Service) -> None:
    """Whatever pods there are serve."""
    load = StreamLoad(url=service.url(), model=MODEL, concurrency=2)  # another cluster IP than before
    with load.running() as served:
        eventually(lambda: served.finished > 2, expecting="the pods serve")
    served.expect_nothing_lost()


@pytest.mark.long
def test_what_a_deleted_service_left_is_nobodys(short: Service, starts: EngineStarts) -> None:
    """Deleted with `--cascade=orphan` and made again, it waits until somebody removes what serves."""
    short.expect_governed()
    old, pod = short.uid, short.pod()
    delete(RESOURCE, short.name, namespace=short.namespace, cascade="orphan")
    starts.ask(short.name)
    short.expect_condition("Accepted", "False", reason="NameConflict")
    expect_served(short)
    orphan = get("pod", pod["metadata"]["name"], namespace=short.namespace)
    assert orphan is not None
    assert orphan["metadata"]["uid"] == pod["metadata"]["uid"]
    for kind in ("deployments", "services", "poddisruptionbudgets"):
        kubectl("delete", kind, short.name, "-n", short.namespace)
    short.expect_condition("Accepted", "True")
    short.expect_governed(within=600)
    assert short.read_back()["service"] == short.uid != old


def test_an_edited_objective_is_counted_against_and_rolls_no_pod(chat: Service) -> None:
    pod, before = chat.pod(), chat.read()
    with objective(chat, seconds=6):
        assert chat.read()["metadata"]["generation"] > before["metadata"]["generation"]
        assert chat.pod()["metadata"]["uid"] == pod["metadata"]["uid"]
    assert chat.read()["spec"]["objectives"] == before["spec"]["objectives"]


@contextmanager
def objective(chat: Service, *, seconds: int) -> Iterator[None]:
    """Another objective, which the engine counts against, for as long as the block lasts."""
    before = chat.read()["spec"]["objectives"]
    other = [{"name": "ttft", "metric": "TimeToFirstToken", "threshold": f"{seconds}s", "target": "90"}]
    patch(RESOURCE, chat.name, {"spec": {"objectives": other}}, namespace=chat.namespace)
    try:
        eventually(lambda: counted(chat) == [float(seconds)], expecting="the engine counts against the new objective")
        yield
    finally:
        patch(RESOURCE, chat.name, {"spec": {"objectives": before}}, namespace=chat.namespace)
        eventually(lambda: len(counted(chat)) == len(before), expecting="the earlier objectives back")


def counted(chat: Service) -> list[float]:
    """Thresholds, in seconds, that the engine counts against."""
    accepted = chat.read_back()["accepted"] or {}
    return [one["threshold_seconds"] for one in accepted.get("objectives", [])]
