"""What events say of a pod whose status does not: which are read, when, and what they come to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from flyball_lab.harness.manifests import Object
from flyball_operator.api import names
from flyball_operator.api.objects import timestamp
from flyball_operator.reconcile.plan import event_causes
from flyball_operator.reconcile.plan.cause import CauseReason
from flyball_operator.reconcile.plan.causes import find

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MULTI_ATTACH = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) chat-0'
TIMED_OUT = "Unable to attach or mount volumes: unmounted volumes=[cache]: timed out waiting for the condition"


def creating(name: str = "chat-1", *, age: float = 60, reason: str = "ContainerCreating", message: str = "") -> Object:
    """A pod on a node, none of whose containers was started."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "annotations": {names.ANNOTATION_SPEC_HASH: "h"},
            "creationTimestamp": timestamp(NOW - timedelta(seconds=age)),
        },
        "spec": {"nodeName": "node-1"},
        "status": {"containerStatuses": [{"name": "engine", "ready": False, "state": state}]},
    }


def event(reason: str, message: str = "", *, ago: float = 0, of: str = "chat-1") -> Object:
    """An event about a pod, last seen so many seconds ago."""
    return {
        "metadata": {"name": f"{of}.{ago}", "namespace": "ns"},
        "involvedObject": {"kind": "Pod", "uid": f"uid-{of}"},
        "reason": reason,
        "message": message,
        "lastTimestamp": timestamp(NOW - timedelta(seconds=ago)),
    }


def told(*events: Object, pod: Object | None = None) -> tuple[str, str]:
    """Reason and message of the cause."""
    found = find([pod or creating()], None, "h", events)
    return (found.reason, found.message) if found is not None else ("", "")


def test_a_volume_that_is_held_elsewhere_is_named_in_the_words_of_who_knows_by_whom() -> None:
    events = event("FailedAttachVolume", MULTI_ATTACH, ago=90), event("FailedMount", TIMED_OUT, ago=5)
    reason, message = told(*events, event("Scheduled", ago=100))
    assert reason == CauseReason.VOLUME_UNAVAILABLE
    assert message == f"pod chat-1 on node node-1: {MULTI_ATTACH}"


def test_a_volume_that_an_earlier_pod_of_the_service_holds_is_told_with_what_frees_it() -> None:
    earlier = creating("chat-0")
    earlier["metadata"]["annotations"] = {names.ANNOTATION_SPEC_HASH: "earlier"}
    deployment = {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}}
    cause = find([earlier, creating()], deployment, "h", [event("FailedAttachVolume", MULTI_ATTACH)])
    assert cause is not None
    assert "spec.rollout: {maxSurge: 0, maxUnavailable: 1}" in cause.message


@pytest.mark.parametrize("later", ["Pulling", "Pulled", "Created", "Failed"])
def test_what_a_later_event_shows_to_be_over_is_no_cause(later: str) -> None:
    assert told(event("FailedMount", TIMED_OUT, ago=60), event(later, ago=10)) == ("", "")
    assert told(event("FailedMount", TIMED_OUT, ago=10), event(later, ago=60))[0] == CauseReason.VOLUME_UNAVAILABLE


@pytest.mark.parametrize(
    "message",
    [
        'MountVolume.SetUp failed for volume "tls" : secret "tls" not found',
        'MountVolume.SetUp failed for volume "flyball-tls" : references non-existent secret key: tls.key',
        'MountVolume.SetUp failed for volume "conf" : configmap "conf" not found',
        'MountVolume.SetUp failed for volume "m" : hostPath type check failed: /models is not a directory',
    ],
)
def test_a_volume_of_what_is_not_there_is_the_templates(message: str) -> None:
    assert told(event("FailedMount", message))[0] == CauseReason.CONFIG_MISSING


def test_events_of_another_pod_and_of_one_that_has_started_say_nothing() -> None:
    assert told(event("FailedMount", TIMED_OUT, of="other")) == ("", "")
    running = creating()
    running["status"]["containerStatuses"][0]["state"] = {"running": {}}
    assert told(event("FailedMount", TIMED_OUT), pod=running) == ("", "")


def test_a_back_off_that_does_not_say_why_is_told_in_the_words_of_the_last_attempt() -> None:
    bare = creating(reason="ImagePullBackOff", message='Back-off pulling image "r/engine:1"')
    refused = event("Failed", 'Failed to pull image "r/engine:1": dial tcp: connection refused', ago=30)
    reason, message = told(refused, event("Failed", "Error: ImagePullBackOff", ago=5), pod=bare)
    assert (reason, "connection refused" in message) == (CauseReason.REGISTRY_UNAVAILABLE, True)
    assert told(pod=bare)[0] == CauseReason.IMAGE_PULL_FAILED


