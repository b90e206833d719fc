"""Why pods do not serve: one reason that stays, and the words that help."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from flyball_lab.harness.manifests import Object
from flyball_operator.api import names
from flyball_operator.api.objects import timestamp
from flyball_operator.reconcile.plan.cause import CauseReason
from flyball_operator.reconcile.plan.causes import find


def pod(name: str = "chat-1", *, spec_hash: str = "h", **status: object) -> Object:
    return {"metadata": {"name": name, "annotations": {names.ANNOTATION_SPEC_HASH: spec_hash}}, "status": status}


def waiting(reason: str, message: str = "") -> Object:
    return {
        "containerStatuses": [
            {"name": "engine", "ready": False, "state": {"waiting": {"reason": reason, "message": message}}}
        ]
    }


def ended(code: int, reason: str = "Error", message: str = "", *, restarts: int = 0, at: str = "") -> Object:
    terminated = {"exitCode": code, "reason": reason, "message": message, "finishedAt": at}
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    last = {"terminated": terminated}
    container = {"name": "engine", "ready": False, "state": state, "lastState": last, "restartCount": restarts}
    return {"containerStatuses": [container]}


def refused(message: str) -> Object:
    """A Deployment whose pods may not be created."""
    return {"status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": message}]}}


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
        (waiting("InvalidImageName", "no image name"), CauseReason.INVALID_IMAGE_NAME, "no image name"),
        (ended(64, message="--max-num-seqs is owned"), CauseReason.ARGUMENT_REFUSED, "--max-num-seqs is owned"),
        (ended(137, reason="OOMKilled"), CauseReason.OUT_OF_MEMORY, "memory limit; 0 restarts, exit code 137"),
        (ended(137), CauseReason.ENGINE_FAILED, "0 restarts, exit code 137 (SIGKILL): Error"),
        (
            ended(0, reason="Completed", restarts=1, at="10:00"),
            CauseReason.ENGINE_FAILED,
            "ended at 10:00, 1 restart",
        ),
        (
            ended(0, reason="Completed"),
            CauseReason.ENGINE_FAILED,
            "exit code 0: vLLM ends so when its engine core",
        ),
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
    cause = find([], refused("violates PodSecurity"), "h")
    assert cause is not None
    assert (cause.reason, "violates PodSecurity" in cause.message) == (CauseReason.PODS_REFUSED, True)


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("pods is forbidden: no PriorityClass with name x was found", "spec.podTemplate.priorityClassName"),
        ('pods is forbidden: pod rejected: RuntimeClass "x" not found', "spec.podTemplate.runtimeClassName"),
        (
            'pods "chat-" is forbidden: error looking up service account ns/x: serviceaccount "x" not found',
            "spec.podTemplate.serviceAccountName",
        ),
    ],
)
def test_a_class_that_is_missing_is_told_with_its_field(words: str, field: str) -> None:
    cause = find([], refused(words), "h")
    assert cause is not None
    assert cause.message == f"Deployment: {words}; create it, or change {field}"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ('pods "chat-1" is forbidden: exceeded quota: gpus, requested: pods=1, used: pods=1', "QuotaExceeded"),
        ('pods "chat-1" is forbidden: failed quota: gpus: must specify limits.cpu', "PodsRefused"),
        ('Internal error occurred: failed calling webhook "a.b": Post "https://a": EOF', "WebhookUnavailable"),
        ('admission webhook "a.b" denied the request: no', "PodsRefused"),
    ],
)
def test_a_refusal_that_may_end_by_itself_is_a_shortage(words: str, reason: str) -> None:
    cause = find([], refused(words), "h")
    assert cause is not None
    assert (cause.reason, cause.is_shortage) == (reason, reason != "PodsRefused")


@pytest.mark.parametrize(
    ("other", "advised"),
    [("earlier", True), ("h", False)],
    ids=["of an earlier template", "of the same"],
)
def test_a_quota_that_earlier_pods_use_up_is_told_with_what_makes_room_in_it(other: str, *, advised: bool) -> None:
    deployment = strategy(0) | refused("exceeded quota: gpus")
    deployment["spec"]["template"] = {"metadata": {"annotations": {names.ANNOTATION_SPEC_HASH: "h"}}}
    # A quota counts pods without a node, too.
    cause = find([holder(spec_hash=other, node="")], deployment, "h")
    assert cause is not None
    assert ("spec.rollout: {maxSurge: 0, maxUnavailable: 1}" in cause.message) is advised


PULL = 'failed to pull and unpack image "r.test/engine:1": failed to resolve reference "r.test/engine:1": '


@pytest.mark.parametrize(
    "words",
    [
        'failed to do request: Head "https://r.test/v2/": dial tcp 10.0.0.1:443: connect: connection refused',
        'failed to do request: Head "https://r.test/v2/": dial tcp 10.0.0.1:443: i/o timeout',
        'failed to do request: Head "https://r.test/v2/": dial tcp: lookup r.test on 10.0.0.2:53: no such host',
        'failed to do request: Head "https://r.test/v2/": dial tcp: lookup r.test on 10.0.0.2:53: server misbehaving',
        'failed to do request: Head "https://r.test/v2/": net/http: TLS handshake timeout',
        "unexpected status from HEAD request to https://r.test/v2/engine/manifests/1: 503 Service Unavailable",
        "unexpected status from HEAD request to https://r.test/v2/engine/manifests/1: 429 Too Many Requests",
        "received unexpected HTTP status: 502 Bad Gateway",
        "toomanyrequests: You have reached your pull rate limit",
    ],
)
@pytest.mark.parametrize(
    ("reason", "prefix"),
    [("ErrImagePull", ""), ("ImagePullBackOff", 'Back-off pulling image "r.test/engine:1": ErrImagePull: ')],
)
def test_a_registry_that_is_away_is_a_shortage_between_two_attempts_too(words: str, reason: str, prefix: str) -> None:
    cause = find([pod(**waiting(reason, prefix + PULL + words))], None, "h")
    assert cause is not None
    assert (cause.reason, cause.is_shortage) == (CauseReason.REGISTRY_UNAVAILABLE, True)
    assert words in cause.message


@pytest.mark.parametrize(
    "words",
    [
        "r.test/engine:503: not found",
        "pull access denied, repository does not exist or may require authorization",
        "unexpected status from HEAD request to https://r.test:5000/v2/engine/manifests/1: 403 Forbidden",
        "failed to fetch anonymous token: unexpected status from GET request to https://r.test/token: 401 Unauthorized",
        "no match for platform in manifest: not found",
    ],
)
def test_an_image_that_is_not_there_or_not_allowed_is_the_templates(words: str) -> None:
    cause = find([pod(**waiting("ErrImagePull", PULL + words))], None, "h")
    assert cause is not None
    assert (cause.reason, cause.is_shortage) == (CauseReason.IMAGE_PULL_FAILED, False)


MODEL = "r.test:5000/models/qwen:v1"


def mounts_the_model(status: Object) -> Object:
    volumes = [{"name": "tmp", "emptyDir": {}}, {"name": "model", "image": {"reference": MODEL}}]
    return {**pod(**status), "spec": {"volumes": volumes}}


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [
        ("ErrImagePull", f'failed to resolve reference "{MODEL}": {MODEL}: not found', "ImagePullFailed"),
        ("ErrImagePull", f"initializing source docker://{MODEL}: reading manifest: unauthorized", "ImagePullFailed"),
        ("ImagePullBackOff", f'Back-off pulling image "{MODEL}": ErrImagePull: denied', "ImagePullFailed"),
        ("ImagePullBackOff", f'Back-off pulling image "{MODEL}": ErrImagePull: i/o timeout', "RegistryUnavailable"),
        ("RegistryUnavailable", f"image pull failed for {MODEL} because the registry is", "RegistryUnavailable"),
    ],
)
def test_a_pull_of_the_model_is_told_with_its_field(reason: str, message: str, expected: str) -> None:
    cause = find([mounts_the_model(waiting(reason, message))], None, "h")
    assert cause is not None
    assert cause.reason == expected
    assert cause.message.endswith("; it is the model: see spec.model.uri")
    assert MODEL in cause.message


def test_a_runtime_that_mounts_no_images_is_told() -> None:
    # Of containerd 1.6.
    message = 'failed to generate container "72" spec: failed to generate spec: failed to mkdir "": mkdir : no such'
    cause = find([mounts_the_model(waiting("CreateContainerError", message))], None, "h")
    assert cause is not None
    assert cause.reason == CauseReason.CONTAINER_NOT_STARTED
    assert cause.message.endswith("must be able to mount: containerd 2.1 or CRI-O")
    other = find([pod(**waiting("CreateContainerError", message))], None, "h")
    assert other is not None
    assert other.message.endswith(message), "it mounts no image"


def test_an_image_that_could_not_be_mounted_is_told_with_the_field_of_the_model() -> None:
    # Of containerd 2.4.
    message = "failed to mount image volume: ImageVolumeMountFailed: mismatched image rootfs and manifest layers"
    cause = find([mounts_the_model(waiting("CreateContainerError", message))], None, "h")
    assert cause is not None
    assert cause.message.endswith("; it is the model: see spec.model.uri")


@pytest.mark.parametrize(
    "status",
    [
        waiting("ImagePullBackOff", 'Back-off pulling image "r.test/engine:1": ErrImagePull: not found'),
        waiting("ImagePullBackOff", f'Back-off pulling image "{MODEL}.1": ErrImagePull: not found'),
        waiting("ImagePullBackOff", f'Back-off pulling image "my-{MODEL}": ErrImagePull: not found'),
        waiting("CreateContainerError", f"failed to mount {MODEL}"),
        ended(1, message=MODEL),
    ],
)
def test_what_is_about_another_image_or_no_pull_is_told_as_it_is(status: Object) -> None:
    cause = find([mounts_the_model(status)], None, "h")
    assert cause is not None
    assert "spec.model.uri" not in cause.message


def test_a_claim_that_nobody_made_is_no_shortage_of_nodes() -> None:
    message = '0/1 nodes are available: persistentvolumeclaim "cache" not found. not found'
    status = {
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]
    }
    cause = find([{**pod(), "status": status}], None, "h")
    assert cause is not None
    assert (cause.reason, cause.is_shortage) == (CauseReason.CONFIG_MISSING, False)
    assert cause.message.endswith('persistentvolumeclaim "cache" not found.')


def test_a_pod_that_waits_for_its_gates_waits_for_a_node() -> None:
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "Scheduling is blocked"}
    cause = find([pod(conditions=[gated])], None, "h")
    assert cause is not None
    assert (cause.reason, cause.is_shortage) == (CauseReason.UNSCHEDULABLE, True)


def test_a_fault_is_told_before_a_shortage() -> None:
    pods = [pod("a", **UNSCHEDULABLE), pod("b", **ended(143))]
    cause = find(pods, refused("exceeded quota"), "h")
    assert cause is not None
    assert (cause.reason, cause.is_shortage) == (CauseReason.NOT_READY_IN_TIME, False)


def test_the_node_of_a_pod_in_trouble_is_named() -> None:
    cause = find([{**pod(**ended(1)), "spec": {"nodeName": "node-7"}}], None, "h")
    assert cause is not None
    assert cause.message.startswith("pod chat-1 on node node-7, container engine:")


def test_a_pod_whose_node_stopped_reporting_is_not_the_engines_failure() -> None:
    lost = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
    cause = find([{**pod(conditions=lost), "spec": {"nodeName": "node-7"}}], None, "h")
    assert cause is not None
    assert (cause.reason, cause.is_shortage) == (CauseReason.NODE_UNAVAILABLE, True)
    assert "node-7" in cause.message
    gated = [{**lost[0], "reason": "ReadinessGatesNotReady"}, lost[1]]
    assert find([pod(conditions=gated)], None, "h") is None


@pytest.mark.parametrize(
    ("seconds", "taken_up", "reason"),
    [
        (60, {}, CauseReason.NODE_UNAVAILABLE),
        (5, {}, None),
        (60, {"startTime": "2026-01-01T00:00:01Z"}, None),
        (60, {"initContainerStatuses": [{"name": "plugin", "state": {"running": {}}}]}, None),
    ],
    ids=["long ago", "just now", "taken up", "begun"],
)
def test_a_pod_that_no_kubelet_takes_up_waits_for_its_node(seconds: int, taken_up: Object, reason: str | None) -> None:
    placed = datetime(2026, 1, 1, tzinfo=UTC)
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(placed)}
    cause = find([pod(conditions=[condition], **taken_up)], None, "h", now=placed + timedelta(seconds=seconds))
    assert (cause.reason if cause is not None else None) == reason


EVICTED: Object = {"phase": "Failed", "reason": "Evicted", **ended(137)}


def test_a_pod_that_its_node_put_out_counts_until_another_takes_its_place() -> None:
    evicted = pod("a", **EVICTED, message="The node was low on resource: memory.")
    cause = find([evicted], None, "h")
    assert cause is not None
    assert (cause.reason, "low on resource" in cause.message) == (CauseReason.NODE_UNAVAILABLE, True)
    assert find([evicted, pod("b")], None, "h") is None


def test_a_pod_that_broke_its_own_limit_is_the_templates_fault() -> None:
    evicted = pod(
        "a", **EVICTED, message="Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."
    )
    cause = find([evicted, pod("b")], None, "h")
    assert cause is not None
    assert (cause.reason, "1Gi" in cause.message) == (CauseReason.ENGINE_FAILED, True)


def test_long_last_words_keep_their_end() -> None:
    cause = find([pod(**ended(1, message="x" * 5000 + " the real reason"))], None, "h")
    assert cause is not None
    assert len(cause.message) <= 1000
    assert cause.message.endswith("the real reason")


@pytest.mark.parametrize("kind", ["containerStatuses", "initContainerStatuses"])
@pytest.mark.parametrize("code", [1, 64, 143])
def test_exit_codes_of_the_users_containers_mean_nothing_of_ours(kind: str, code: int) -> None:
    (status,) = ended(code, message="no\nconfiguration")["containerStatuses"]
    statuses: Object = {kind: [{**status, "name": "logs"}]}
    cause = find([pod(**statuses)], None, "h")
    assert cause is not None
    assert cause.reason == CauseReason.CONTAINER_FAILED
    assert "container logs" in cause.message
    assert f"exit code {code}" in cause.message
    assert "no configuration" in cause.message


def test_an_init_container_that_ended_well_is_no_trouble() -> None:
    assert find([pod(initContainerStatuses=ended(0)["containerStatuses"])], None, "h") is None


FULL: Object = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/2 nodes are available: 1 Insufficient cpu, 1 Insufficient nvidia.com/gpu.",
        }
    ]
}


def strategy(unavailable: int) -> Object:
    return {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": unavailable}}}}


def holder(*, spec_hash: str = "earlier", node: str = "node-1", resource: str = "nvidia.com/gpu") -> Object:
    requests = {"resources": {"requests": {resource: "1"}}}
    return {**pod("chat-0", spec_hash=spec_hash), "spec": {"nodeName": node, "containers": [requests]}}


@pytest.mark.parametrize(
    ("other", "deployment", "advised"),
    [
        (holder(), strategy(0), True),
        (holder(), strategy(1), False),
        (holder(node=""), strategy(0), False),
        (holder(resource="memory"), strategy(0), False),
        (holder(spec_hash="h"), strategy(0), False),
    ],
)
def test_a_pod_that_waits_for_what_an_earlier_one_holds_is_told_how_to_get_it(
    other: Object, deployment: Object, *, advised: bool
) -> None:
    cause = find([other, pod(**FULL)], deployment, "h")
    assert cause is not None
    assert cause.reason == CauseReason.UNSCHEDULABLE
    told = "pods of this service hold nvidia.com/gpu." in cause.message
    assert (told, "spec.rollout: {maxSurge: 0, maxUnavailable: 1}" in cause.message) == (advised, advised)
