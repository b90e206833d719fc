"""A model that a Job downloads once, in real pods: later ones start without a network. And what goes wrong on the way.

The volumes are folders of the node, so what only a driver does cannot be seen here: a volume that grows, and one that
nodes share.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from flyball_operator.api.objects import moment
from support.buckets import KEY, REGION, SECRET
from support.cluster import Object, apply, condition, delete, items, kubectl, patch
from support.disks import Disks, disks
from support.hub import COMMIT
from support.inside_engines import answer_of, run_inside
from support.live import ENGINE_START_SECONDS, MODEL, RESOURCE, Flyball, Service, inference_service
from support.model_servers import WEIGHTS, Mirror, S3Pod, mirror

pytestmark = pytest.mark.cluster

#: Services of the scenarios, and the room on a volume that has an end. The model has 60 MiB.
SIZES = {"serving": "", "interrupted": "", "revision": "", "checksum": "", "full": "96Mi", "away": "", "bucket": ""}
FILLED_MEBIBYTES = 60


@pytest.fixture(scope="module")
def volumes(flyball: Flyball) -> Iterator[Disks]:
    with disks(flyball.watched, flyball.refs["engine-cpu"], SIZES) as made:
        yield made


@pytest.fixture
def hub(flyball: Flyball) -> Iterator[Mirror]:
    with mirror(flyball.watched, flyball.refs["engine-cpu"]) as made:
        yield made


Ask = Callable[..., Service]


@pytest.fixture
def ask(flyball: Flyball, volumes: Disks) -> Iterator[Ask]:
    """Ask for a service whose model is in a volume of its own, by default without pods; gone at the end."""
    made: list[Service] = []

    def cached(
        name: str,
        *,
        replicas: int = 0,
        uri: str = "hf://org/tiny",
        env: dict[str, str] | None = None,
        s3: Object | None = None,
        **cache: Any,
    ) -> Service:
        source = {"uri": uri, "servedName": MODEL, "cache": {"claim": volumes.claim(), **cache}}
        model = source | ({"s3": s3} if s3 else {})
        body = inference_service(name, image=flyball.refs["engine-cpu"], model=model, replicas=replicas)
        body["spec"]["engine"]["env"] += [{"name": key, "value": value} for key, value in (env or {}).items()]
        made.append(Service(name, flyball.watched))
        apply(body, namespace=flyball.watched)
        return made[-1]

    yield cached
    for service in made:
        delete(RESOURCE, service.name, namespace=service.namespace)


def expect_model(service: Service, *, within: float = 180) -> str:
    """Wait until the volume has the model; the message."""
    message = str(service.expect_condition("ModelReady", "True", reason="Downloaded", within=within)["message"])
    assert service.condition("Stalled") == {}
    return message


def expect_named(service: Service, reason: str, *, stalled: bool = False) -> str:
    """Wait until the condition has this reason, which `kubectl describe` shows with the message; returns that."""
    message = str(service.expect_condition("ModelReady", "False", reason=reason)["message"])
    if stalled:
        service.expect_condition("Stalled", "True", reason=reason)
    shown = kubectl("describe", RESOURCE, service.name, "-n", service.namespace)
    assert reason in shown
    return message


def job_pods(service: Service) -> list[Object]:
    selector = f"{names.LABEL_SERVICE}={service.name},{names.LABEL_NAME}=flyball-download"
    return items("pods", namespace=service.namespace, selector=selector)


def test_an_interrupted_download_shows_how_far_it_is_and_goes_on_from_there(ask: Ask, hub: Mirror) -> None:
    hub.set(holds={WEIGHTS: 32 << 20})
    # The client gives up on a hub that is silent for 10 s.
    service = ask("interrupted", env={"HF_ENDPOINT": hub.address, "HF_HUB_DOWNLOAD_TIMEOUT": "300"})

    def told() -> bool:
        found = service.condition("ModelReady")
        return found.get("reason") == "Downloading" and "0.03 of 0.06 GB" in found["message"]

    eventually(told, expecting="half of the model")
    (pod,) = job_pods(service)
    kubectl("delete", "pod", pod["metadata"]["name"], "-n", service.namespace)
    hub.set(holds={})
    expect_model(service)
    first, second = hub.ranges()
    assert first == ""
    assert second == f"bytes={30 << 20}-"


def test_a_missing_revision_is_named_until_it_is_corrected(ask: Ask, hub: Mirror) -> None:
    service = ask("revision", revision="v9", env={"HF_ENDPOINT": hub.address})
    assert "v9" in expect_named(service, "RevisionNotFound", stalled=True)
    patch(RESOURCE, service.name, {"spec": {"model": {"cache": {"revision": "main"}}}}, namespace=service.namespace)
    assert COMMIT in expect_model(service)


def test_a_damaged_file_is_named_and_downloaded_again_without_anybodys_help(ask: Ask, hub: Mirror) -> None:
    hub.set(damaged={WEIGHTS: 2})
    service = ask("checksum", env={"HF_ENDPOINT": hub.address})
    assert WEIGHTS in expect_named(service, "ChecksumMismatch")
    expect_model(service)
    assert len(hub.ranges()) == 3


def test_a_full_volume_is_named_and_filled_once_there_is_room(ask: Ask, hub: Mirror, volumes: Disks) -> None:
    volumes.fill("full", FILLED_MEBIBYTES)
    service = ask("full", env={"HF_ENDPOINT": hub.address})
    message = expect_named(service, "VolumeFull", stalled=True)
    volumes.empty("full")
    (remedy,) = re.findall(r"kubectl delete job \S+ -n \S+", message)
    subprocess.run(shlex.split(remedy), check=True)
    expect_model(service)


def test_a_mirror_that_is_away_is_named_and_waited_for(ask: Ask, hub: Mirror) -> None:
    hub.stop()
    service = ask("away", env={"HF_ENDPOINT": hub.address})
    expect_named(service, "HubUnreachable")
    hub.start()
    expect_model(service)


def test_pods_start_from_the_volume_when_nothing_else_is_left(
    ask: Ask, hub: Mirror, note_figure: Callable[[str], None]
) -> None:
    service = ask("serving", replicas=1, env={"HF_ENDPOINT": hub.address}, keepsCompiled=True)
    message = expect_model(service)
    assert message.startswith(f"downloaded org/tiny at commit {COMMIT}")
    asked = hub.set()
    service.expect_governed()
    first = service.pod()
    note_figure(f"{message}; {seconds_of_job(service):.0f} s from the Job's creation to its end")
    note_figure(f"cold: the first pod is Ready {since(service.read(), first):.0f} s after the service was created")
    note_figure(f"  {since(first, first):.0f} s after the pod was")
    assert hub.set() == asked, "the engine asked the mirror"

    reach = f"import urllib.request as r; r.urlopen('{hub.address}/api/models/org/tiny/revision/main', timeout=5)"
    assert run_inside(first, reach) == 0
    hub.stop()
    assert run_inside(first, reach) != 0
    assert run_inside(first, "open('/model/written', 'w')") != 0, "the model can be written to"
    assert run_inside(first, "import os; assert os.listdir('/flyball-compiled')") == 0, "nothing compiled is kept"
    patch(RESOURCE, service.name, {"spec": {"replicas": 2}}, namespace=service.namespace)
    eventually(lambda: service.read()["status"].get("readyReplicas") == 2, expecting="two", within=ENGINE_START_SECONDS)
    (second,) = (pod for pod in service.pods() if pod["metadata"]["uid"] != first["metadata"]["uid"])
    note_figure(f"warm: the second pod is Ready {since(second, second):.0f} s after it was created, without the mirror")
    assert answer_of(first) == answer_of(second)


def test_a_model_in_a_bucket_comes_by_the_same_job(ask: Ask, flyball: Flyball) -> None:
    server = S3Pod(flyball.watched, flyball.refs["engine-cpu"])
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bucket"}, "stringData": keys}
    server.start("models", "team/tiny/")
    try:
        s3 = {"endpoint": server.address, "region": REGION, "secretName": "bucket"}
        service = ask("bucket", uri="s3://models/team/tiny", s3=s3)
        service.expect_condition("ModelReady", "False")
        lacking = "a Secret is missing"
        eventually(lambda: 'secret "bucket" not found' in service.condition("ModelReady")["message"], expecting=lacking)
        apply(secret, namespace=flyball.watched)
        assert expect_model(service).startswith("downloaded s3://models/team/tiny")
    finally:
        server.stop()


def since(begun: Object, pod: Object) -> float:
    """Seconds from an object's creation to a pod's being Ready, as the API server has both."""
    ready, created = condition(pod, "Ready")["lastTransitionTime"], begun["metadata"]["creationTimestamp"]
    return (_moment(ready) - _moment(created)).total_seconds()


def seconds_of_job(service: Service) -> float:
    (job,) = items("jobs", namespace=service.namespace, selector=f"{names.LABEL_SERVICE_UID}={service.uid}")
    ended, created = job["status"]["completionTime"], job["metadata"]["creationTimestamp"]
    return (_moment(ended) - _moment(created)).total_seconds()


def _moment(text: str) -> datetime:
    found = moment(text)
    assert found is not None
    return found