def test_only_the_pod_that_has_waited_longest_is_asked_about_and_none_too_early() -> None:
    early, late = creating("chat-1", age=30), creating("chat-2", age=90)
    assert event_causes.pods_to_ask_about([early, late], NOW) == [late]
    assert event_causes.pods_to_ask_about([creating(age=5)], NOW) == []
    assert event_causes.look_again([creating(age=5)], NOW) == 15
    assert event_causes.look_again([early, late], NOW) == event_causes.AGAIN_SECONDS


def made_by(owner: str, pod: Object) -> Object:
    """The pod, made by this ReplicaSet or Job."""
    return {**pod, "metadata": {**pod["metadata"], "ownerReferences": [{"uid": owner, "controller": True}]}}


def test_a_pod_of_an_earlier_template_or_job_that_waits_too_keeps_no_pod_from_being_asked_about() -> None:
    earlier, later = made_by("one", creating("chat-0", age=3600)), made_by("two", creating("chat-1", age=30))
    assert later in event_causes.pods_to_ask_about([earlier, later], NOW)
    young = made_by("two", creating("chat-2", age=5))
    assert event_causes.look_again([earlier, later, young], NOW) == event_causes.AGAIN_SECONDS, "of the oldest alone"


def of_set(pod: str, *, ago: float, refused: bool, combined: bool = False) -> Object:
    """An event of a StatefulSet that made a pod, or could not."""
    outcome = f'failed error: pods "{pod}" is forbidden: exceeded quota: tight' if refused else "successful"
    words = f"Create Pod {pod} in StatefulSet chat-0 {outcome}"
    reason = "FailedCreate" if refused else "SuccessfulCreate"
    return event(reason, f"(combined from similar events): {words}" if combined else words, ago=ago, of="chat-0")


def test_a_refusal_of_a_stateful_set_counts_until_the_pod_is_made() -> None:
    refused, made = of_set("chat-0-1", ago=60, refused=True), of_set("chat-0-1", ago=30, refused=False)
    assert "exceeded quota: tight" in event_causes.of_stateful_sets(["chat-0-1"], [refused])
    assert not event_causes.of_stateful_sets(["chat-0-1"], [made, refused])
    again = of_set("chat-0-1", ago=10, refused=True, combined=True)
    assert "exceeded quota: tight" in event_causes.of_stateful_sets(["chat-0-1"], [made, refused, again])
    at_once = of_set("chat-0-1", ago=60, refused=False)
    assert not event_causes.of_stateful_sets(["chat-0-1"], [at_once, refused]), "times are in seconds"


def test_a_refusal_of_another_pod_and_of_a_job_say_nothing_of_a_pod_that_is_missing() -> None:
    of_job = event("FailedCreate", 'Error creating: pods "chat-0-1" is forbidden: exceeded quota: tight')
    assert not event_causes.of_stateful_sets(["chat-0-1"], [of_set("chat-0-2", ago=60, refused=True), of_job])


def test_older_kubernetes_spells_what_a_stateful_set_does_in_small_letters() -> None:
    refused = of_set("chat-0-1", ago=60, refused=True)
    refused["message"] = refused["message"].replace("Create", "create")
    assert "exceeded quota: tight" in event_causes.of_stateful_sets(["chat-0-1"], [refused])


def test_a_stateful_set_that_is_new_or_lacks_no_pod_is_not_asked_about() -> None:
    sets = [creating("chat", age=3600), creating("chat-0", age=60), creating("chat-1", age=5)]
    asked = event_causes.stateful_sets_to_ask_about(sets, ["chat-0-1", "chat-1-1"], NOW)
    assert [one["metadata"]["name"] for one in asked] == ["chat-0"]


def pending() -> Object:
    """A pod without a node."""
    return {**creating(), "spec": {}}


def leaving() -> Object:
    """A pod on its way out."""
    found = creating()
    found["metadata"]["deletionTimestamp"] = timestamp(NOW)
    return found


@pytest.mark.parametrize(
    "pod",
    [
        creating(reason="ErrImagePull", message="not found"),
        pending(),
        leaving(),
        {**creating(), "status": {"phase": "Failed"}},
    ],
    ids=["says why", "no node", "leaves", "ended"],
)
def test_where_status_says_enough_no_event_is_read(pod: Object) -> None:
    assert event_causes.pods_to_ask_about([pod], NOW) == []
    assert event_causes.look_again([pod], NOW) is None
