"""Several namespaces under the chart's own rights: what happens to one is that one's alone, and passes by itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from flyball_operator.api.service_key import Key
from flyball_operator.app.kopf_glue import Watch, WatchHandlers
from flyball_operator.app.main import ExitCode
from flyball_operator.kube.cache import Cache
from flyball_operator.kube.configuration import load_configuration
from flyball_operator.kube.resources import LEASES, WATCHED, labelled
from flyball_operator.reconcile.queue import KeyQueue
from support.cluster import apply, get, items, kubectl
from support.operators import OperatorProcess, condition, expect_condition, idle_service, proxy
from support.operators import serve as serve_pods
from support.tenants import Release, tenants

RESOURCE = "inferenceservices.serving.flyball.dev"
#: Two tenants that go on beside the one that something happens to.
TENANTS = 3
#: What is asked of a namespace where nothing is granted: whether it is there, and which services shall be told.
LOOKS = ("get namespaces", "list inferenceservices")
#: All that is asked of a namespace; any of it may be under way when its rights go.
EVERYTHING = (*LOOKS, *(f"{verb} {one.plural}" for one in (*WATCHED, LEASES) for verb in one.verbs))


@pytest.fixture
def three(crd: Path) -> Iterator[Release]:
    """Three tenants of the test's own."""
    with tenants(TENANTS) as made:
        yield made


def start(
    three: Release, folder: Path, *, kubeconfig: str = "", name: str = "one", resync_seconds: int = 300
) -> OperatorProcess:
    """An operator for all of them, with the rights of the chart's account."""
    return three.process(folder, name=name, kubeconfig=kubeconfig, resync_seconds=str(resync_seconds))


def serve(*places: str) -> None:
    for place in places:
        apply(idle_service(), namespace=place)
        expect_condition(place, "Accepted", "True", "Accepted")


def expect_watched(operator: OperatorProcess, place: str, *, so: bool) -> None:
    eventually(lambda: operator.watches(place) is so, expecting=f"{place} watched: {so}", within=180)


def expect_edits_to_be_seen(place: str) -> None:
    """Sooner than any list would show them."""
    spec = (get(RESOURCE, "chat", namespace=place) or {})["spec"]
    change = json.dumps({"spec": {"replicas": 1 + spec.get("replicas", 0) % 3}})
    kubectl("patch", RESOURCE, "chat", "-n", place, "--type=merge", "-p", change)
    generation = (get(RESOURCE, "chat", namespace=place) or {})["metadata"]["generation"]

    def seen() -> bool:
        found = get(RESOURCE, "chat", namespace=place) or {}
        return bool(found["status"].get("observedGeneration") == generation)

    eventually(seen, expecting=f"the edit in {place} to be seen", within=240)


def expect_tuning_to_pause(place: str) -> None:
    kubectl("annotate", RESOURCE, "chat", "-n", place, f"{names.ANNOTATION_TUNING}=Paused")
    expect_condition(place, "Tuned", "False", "Paused")
    kubectl("annotate", RESOURCE, "chat", "-n", place, f"{names.ANNOTATION_TUNING}-")


def expect_well(operator: OperatorProcess) -> None:
    assert operator.healthz() == (200, "ok\n")
    assert operator.readyz() == (200, "ok\n")
    assert not operator.trouble()


def said(operator: OperatorProcess, words: str) -> list[str]:
    """What it logged with these words in it."""
    lines = [json.loads(line) for line in operator.log.read_text().splitlines() if line.startswith("{")]
    return [line["message"] for line in lines if words in line["message"]]


def test_rights_that_are_taken_away_for_a_while_stop_no_other_tenant(three: Release, tmp_path: Path) -> None:
    first, second, _ = three.names
    with proxy(tmp_path) as (kubeconfig, way):
        operator = start(three, tmp_path, kubeconfig=kubeconfig)
        try:
            operator.expect_ready()
            serve(first, second)
            three.may_be_refused(first, *EVERYTHING)
            three.revoke(first)
            # A stream that is open goes on without rights; each asks anew.
            way.send_signal(signal.SIGUSR1)
            expect_watched(operator, first, so=False)
            assert len(said(operator, f"namespace {first} is not watched: no right is granted")) == 1
            expect_edits_to_be_seen(second)
            expect_tuning_to_pause(second)
            expect_well(operator)
            three.grant(first)
            expect_watched(operator, first, so=True)
            expect_edits_to_be_seen(first)
            expect_well(operator)
            operator.send(signal.SIGTERM)
            assert operator.expect_exit() == ExitCode.OK
        finally:
            operator.stop()


def test_a_namespace_that_is_deleted_stops_no_other_and_is_taken_up_again(three: Release, tmp_path: Path) -> None:
    first, second, gone = three.names
    leader = start(three, tmp_path, name="first", resync_seconds=5)
    other: OperatorProcess | None = None
    try:
        leader.expect_ready()
        serve(first, second, gone)
        three.may_be_refused(gone, *EVERYTHING)
        kubectl("delete", "namespace", gone, timeout=180)
        expect_watched(leader, gone, so=False)
        assert said(leader, f"namespace {gone} is not watched: no right is granted in namespace {gone}: it is gone, or")
        expect_edits_to_be_seen(second)
        expect_well(leader)
        # One that starts is Ready, and leads, while the namespace is missing.
        other = start(three, tmp_path, name="second", resync_seconds=5)
        other.expect_ready()
        leader.send(signal.SIGTERM)
        assert leader.expect_exit() == ExitCode.OK
        expect_edits_to_be_seen(first)
        assert not other.watches(gone)
        three.make_again(gone)
        serve(gone)
        assert other.watches(gone)
        expect_well(other)
    finally:
        leader.stop()
        if other is not None:
            other.stop()


