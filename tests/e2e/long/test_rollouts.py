"""Specs that cannot run, while the earlier good one serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from flyball_lab.harness.streams import StreamLoad
from flyball_lab.harness.waiting import eventually
from support.cluster import Object, apply, delete, patch
from support.live import MODEL, RESOURCE, Flyball, Service, inference_service

pytestmark = pytest.mark.cluster

#: A failed rollout is given up after it. The kubelet says at once what it cannot do; an engine that finds no model must
#: have started beside all others, so that its last words are there to be told.
KUBELET, ENGINE = "30s", "4m"
#: Events tell of a volume that cannot be mounted, and are read of a pod that waits.
VOLUME = "90s"


@pytest.fixture(scope="module", params=[1, 2], ids=["one-replica", "two-replicas"])
def served(flyball: Flyball, request: pytest.FixtureRequest) -> Iterator[Service]:
    """A service of its own with one and with two replicas."""
    replicas: int = request.param
    service = Service(f"roll-{replicas}", flyball.watched)
    apply(
        inference_service(service.name, image=flyball.refs["engine-cpu"], replicas=replicas),
        namespace=service.namespace,
    )
    service.expect_governed()
    eventually(lambda: service.read()["status"]["readyReplicas"] == replicas, expecting="all replicas", within=420)
    yield service
    delete(RESOURCE, service.name, namespace=service.namespace)


def ready_uids(service: Service) -> set[str]:
    def ready(pod: Object) -> bool:
        return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))

    return {pod["metadata"]["uid"] for pod in service.pods() if ready(pod)}


#: Not pulled: a registry that does not answer is waited for.
NO_SUCH_IMAGE = {"image": "localhost/flyball/no-such-image:1", "imagePullPolicy": "Never"}
GATED = {"uri": "hf://flyball/gated", "tokenSecretRef": {"name": "no-such-secret", "key": "token"}}


@pytest.mark.parametrize(
    ("change", "cause", "patience"),
    [
        pytest.param({"engine": NO_SUCH_IMAGE}, "no-such-image", KUBELET, id="image"),
        pytest.param({"model": {"uri": "file:///models/no-such-model"}}, "no-such-model", ENGINE, id="model"),
        pytest.param({"model": GATED}, "no-such-secret", KUBELET, id="secret"),
        pytest.param({"engine": {"tls": {"secretName": "no-such-tls"}}}, "no-such-tls", VOLUME, id="certificate"),
    ],
)
def test_a_bad_spec_is_named_while_the_good_one_serves(
    served: Service, change: Object, cause: str, patience: str, note_figure: Callable[[str], None]
) -> None:
    before, ready = served.read()["spec"], ready_uids(served)
    good = {key: dict.fromkeys(change[key]) | before[key] for key in change}
    load = StreamLoad(url=served.url(), model=MODEL, concurrency=2)
    with load.running() as totals:
        bad = change | {"rollout": {"startupTimeout": patience}}
        patch(RESOURCE, served.name, {"spec": bad}, namespace=served.namespace)
        found = served.expect_condition("Progressing", "False", reason="RolledBack", within=900)
        note_figure(found["message"])
        assert cause in found["message"]
        assert served.condition("Ready")["reason"] == "RolledBack"
        assert served.condition("Available")["status"] == "True"
        assert ready & ready_uids(served), "the earlier good pods were replaced"
        patch(RESOURCE, served.name, {"spec": good | {"rollout": before["rollout"]}}, namespace=served.namespace)
        served.expect_condition("Progressing", "True", within=420)
        served.expect_governed()
        finished = totals.finished
        eventually(lambda: totals.finished > finished, expecting="requests go on")
    totals.expect_nothing_lost()
