"""What `Ready` and `Available` say of a rollout, as kubectl's own `wait`, helm's `--wait` and people read them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.harness.manifests import Object
from flyball_lab.harness.waiting import eventually
from support.cluster import KubectlError, apply, kubectl, patch
from support.health import DONE, FAILED, WAITED_FOR, health
from support.kubelet import UNREADABLE, play_kubelet, play_trouble
from support.operators import (
    IMAGE,
    RESOURCE,
    OperatorProcess,
    condition,
    expect_condition,
    idle_service,
    made,
    one,
    serve,
)

BAD, NEXT = "flyball.test/none:1", "vllm/next:1"


def edit(place: str, **spec: Any) -> int:
    """Change the spec; returns the generation that asks for it."""
    patch(RESOURCE, "chat", {"spec": spec}, namespace=place)
    return int(one(RESOURCE, place)["metadata"]["generation"])


def ready_now(place: str) -> bool:
    """Whether `kubectl wait` finds the service Ready without waiting."""
    try:
        kubectl("wait", RESOURCE, "chat", "-n", place, "--for=condition=Ready", "--timeout=0s")
    except KubectlError:
        return False
    return True


@contextmanager
def beside(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command that goes on beside the test."""
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def waiting(place: str, what: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A `kubectl wait` that goes on beside the test."""
    return beside("kubectl", "wait", RESOURCE, "chat", "-n", place, f"--for=condition={what}", "--timeout=600s")


def expect_observed(place: str, generation: int) -> None:
    """What status says is about this generation, each condition of the reconciler, too."""

    def seen() -> bool:
        status = one(RESOURCE, place).get("status") or {}
        about = {item["observedGeneration"] for item in status["conditions"] if item["type"] in ("Ready", "Available")}
        return {status["observedGeneration"]} == about == {generation}

    eventually(seen, expecting=f"generation {generation} to be seen", within=240)


@pytest.fixture
def serving(place: str, running: OperatorProcess) -> str:
    """The namespace of a service that serves, with the kubelet played."""
    apply(idle_service(), namespace=place)
    made(place)
    serve(place)
    return place


def test_kubectl_wait_takes_a_new_service_for_ready_once_all_of_it_serves(place: str, running: OperatorProcess) -> None:
    apply(idle_service(spec__replicas=2), namespace=place)
    with waiting(place, "Ready") as wait:
        made(place)
        expect_condition(place, "Ready", "False", "Unschedulable")
        assert wait.poll() is None
        serve(place, replicas=2)
        assert wait.wait(timeout=60) == 0


def test_kubectl_wait_never_takes_a_bad_edit_for_ready_and_the_good_one_after_it_is(serving: str) -> None:
    generation = edit(serving, engine={"image": BAD})
    with waiting(serving, "Ready") as wait, waiting(serving, "Stalled") as stalled:
        made(serving, BAD)
        expect_condition(serving, "Ready", "False", "Unschedulable")
        expect_observed(serving, generation)
        message = expect_condition(serving, "Available", "True", "EarlierRevisionServes")
        assert f"revision 1 serves, not what generation {generation} asks for" in message
        assert stalled.poll() is None
        # What kubelet cannot read will never be there: nobody waits for startupTimeout.
        play_trouble(serving, image=BAD, serving=IMAGE, state=UNREADABLE)
        expect_condition(serving, "Ready", "False", "RolledBack")
        assert "InvalidImageName" in condition(serving, "Progressing")[2]
        assert stalled.wait(timeout=60) == 0
        expect_condition(serving, "Available", "True", "EarlierRevisionServes")
        made(serving)

        generation = edit(serving, tuning={"mode": "Recommend"})
        expect_observed(serving, generation)
        assert condition(serving, "Ready")[:2] == ("False", "RolledBack")
        assert wait.poll() is None

        edit(serving, engine={"image": NEXT})
        made(serving, NEXT)
        serve(serving, image=NEXT)
        assert wait.wait(timeout=60) == 0
    assert condition(serving, "Available")[:2] == ("True", "EndpointsReady")
    assert condition(serving, "Stalled") == ("", "", "")


def chart(folder: Path, service: Object) -> str:
    """A chart of one service; returns its path."""
    files = {
        "Chart.yaml": "apiVersion: v2\nname: chat\nversion: 1.0.0\n",
        "templates/chat.yaml": json.dumps(service),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


def helm_waiting(place: str, release: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A `helm upgrade --wait` of this chart that goes on beside the test."""
    return beside("helm", "upgrade", "chat", release, "--install", "-n", place, "--wait", "--timeout", "10m")


def test_helm_waits_until_all_serves_and_fails_on_a_rollback(
    place: str, running: OperatorProcess, tmp_path: Path
) -> None:
    with helm_waiting(place, chart(tmp_path / "good", idle_service())) as install:
        made(place)
        expect_condition(place, "Ready", "False", "Unschedulable")
        assert install.poll() is None
        serve(place)
        assert install.wait(timeout=60) == 0
    assert health(one(RESOURCE, place)) == DONE
    with helm_waiting(place, chart(tmp_path / "bad", idle_service(spec__engine__image=BAD))) as upgrade:
        made(place, BAD)
        expect_condition(place, "Ready", "False", "Unschedulable")
        assert upgrade.poll() is None
        play_trouble(place, image=BAD, serving=IMAGE, state=UNREADABLE)
        expect_condition(place, "Ready", "False", "RolledBack")
        assert upgrade.wait(timeout=60) == 1
    assert health(one(RESOURCE, place)) == FAILED


def test_a_service_that_no_operator_has_looked_at_is_waited_for(place: str) -> None:
    apply(idle_service(), namespace=place)
    found = one(RESOURCE, place)
    assert found["status"] == {"observedGeneration": 0}
    assert health(found) == WAITED_FOR


def test_what_rolls_no_pod_is_ready_at_once(serving: str) -> None:
    changes: list[Object] = [{"tuning": {"mode": "Recommend"}}, {"objectives": []}, {"replicas": 1}]
    for change in changes:
        generation = edit(serving, **change)
        kubectl("wait", RESOURCE, "chat", "-n", serving, "--for=condition=Ready", "--timeout=50s")
        expect_observed(serving, generation)


def test_another_size_is_ready_once_it_is_reached_zero_too(serving: str) -> None:
    edit(serving, replicas=2)
    expect_condition(serving, "Ready", "False", "ReplicasNotReady")
    assert condition(serving, "Available")[:2] == ("True", "EndpointsReady")
    assert not ready_now(serving)
    serve(serving, replicas=2)
    edit(serving, replicas=0)
    kubectl("wait", RESOURCE, "chat", "-n", serving, "--for=condition=Ready", "--timeout=50s")
    play_kubelet(serving, image=IMAGE)
    expect_condition(serving, "Available", "False", "ScaledToZero")
    expect_condition(serving, "Ready", "True", "ScaledToZero")


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        # vLLM's API server ends well when its engine core was killed.
        ({"exitCode": 0, "reason": "Completed"}, "exit code 0"),
        pytest.param({"exitCode": 137, "reason": "Error"}, "exit code 137 (SIGKILL)", marks=pytest.mark.long),
    ],
)
def test_an_engine_that_ended_is_named_while_nothing_serves(serving: str, ended: Object, told: str) -> None:
    last = {"terminated": {**ended, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T10:00:00Z"}}
    state = {"running": {"startedAt": "2026-01-01T10:00:01Z"}}
    play_trouble(serving, image=IMAGE, state=state, lastState=last, restartCount=3)
    message = expect_condition(serving, "Available", "False", "EngineFailed")
    assert told in message
    assert "ended at 2026-01-01T10:00:00Z" in message
    assert "3 restarts" in message
    assert condition(serving, "Ready") == ("False", "EngineFailed", message)
    play_kubelet(serving, image=IMAGE)
    expect_condition(serving, "Ready", "True", "Serving")
