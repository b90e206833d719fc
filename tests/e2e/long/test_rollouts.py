"""Specs that cannot run, while the earlier good one serves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cluster import Object, apply, delete, eventually, patch
from support.live import MODEL, RESOURCE, Flyball, Service, inference_service
from support.streams import StreamLoad

pytestmark = pytest.mark.cluster

#: A start-up time that the engine is sure to keep on a busy machine; a failed rollout is given up after it.
STARTUP = "4m"


@pytest.fixture(scope="module", params=[1, 2], ids=["one-replica", "two-replicas"])
def served(flyball: Flyball, request: pytest.FixtureRequest) -> Iterator[Service]:
    """A service of its own with one and with two replicas."""
    replicas: int = request.param
    service = Service(f"roll-{replicas}", flyball.watched)
    rollout = {"startupTimeout": STARTUP, "drainTimeout": "20s"}
    manifest = inference_service(service.name, image=flyball.refs["engine-cpu"], replicas=replicas, rollout=rollout)
    apply(manifest, namespace=service.namespace)
    service.expect_governed()
    eventually(lambda: service.read()["status"]["readyReplicas"] == replicas, expecting="all replicas", within=420)
    yield service
    delete(RESOURCE, service.name, namespace=service.namespace)


def ready_uids(service: Service) -> set[str]:
    def ready(pod: Object) -> bool:
        return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))

    return {pod["metadata"]["uid"] for pod in service.pods() if ready(pod)}


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        pytest.param({"engine": {"image": "localhost/flyball/no-such-image:1"}}, "image", id="image"),
        pytest.param({"model": {"uri": "file:///models/no-such-model"}}, "model", id="model"),
    ],
)
def test_a_bad_spec_is_named_while_the_good_one_serves(served: Service, change: Object, cause: str) -> None:
    good = {key: served.read()["spec"][key] for key in change}
    before = ready_uids(served)
    load = StreamLoad(url=served.url(), model=MODEL, concurrency=2)
    with load.running() as totals:
        patch(RESOURCE, served.name, {"spec": change}, namespace=served.namespace)
        found = served.expect_condition("Progressing", "False", reason="RolledBack", within=900)
        assert cause in found["message"].lower()
        assert served.condition("Ready")["status"] == "True"
        assert before & ready_uids(served), "the earlier good pods were replaced"
        patch(RESOURCE, served.name, {"spec": good}, namespace=served.namespace)
        served.expect_condition("Progressing", "True", within=420)
        served.expect_governed()
    totals.expect_nothing_lost()
