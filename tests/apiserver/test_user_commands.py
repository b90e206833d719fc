"""pause, resume, why, top, diff and support-bundle against the real API server, and what kubectl then says."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.harness.manifests import DROP, Object, edited, good
from flyball_lab.harness.terminal import on_terminal
from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from support.cluster import apply, get, kubectl

KIND = names.CRD_NAME
MANIFEST = good(spec__replicas=0, spec__batching={"maxNumSeqs": 128})


def flyball(*arguments: str, code: int = 0, stdin: Object | None = None) -> str:
    """A process of its own; what it printed."""
    command = [sys.executable, "-m", "flyball_operator.cli", *arguments]
    given = None if stdin is None else json.dumps(stdin)
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def service(place: str) -> Object:
    found = get(KIND, "chat", namespace=place)
    assert found is not None
    return found


def diff(place: str, manifest: Object, *, code: int = 1) -> Any:
    return json.loads(flyball("diff", "-n", place, "-f", "-", "-o", "json", stdin=manifest, code=code))


def test_a_pause_and_a_resume_leave_the_object_as_it_was(place: str) -> None:
    apply(MANIFEST, namespace=place)
    before = service(place)
    flyball("pause", "chat", "-n", place, "--reason", "load test")
    paused = service(place)
    assert paused["metadata"]["annotations"][names.ANNOTATION_TUNING] == names.TUNING_PAUSED
    assert paused["metadata"]["annotations"][names.ANNOTATION_TUNING_REASON] == "load test"
    flyball("pause", "chat", "-n", place)
    assert service(place)["metadata"]["resourceVersion"] == paused["metadata"]["resourceVersion"]
    flyball("resume", "chat", "-n", place)
    after = service(place)
    assert (after["spec"], after["metadata"]["annotations"]) == (before["spec"], before["metadata"]["annotations"])
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


@pytest.mark.parametrize("server_side", [False, True])
def test_a_diff_tells_what_the_apply_then_does(place: str, *, server_side: bool) -> None:
    apply(MANIFEST, namespace=place, server_side=server_side)
    manager = ("--field-manager", "test")
    changed = edited(MANIFEST, {"spec.batching.maxNumSeqs": DROP, "spec.objectives.0.threshold": "400ms"})
    flyball("diff", "-n", place, "-f", "-", *manager, stdin=MANIFEST)
    before = service(place)
    said = flyball("diff", "-n", place, "-f", "-", "-o", "json", *manager, stdin=changed, code=1)
    told = {one["field"]: one["after"] for one in json.loads(said)["fields"]}
    assert service(place) == before, "a dry run stores nothing"
    apply(changed, namespace=place, server_side=server_side)
    # The schema has defaults.
    assert service(place)["spec"]["batching"]["maxNumSeqs"] == 256
    assert told == {"spec.batching.maxNumSeqs": 256, "spec.objectives[ttft].threshold": "400ms"}


def test_what_the_schema_refuses_or_does_not_know_ends_with_2(place: str) -> None:
    apply(MANIFEST, namespace=place)
    wrong = edited(MANIFEST, {"spec.batching.maxNumSeqs": 0})
    assert "spec.batching.maxNumSeqs" in flyball("diff", "-n", place, "-f", "-", stdin=wrong, code=2)
    misspelt = edited(MANIFEST, {"spec.batchin": {}})
    assert "batchin" in flyball("diff", "-n", place, "-f", "-", stdin=misspelt, code=2)
    new = edited(MANIFEST, {"metadata.name": "new"})
    assert diff(place, new)["created"] is True
    assert get(KIND, "new", namespace=place) is None


@pytest.mark.usefixtures("running")
def test_pods_are_replaced_where_diff_says_so_and_nowhere_else(place: str) -> None:
    apply(MANIFEST, namespace=place)

    def template() -> str:
        found = get("deployment", "chat", namespace=place)
        return "" if found is None else json.dumps(found["spec"]["template"], sort_keys=True)

    first = eventually(template, expecting="a Deployment")
    objectives = edited(MANIFEST, {"spec.objectives.0.threshold": "400ms"})
    assert diff(place, objectives)["pods"]["replaced"] is False
    apply(objectives, namespace=place)
    generation = service(place)["metadata"]["generation"]
    eventually(
        lambda: service(place).get("status", {}).get("observedGeneration") == generation, expecting="that it is seen"
    )
    assert template() == first
    ceilings = edited(objectives, {"spec.batching.maxNumSeqs": 512})
    told = diff(place, ceilings)["pods"]
    assert told["replaced"] is True
    assert told["fields"] == ["spec.containers[engine].command"]
    apply(ceilings, namespace=place)
    eventually(lambda: template() != first, expecting="another template")
    said = " ".join(flyball("why", "chat", "-n", place).split())
    assert f"{place}/chat is" in said


def test_top_shows_what_there_is(place: str) -> None:
    apply(MANIFEST, namespace=place)
    apply(edited(MANIFEST, {"metadata.name": "code", "metadata.labels": {"tier": "gold"}}), namespace=place)
    assert [line.split()[1] for line in flyball("top", "-n", place).splitlines()] == ["NAME", "chat", "code"]
    found = json.loads(flyball("top", "-n", place, "-l", "tier=gold", "-o", "json"))["services"]
    assert [(one["name"], one["reason"]) for one in found] == [("code", "New")]


def test_top_is_live_on_a_terminal(place: str) -> None:
    apply(MANIFEST, namespace=place)
    with on_terminal("top", "-n", place, "--interval", "0.5") as terminal:
        terminal.expect("1 service, 0 Ready", expecting="the table")
        apply(edited(MANIFEST, {"metadata.name": "code"}), namespace=place)
        terminal.expect("2 services, 0 Ready", expecting="another service")
        kubectl("delete", KIND, "chat", "code", "-n", place)
        terminal.expect("0 services, 0 Ready", expecting="none of them")
        assert terminal.interrupt()[0] == 130


@pytest.mark.usefixtures("running")
def test_a_bundle_of_a_service_and_its_events(place: str, tmp_path: Path) -> None:
    apply(edited(MANIFEST, {"spec.engine.env": [{"name": "TOKEN", "value": "hunter2"}]}), namespace=place)
    eventually(lambda: get("deployment", "chat", namespace=place), expecting="a Deployment")
    eventually(lambda: "chat" in kubectl("get", "events", "-n", place), expecting="an event")
    path = tmp_path / "bundle.tar.gz"
    flyball("support-bundle", "-n", place, "--operator-namespace", place, "--file", str(path))
    with tarfile.open(path) as archive:
        names_of_files = archive.getnames()
        content = b"".join(found.read() for one in archive if (found := archive.extractfile(one)) is not None)
    folder = f"flyball-support/namespaces/{place}"
    assert {f"{folder}/inferenceservices/chat.yaml", f"{folder}/deployments/chat.yaml"} <= set(names_of_files)
    assert b"InferenceService/chat" in content
    assert b"hunter2" not in content
