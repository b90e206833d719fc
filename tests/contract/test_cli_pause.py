"""`flyball pause` and `flyball resume` as they are typed: against an API server over HTTP, by a kubeconfig alone."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from flyball_lab.harness.manifests import Object, good
from flyball_operator.api import names
from flyball_operator.cli.entry import main
from flyball_operator.kube.resources import INFERENCE_SERVICES
from support.stored_api import Command, StoredApi

LIMITS = {"maxNumActiveSeqs": 48, "maxNumScheduledTokens": 1024, "stepBudget": "27.6ms"}
PATH = INFERENCE_SERVICES.path("team", "chat")


@pytest.fixture
def api() -> StoredApi:
    service = good(metadata__namespace="team", metadata__uid="uid-1", metadata__resourceVersion="7")
    found = StoredApi()
    found.put(INFERENCE_SERVICES, service | {"status": {"tuning": {"setpoint": LIMITS}}})
    return found


@pytest.fixture
def typed(api: StoredApi, command: Command) -> Command:
    return partial(command, api, namespace="team")


def annotated(api: StoredApi) -> Object:
    return dict(api.documents[PATH]["metadata"].get("annotations") or {})


def test_a_pause_is_the_annotation_that_the_operator_obeys_and_the_spec_stays(typed: Any, api: StoredApi) -> None:
    spec = api.documents[PATH]["spec"]
    said = typed("pause", "chat", "--reason", "load test until 18:00").out
    assert annotated(api) == {
        names.ANNOTATION_TUNING: names.TUNING_PAUSED,
        names.ANNOTATION_TUNING_REASON: "load test until 18:00",
    }
    assert api.documents[PATH]["spec"] == spec
    words = " ".join(said.split())
    assert "team/chat: tuning is paused (load test until 18:00)." in words
    assert "The limits stay as they are: 48 requests at once, 1024 tokens in a step, steps of 27.6ms." in words
    assert "To resume: flyball resume chat -n team" in words
    assert max(map(len, said.splitlines())) <= 80
    assert "\x1b" not in said


def test_paused_twice_is_paused_and_nothing_is_written(typed: Any, api: StoredApi) -> None:
    typed("pause", "chat", "--reason", "load test")
    held = api.documents[PATH]
    document = json.loads(typed("pause", "chat", "-o", "json").out)
    assert document == {
        "namespace": "team",
        "name": "chat",
        "paused": True,
        "changed": False,
        "reason": "load test",
        "mode": "Auto",
        "limits": LIMITS,
    }
    assert api.documents[PATH] is held


def test_a_resume_takes_back_all_that_a_pause_left_and_nothing_else(typed: Any, api: StoredApi) -> None:
    api.documents[PATH]["metadata"]["annotations"] = {"team": "chat"}
    typed("pause", "chat", "--reason", "load test")
    assert "tuning is resumed" in typed("resume", "chat").out
    assert annotated(api) == {"team": "chat"}
    assert "tuning was not paused" in typed("resume", "chat").out


def test_the_reason_of_an_earlier_pause_is_not_kept(typed: Any, api: StoredApi) -> None:
    api.documents[PATH]["metadata"]["annotations"] = {names.ANNOTATION_TUNING_REASON: "of a year ago"}
    typed("pause", "chat")
    assert annotated(api) == {names.ANNOTATION_TUNING: names.TUNING_PAUSED}


def test_a_value_that_the_operator_does_not_understand_is_put_right(typed: Any, api: StoredApi) -> None:
    api.documents[PATH]["metadata"]["annotations"] = {names.ANNOTATION_TUNING: "paused"}
    assert "tuning is paused" in typed("pause", "chat").out
    assert annotated(api)[names.ANNOTATION_TUNING] == names.TUNING_PAUSED


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_mode_that_changes_no_limits_is_said(typed: Any, api: StoredApi, verb: str) -> None:
    api.documents[PATH]["spec"]["tuning"] = {"mode": "Recommend"}
    assert "Mode Recommend changes no limits, paused or not" in " ".join(typed(verb, "chat").out.split())


def test_somebody_elses_write_in_between_is_not_overwritten_but_tried_again(typed: Any, api: StoredApi) -> None:
    api.interfering = 2
    typed("pause", "chat")
    assert [method for method, _ in api.requests] == ["GET", "PATCH"] * 3


def test_an_object_that_never_rests_ends_with_1(typed: Any, api: StoredApi) -> None:
    api.interfering = 100
    assert "flyball pause: team/chat was changed by others at each of 5 attempts" in typed("pause", "chat", code=1).err
    assert annotated(api) == {}


def test_a_service_that_is_not_there_ends_with_1(typed: Any) -> None:
    assert "no InferenceService other in namespace team" in typed("pause", "other", code=1).err


def test_a_missing_right_is_told_in_the_api_servers_words(typed: Any, api: StoredApi) -> None:
    api.forbidden.add("inferenceservices")
    assert "is forbidden" in typed("resume", "chat", code=1).err


@pytest.mark.parametrize("reason", ["", " ", "two\nlines", "x" * 201])
def test_a_wrong_reason_is_refused_with_what_is_accepted(reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["pause", "chat", "--reason", reason])
    assert end.value.code == 2
    assert "--reason: accepted: one line of 1 to 200 characters" in capsys.readouterr().err