def test_where_pods_may_not_be_read_the_services_say_so(three: Release, tmp_path: Path) -> None:
    first, second, _ = three.names
    operator = start(three, tmp_path, resync_seconds=5)
    try:
        operator.expect_ready()
        serve(first, second)
        three.may_be_refused(first, "get pods", "list pods", "watch pods")
        three.hide(first, "pods")
        message = expect_condition(first, "Ready", "Unknown", "NamespaceNotWatched")
        assert f"not granted: get pods.core in namespace {first}" in message
        expect_condition(first, "Tuned", "Unknown", "NotTuned")
        assert condition(second, "Accepted")[0] == "True"
        three.grant(first)
        expect_condition(first, "Accepted", "True", "Accepted", within=180)
        expect_condition(first, "Tuned", "Unknown", "NoReadyPods")
        expect_well(operator)
    finally:
        operator.stop()


def test_namespaces_come_and_go_with_their_labels(crd: Path, tmp_path: Path) -> None:
    label = {"flyball.test/serve": uuid.uuid4().hex[:6]}
    selector = ",".join(f"{key}={value}" for key, value in label.items())
    with tenants(2, labels=label) as two:
        first, second = two.names
        operator = two.process(tmp_path, watch_namespace_selector=selector)
        try:
            operator.expect_ready()
            assert f'namespace="{first}"' not in operator.metrics(), "none is selected, so none is watched"
            two.bind(first)
            for place in two.names:
                apply(idle_service(), namespace=place)
            kubectl("label", "namespace", first, selector)
            expect_condition(first, "Accepted", "True", "Accepted")
            serve_pods(first)
            pods = pod_uids(first)
            # Selected, but nobody has granted anything there.
            two.may_be_refused(second, *LOOKS)
            kubectl("label", "namespace", second, selector)
            eventually(
                lambda: said(operator, f"namespace {second} is not watched: no right is granted"), expecting="why"
            )
            assert not operator.watches(second)
            assert operator.readyz() == (200, "ok\n")
            assert operator.watches(first)
            two.bind(second)
            expect_condition(second, "Accepted", "True", "Accepted", within=180)
            for key in label:
                kubectl("label", "namespace", first, f"{key}-")
            eventually(lambda: f'namespace="{first}"' not in operator.metrics(), expecting="its series to go")
            change = json.dumps({"spec": {"replicas": 3}})
            kubectl("patch", RESOURCE, "chat", "-n", first, "--type=merge", "-p", change)
            expect_edits_to_be_seen(second)
            found = get(RESOURCE, "chat", namespace=first) or {}
            assert found["status"]["observedGeneration"] < found["metadata"]["generation"], "not looked after"
            assert pod_uids(first) == pods, "engines go on"
            kubectl("label", "namespace", first, selector)
            expect_watched(operator, first, so=True)
            expect_edits_to_be_seen(first)
            expect_well(operator)
        finally:
            operator.stop()


def pod_uids(place: str) -> set[str]:
    return {one["metadata"]["uid"] for one in items("pods", namespace=place)}


def test_where_no_namespace_may_be_watched_it_is_not_ready_and_says_why(three: Release, tmp_path: Path) -> None:
    for place in three.names:
        three.may_be_refused(place, *LOOKS)
        three.revoke(place)
    operator = start(three, tmp_path)
    try:
        eventually(lambda: "no right is granted" in operator.readyz()[1], expecting="what is missing", within=240)
        three.grant(three.names[0])
        operator.expect_ready()
        for place in three.names[1:]:
            assert not operator.watches(place)
        operator.send(signal.SIGTERM)
        assert operator.expect_exit() == ExitCode.OK
    finally:
        operator.stop()


async def test_a_watch_lives_by_its_requests_and_leaves_nothing_behind(crd: Path) -> None:
    moment = 0.0
    queue: KeyQueue[Key] = KeyQueue(clock=time.monotonic, jitter=lambda: 0.5)
    watch = Watch(
        "default",
        configuration=await load_configuration(),
        instance="test",
        clock=lambda: moment,
        listen=lambda: None,
    )
    before, open_before = asyncio.all_tasks(), sockets()
    running = asyncio.create_task(watch.run(WatchHandlers(Cache(), queue)))
    await asyncio.sleep(0)
    moment = 1000.0
    assert len(watch.silent()) == 1 + len(labelled(network_policies=False)), "it has begun, and no request was made"
    async with asyncio.timeout(60):
        while watch.silent():  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert asyncio.all_tasks() == before
    # Streams that were ended while they connected: their sockets are closed in turns of the loop that follow.
    async with asyncio.timeout(60):
        while sockets() - open_before:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.1)


def sockets() -> set[str]:
    """The sockets that this process has open."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(entry.readlink()))
    return {one for one in found if one.startswith("socket:")}
