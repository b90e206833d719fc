"""`flyball why` as it is typed: against an API server over HTTP, by a kubeconfig alone."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from flyball_lab.harness.manifests import Object, good
from flyball_operator.api import names
from flyball_operator.kube.resources import DEPLOYMENTS, EVENTS, INFERENCE_SERVICES, LEASES, PODS
from support.stored_api import Command, StoredApi

UID = "uid-1"
READY = {"type": "Ready", "status": "True", "reason": "Serving", "message": "all serve", "observedGeneration": 1}
DONE = {"type": "Progressing", "status": "True", "reason": "RolloutComplete", "observedGeneration": 1}


def pod(name: str, uid: str) -> Object:
    labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_SERVICE_UID: uid}
    state = [{"name": names.CONTAINER_ENGINE, "restartCount": 1}]
    return {
        "metadata": {"name": name, "namespace": "team", "labels": labels},
        "status": {"containerStatuses": state},
    }


@pytest.fixture
def api() -> StoredApi:
    found = StoredApi()
    status = {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "conditions": [READY, DONE]}
    service = good(metadata__namespace="team", metadata__uid=UID, metadata__generation=1)
    found.put(INFERENCE_SERVICES, service | {"status": status})
    owner = {"kind": names.KIND, "name": "chat", "uid": UID, "controller": True}
    asked = {names.ANNOTATION_ASKED: "hash 2026-11-20T10:00:00Z"}
    meta = {"name": "chat", "namespace": "team", "annotations": asked, "ownerReferences": [owner]}
    found.put(DEPLOYMENTS, {"metadata": meta})
    found.put(PODS, pod("chat-1", UID))
    found.put(PODS, pod("other-1", "another"))
    return found


@pytest.fixture
def typed(api: StoredApi, command: Command) -> Command:
    return partial(command, api, "why", namespace="team")


def test_one_paragraph_of_lines_that_fit(typed: Any, api: StoredApi) -> None:
    said = typed("chat").out
    words = " ".join(said.split())
    assert words.startswith("team/chat is Ready: 1 of 1 pods serve.")
    assert "all have the template of 2026-11-20T10:00:00Z" in words
    assert "The engine of pod chat-1 was restarted once." in words
    assert "other-1" not in words
    assert "\n\n" not in said
    assert max(map(len, said.splitlines())) <= 80
    assert {method for method, _ in api.requests} == {"GET"}


def test_as_json_each_sentence_has_what_it_is_about(typed: Any) -> None:
    document = json.loads(typed("chat", "-o", "json").out)
    assert (document["namespace"], document["name"]) == ("team", "chat")
    assert [one["about"] for one in document["sentences"]] == ["serving", "limits", "pods", "next"]


def test_a_deployment_that_is_anothers_is_not_taken_for_the_services(typed: Any, api: StoredApi) -> None:
    held = api.documents[DEPLOYMENTS.path("team", "chat")]
    held["metadata"]["ownerReferences"][0]["uid"] = "another"
    assert "2026-11-20" not in typed("chat").out


def test_without_the_right_to_see_pods_and_events_it_says_the_rest(typed: Any, api: StoredApi) -> None:
    api.forbidden |= {"pods", "events", "deployments"}
    said = " ".join(typed("chat").out.split())
    assert said.startswith("team/chat is Ready")
    assert "restarted" not in said


def test_an_event_is_asked_for_by_the_services_uid(typed: Any, api: StoredApi) -> None:
    involved = {"uid": "another"}
    event = {"metadata": {"name": "a", "namespace": "team"}, "involvedObject": involved, "type": "Warning"}
    api.put(EVENTS, event | {"lastTimestamp": "2999-01-01T00:00:00Z", "message": "of another"})
    assert "of another" not in typed("chat").out


def test_a_service_that_is_not_there_ends_with_1(typed: Any) -> None:
    assert "no InferenceService other in namespace team" in typed("other", code=1).err
    assert typed("chat", "-n", "nowhere", code=1).err == "flyball why: there is no namespace nowhere\n"


def test_what_no_operator_looks_after_any_more_is_explained_as_of_then(api: StoredApi, command: Command) -> None:
    explained = partial(command, api, "explain", "chat", namespace="team")
    assert "No operator" not in explained().out
    lease = {"renewTime": "2026-11-22T03:48:00Z", "leaseDurationSeconds": 300}
    api.put(LEASES, {"metadata": {"name": names.NAMESPACE_LEASE, "namespace": "team"}, "spec": lease})
    assert explained().out.startswith("No operator has looked after this namespace since 2026-11-22T03:48:00Z")
    api.forbidden.add("leases")
    assert "No operator" not in explained().out
