"""What a service deleted with `--cascade=orphan` leaves behind."""

from __future__ import annotations

import pytest

from flyball_lab.harness.streams import StreamLoad
from flyball_lab.harness.waiting import eventually
from support.cluster import apply, delete, get, kubectl
from support.live import MODEL, RESOURCE, Flyball, Service, inference_service

pytestmark = pytest.mark.cluster


def test_orphans_of_a_deleted_service_are_left_alone(flyball: Flyball) -> None:
    service = Service("orphan", flyball.watched)
    apply(inference_service(service.name, image=flyball.refs["engine-cpu"]), namespace=service.namespace)
    service.expect_governed()
    old = service.uid
    pod = service.pod()
    delete(RESOURCE, service.name, namespace=service.namespace, cascade="orphan")
    apply(inference_service(service.name, image=flyball.refs["engine-cpu"]), namespace=service.namespace)
    service.expect_condition("Accepted", "False", reason="NameConflict")
    load = StreamLoad(url=service.url(), model=MODEL, concurrency=2)
    with load.running() as totals:
        eventually(lambda: totals.finished > 2, expecting="the orphans serve on")
    totals.expect_nothing_lost()
    orphan = get("pod", pod["metadata"]["name"], namespace=service.namespace)
    assert orphan is not None
    assert orphan["metadata"]["uid"] == pod["metadata"]["uid"]
    for kind in ("deployments", "services", "poddisruptionbudgets"):
        kubectl("delete", kind, service.name, "-n", service.namespace)
    service.expect_condition("Accepted", "True")
    service.expect_governed(within=600)
    assert service.read_back()["service"] == service.uid != old
    delete(RESOURCE, service.name, namespace=service.namespace)
