"""Why pods do not serve: one reason that stays, and the words that help."""

from __future__ import annotations

import pytest

from flyball_operator.api import names
from flyball_operator.plan.causes import CauseReason, find
from support.manifests import Object


def pod(name: str = "chat-1", *, spec_hash: str = "h", **status: object) -> Object:
    return {"metadata": {"name": name, "annotations": {names.ANNOTATION_SPEC_HASH: spec_hash}}, "status": status}


def waiting(reason: str, message: str = "") -> Object:
    return {
        "containerStatuses": [
            {"name": "engine", "ready": False, "state": {"waiting": {"reason": reason, "message": message}}}
        ]
    }


def ended(code: int, reason: str = "Error", message: str = "") -> Object:
    terminated = {"exitCode": code, "reason": reason, "message": message}
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    return {
        "containerStatuses": [
            {"name": "engine", "ready": False, "state": state, "lastState": {"terminated": terminated}}
        ]
    }


TRACEBACK = """Traceback (most recent call last):
  File "x.py", line 3, in get
    raise ValueError("a")
ValueError: a

During handling of the above exception, another exception occurred:

  File "/usr/lib/python3/x.py", line 30, in get_model_path
    return hf_api().snapshot_download(
           ^^^^^^^^^^^^^^^^^^^^^^^^^^
hf.errors.ValidationError: no /models/x.
"""
PREFIXED = """(EngineCore pid=7) ERROR 11-21 18:19:00 [core.py:1200]   File "x.py", line 3, in get
(EngineCore pid=7) ERROR 11-21 18:19:00 [core.py:1200] RuntimeError: no memory"""
UNSCHEDULABLE: Object = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]
}


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (waiting("ErrImagePull", "no such image"), CauseReason.IMAGE_PULL_FAILED, "no such image"),
        (waiting("ImagePullBackOff", "backing off"), CauseReason.IMAGE_PULL_FAILED, "backing off"),
        (waiting("CreateContainerConfigError", 'secret "hf" not found'), CauseReason.CONFIG_MISSING, 'secret "hf"'),
        (waiting("CreateContainerError", "no command"), CauseReason.CONTAINER_NOT_STARTED, "no command"),
        (ended(64, message="--max-num-seqs is owned"), CauseReason.ARGUMENT_REFUSED, "--max-num-seqs is owned"),
        (ended(137, reason="OOMKilled"), CauseReason.OUT_OF_MEMORY, "memory limit"),
        (ended(1, message="no such\n  model"), CauseReason.ENGINE_FAILED, "exit code 1: no such model"),
        (
            ended(1, message=TRACEBACK),
            CauseReason.ENGINE_FAILED,
            "exit code 1: hf.errors.ValidationError: no /models/x.",
        ),
        (ended(1, message=PREFIXED), CauseReason.ENGINE_FAILED, "exit code 1: RuntimeError: no memory"),
        (ended(143), CauseReason.NOT_READY_IN_TIME, "startupTimeout"),
        (UNSCHEDULABLE, CauseReason.UNSCHEDULABLE, "0/3 nodes"),
    ],
)
def test_each_trouble_has_its_reason_and_the_words_kubernetes_gave(status: Object, reason: str, words: str) -> None:
    cause = find([pod(**status)], None, "h")
    assert cause is not None
    assert cause.reason == reason
    assert words in cause.message
    assert "pod chat-1" in cause.message


def test_the_surest_cause_of_several_is_told() -> None:
    pods = [pod("a", **UNSCHEDULABLE), pod("b", **ended(64, message="owned")), pod("c", **waiting("ErrImagePull"))]
    cause = find(pods, None, "h")
    assert cause is not None
    assert cause.reason == CauseReason.ARGUMENT_REFUSED


def test_ready_pods_and_those_of_other_templates_tell_nothing() -> None:
    ready = {**waiting("ErrImagePull"), "conditions": [{"type": "Ready", "status": "True"}]}
    assert find([pod(**ready), pod(spec_hash="other", **waiting("ErrImagePull"))], None, "h") is None


def test_pods_that_may_not_be_created_are_told_of_by_the_deployment() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    cause = find([], {"status": {"conditions": [failure]}}, "h")
    assert cause is not None
    assert (cause.reason, "exceeded quota" in cause.message) == (CauseReason.PODS_REFUSED, True)


def test_long_last_words_keep_their_end() -> None:
    cause = find([pod(**ended(1, message="x" * 5000 + " the real reason"))], None, "h")
    assert cause is not None
    assert len(cause.message) <= 1000
    assert cause.message.endswith("the real reason")
