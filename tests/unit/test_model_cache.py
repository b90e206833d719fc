"""A model that is downloaded once: the Job, what waits for it, what its end means, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flyball_engine.model_cache import DownloadExit, Progress, progress_of
from flyball_operator.api import names
from flyball_operator.api.objects import timestamp
from flyball_operator.kube.errors import ForbiddenError
from flyball_operator.kube.resources import DEPLOYMENTS, EVENTS, INFERENCE_SERVICES, JOBS, PODS, SERVICES, Resource
from flyball_operator.reconcile.plan.event_causes import AGAIN_SECONDS, PATIENCE_SECONDS
from flyball_operator.reconcile.plan.model_cache import LOOK_SECONDS, RETRY_SECONDS
from flyball_operator.reconcile.plan.snapshot import Config
from support.memory_api import MemoryApi, Object
from support.memory_cluster import DOWNLOADED, NAMESPACE, MemoryCluster, service

RUNNING: Object = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "download", "ready": True, "state": {"running": {}}}],
}
INITIALIZING: Object = {
    "phase": "Pending",
    "initContainerStatuses": [{"name": "flyball-plugin", "state": {"running": {}}}],
    "containerStatuses": [{"name": "download", "state": {"waiting": {"reason": "PodInitializing"}}}],
}
CREATING: Object = {
    "phase": "Pending",
    "containerStatuses": [{"name": "download", "state": {"waiting": {"reason": "ContainerCreating"}}}],
}
NO_CLAIM = '0/1 nodes are available: persistentvolumeclaim "models" not found. not found'
UNBOUND = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"


class RefusingApi(MemoryApi):
    """Refuses Jobs while it is told to."""

    refuses = True

    def _begin(self, verb: str, resource: Resource) -> None:
        if self.refuses and verb == "create" and resource is JOBS:
            raise ForbiddenError("exceeded quota: jobs")
        super()._begin(verb, resource)


def cached(uri: str = "hf://org/m", *, revision: str = "v1", **changes: Any) -> Object:
    cache = {"claimName": "models", "revision": revision}
    return service(spec__model={"uri": uri, "cache": cache}, **changes)


def ended(code: int, message: str = "it says why") -> Object:
    terminated = {"exitCode": code, "message": message}
    return {"phase": "Failed", "containerStatuses": [{"name": "download", "state": {"terminated": terminated}}]}


def unscheduled(message: str) -> Object:
    return {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}


def failed(world: MemoryCluster, code: int, message: str = "it says why") -> tuple[Object, Object]:
    condition = {"type": "Failed", "status": "True", "lastTransitionTime": timestamp(world.now)}
    return ended(code, message), {"conditions": [condition]}


def downloading(world: MemoryCluster) -> None:
    world.download = (RUNNING, {"active": 1})


def change_revision(world: MemoryCluster, revision: str) -> None:
    def change(found: Object) -> None:
        found["spec"]["model"]["cache"]["revision"] = revision

    world.change(change)


def job(world: MemoryCluster) -> Object:
    (found,) = world.api.find(JOBS)
    return found


def test_nothing_serves_until_the_model_is_there() -> None:
    world = MemoryCluster()
    downloading(world)
    world.apply(cached())
    assert not world.api.find(DEPLOYMENTS)
    assert world.api.find(SERVICES)
    assert world.condition("ModelReady") == ("False", "Downloading")
    assert world.condition("Progressing") == ("True", "Downloading")
    assert world.condition("Ready") == ("False", "Downloading")
    assert "Stalled" not in world.conditions()
    world.download = None
    world.settle()
    assert world.condition("ModelReady") == ("True", "Downloaded")
    assert "9 bytes" in world.message("ModelReady")
    assert world.condition("Ready") == ("True", "Serving")
    assert len(world.api.find(JOBS)) == 1


def test_pods_read_the_model_from_the_volume() -> None:
    world = MemoryCluster()
    world.apply(cached(spec__model__tokenSecretRef={"name": "hf", "key": "token"}))
    pod = world.template()["spec"]
    engine = pod["containers"][0]
    owned = engine["command"][3]
    assert '"--model=/model/org--m/v1"' in owned
    assert '"--served-model-name=chat"' in owned
    volume = {"name": "model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}}
    assert volume in pod["volumes"]
    assert {"name": "model", "mountPath": "/model", "readOnly": True} in engine["volumeMounts"]
    variables = {one["name"]: one.get("value") for one in engine["env"]}
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert "HF_TOKEN" not in variables


def test_the_job_downloads_what_is_asked_for() -> None:
    world = MemoryCluster()
    env = [{"name": "HF_ENDPOINT", "value": "https://mirror"}, {"name": "HF_HUB_OFFLINE", "value": "1"}]
    pods = {"nodeSelector": {"gpu": "yes"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    wanted = cached(spec__engine__env=env, spec__podTemplate=pods)
    wanted["spec"]["model"] |= {"tokenSecretRef": {"name": "hf", "key": "token"}}
    wanted["spec"]["model"]["cache"]["path"] = "a/b"
    world.apply(wanted)
    spec = job(world)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["command"][2:] == [
        "flyball_engine.download",
        "--model=org/m",
        "--revision=v1",
        "--folder=/model/a/b/org--m/v1",
        "--progress-port=8001",
    ]
    assert container["image"] == wanted["spec"]["engine"]["image"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert (variables["HF_ENDPOINT"], variables["PYTHONPATH"]) == ("https://mirror", "/flyball")
    # An image may say that it is offline, as that of the CPU engine does.
    assert variables["HF_HUB_OFFLINE"] == "0"
    assert "HF_TOKEN" in variables
    assert {"limits", "requests"} == container["resources"].keys()
    assert (spec["nodeSelector"], spec["securityContext"]["fsGroup"]) == ({"gpu": "yes"}, 65532)
    assert job(world)["spec"]["backoffLimit"] <= 6


def test_the_job_has_the_files_of_the_engine_and_no_other_volume() -> None:
    world = MemoryCluster()
    volumes = [
        {"name": "ca", "configMap": {"name": "ca"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    mounts = [{"name": "ca", "mountPath": "/etc/ca"}, {"name": "data", "mountPath": "/data"}]
    world.apply(cached(spec__podTemplate={"volumes": volumes, "volumeMounts": mounts}))
    spec = job(world)["spec"]["template"]["spec"]
    assert [one["name"] for one in spec["volumes"]] == ["tmp", "flyball", "model", "ca"]
    assert [one["mountPath"] for one in spec["containers"][0]["volumeMounts"]][3:] == ["/etc/ca"]


def test_no_service_selects_the_pods_of_the_job() -> None:
    world = MemoryCluster()
    world.apply(cached())
    selector = world.api.one(SERVICES, "chat")["spec"]["selector"]
    downloads = [pod for pod in world.api.find(PODS) if names.LABEL_JOB in pod["metadata"]["labels"]]
    assert downloads
    assert all(not selector.items() <= pod["metadata"]["labels"].items() for pod in downloads)
    assert all(not selector.items() <= one["spec"]["template"]["metadata"]["labels"].items() for one in [job(world)])
    assert len(world.snapshot().pods) == 1


def test_what_serves_goes_on_until_another_revision_is_there() -> None:
    world = MemoryCluster()
    world.apply(cached())
    first, template = job(world)["metadata"]["name"], world.template()
    downloading(world)
    change_revision(world, "v2")
    assert world.template() == template
    assert job(world)["metadata"]["name"] != first
    assert world.condition("Available") == ("True", "EarlierRevisionServes")
    assert world.condition("Ready") == ("False", "Downloading")
    # What concerns no template is not held.
    world.change(lambda found: found["spec"].update(replicas=3))
    assert world.api.one(DEPLOYMENTS, "chat")["spec"]["replicas"] == 3
    world.download = None
    world.settle()
    assert '"--model=/model/org--m/v2"' in world.template()["spec"]["containers"][0]["command"][3]
    assert world.condition("Ready") == ("True", "Serving")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (DownloadExit.REVISION_MISSING, "RevisionNotFound"),
        (DownloadExit.MODEL_MISSING, "ModelNotFound"),
        (DownloadExit.NO_ACCESS, "ModelAccessDenied"),
        (DownloadExit.DISK_FULL, "VolumeFull"),
        (DownloadExit.CLIENT_MISSING, "ClientMissing"),
    ],
)
def test_what_only_the_user_can_mend_stalls_and_is_not_tried_again(code: DownloadExit, reason: str) -> None:
    world = MemoryCluster()
    world.download = failed(world, code)
    world.apply(cached())
    assert world.condition("ModelReady") == ("False", reason)
    assert world.condition("Stalled") == ("True", reason)
    assert "it says why" in world.message("Progressing")
    name = job(world)["metadata"]["name"]
    assert f"kubectl delete job {name} -n {NAMESPACE}" in world.message("ModelReady")
    made = job(world)["metadata"]["uid"]
    world.wait(10 * RETRY_SECONDS)
    assert job(world)["metadata"]["uid"] == made
    # Mended.
    world.download = None
    world.api.remove(JOBS, name)
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")


def test_what_is_compiled_is_kept_beside_the_model_in_a_folder_of_the_service() -> None:
    world = MemoryCluster()
    wanted = cached()
    wanted["spec"]["model"]["cache"] |= {"path": "a/b", "keepsCompiled": True}
    world.apply(wanted)
    (container,) = job(world)["spec"]["template"]["spec"]["containers"]
    assert container["command"][-1] == "--make=/model/a/b/compiled+chat", "a kubelet would make it for root alone"
    pod = world.template()["spec"]
    assert {"name": "model", "persistentVolumeClaim": {"claimName": "models"}} in pod["volumes"]
    mounts = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "model"]
    assert mounts == [
        {"name": "model", "mountPath": "/model", "readOnly": True},
        {"name": "model", "mountPath": "/flyball-compiled", "subPath": "a/b/compiled+chat"},
    ]
    variables = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert variables["VLLM_CACHE_ROOT"] == "/flyball-compiled"


def test_where_it_is_to_be_kept_later_the_job_makes_the_folder_before_pods_need_it() -> None:
    world = MemoryCluster()
    world.apply(cached())
    before = job(world)["metadata"]["uid"]
    world.change(lambda one: one["spec"]["model"]["cache"].update(keepsCompiled=True))
    made = job(world)
    assert made["metadata"]["uid"] != before
    assert "--make=/model/compiled+chat" in made["spec"]["template"]["spec"]["containers"][0]["command"]
    assert world.condition("Ready") == ("True", "Serving")
    # It is no reason to look through the model's files that the folder is not needed any more.
    world.change(lambda one: one["spec"]["model"]["cache"].update(keepsCompiled=False))
    assert job(world)["metadata"]["uid"] == made["metadata"]["uid"]
    assert world.condition("Ready") == ("True", "Serving")


def test_how_far_a_download_is_is_told_each_minute() -> None:
    world = MemoryCluster()
    world.download = (RUNNING | {"podIP": "10.0.0.7"}, {"active": 1})
    world.progress = Progress(3_210_000_000, 15_200_000_000)
    world.apply(cached())
    assert world.condition("ModelReady") == ("False", "Downloading")
    assert world.message("ModelReady").endswith(" downloads the model: 3.21 of 15.20 GB are there")
    assert world.asked == {"10.0.0.7"}
    wait = world.look()
    assert wait is not None
    assert 0 < wait <= LOOK_SECONDS
    writes = world.api.writes
    for percent in (22, 23, 24):
        world.progress = Progress(percent * 152_000_000, 15_200_000_000)
        world.wait(LOOK_SECONDS)
    assert world.api.writes - writes <= 2, "figures that move alone are written once in a minute"
    assert "3.65 of 15.20 GB" in world.message("ModelReady") or "3.50 of 15.20 GB" in world.message("ModelReady")


def test_a_download_that_does_not_say_how_far_it_is_is_told_all_the_same() -> None:
    world = MemoryCluster()
    world.download = (RUNNING | {"podIP": "10.0.0.7"}, {"active": 1})
    world.apply(cached())
    assert world.message("ModelReady").endswith("downloads the model")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"done": 2, "total": 1}',
        b'{"done": -1, "total": 1}',
        b'{"done": 1.5, "total": 2}',
        b'{"done": true, "total": 2}',
        b'{"done": 1, "total": 1' + b"0" * 400 + b"}",
        b"[" * 1000,
    ],
)
def test_an_answer_that_is_no_progress_says_nothing(body: bytes) -> None:
    assert progress_of(body) is None


def in_a_bucket(uri: str = "s3://models/team/llm", **s3: str) -> Object:
    return service(spec__model={"uri": uri, "cache": {"claimName": "models"}, **({"s3": s3} if s3 else {})})


def test_the_job_is_told_where_a_bucket_is_and_who_asks() -> None:
    world = MemoryCluster()
    world.apply(in_a_bucket(endpoint="https://minio:9000", region="eu-west-1", secretName="models"))
    (container,) = job(world)["spec"]["template"]["spec"]["containers"]
    model, revision, folder = container["command"][3:6]
    assert (model, revision) == ("--model=s3://models/team/llm", "--revision=main")
    assert folder.startswith("--folder=/model/s3+models+team+llm+"), "a bucket's name is its server's"
    variables = {one["name"]: one.get("value") or one["valueFrom"]["secretKeyRef"] for one in container["env"]}
    assert variables["AWS_ENDPOINT_URL_S3"] == "https://minio:9000"
    assert variables["AWS_DEFAULT_REGION"] == "eu-west-1"
    assert variables["AWS_SECRET_ACCESS_KEY"] == {"name": "models", "key": "AWS_SECRET_ACCESS_KEY"}
    assert variables["AWS_SESSION_TOKEN"]["optional"], "credentials that do not end have none"


def test_the_engine_reads_what_was_in_the_bucket_and_has_no_credentials_for_it() -> None:
    world = MemoryCluster()
    world.apply(in_a_bucket(secretName="models"))
    engine = world.template()["spec"]["containers"][0]
    assert '"--model=/model/s3+models+team+llm"' in engine["command"][3]
    assert not any(one["name"].startswith("AWS_") for one in engine["env"])


def test_credentials_of_a_service_account_or_of_variables_are_left_to_the_client() -> None:
    world = MemoryCluster()
    wanted = in_a_bucket()
    wanted["spec"]["engine"]["env"] = [{"name": "AWS_ENDPOINT_URL_S3", "value": "https://minio"}]
    world.apply(wanted)
    (container,) = job(world)["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"] if one["name"].startswith("AWS_")}
    assert variables == {"AWS_ENDPOINT_URL_S3": "https://minio"}


def test_no_two_models_share_a_folder() -> None:
    """What is no file of a model is removed from its folder."""
    uris = ("hf://models/llm", "s3://models/llm", "s3://models/llm/v1", "s3://models/llm--v1", "hf://s3")
    long = "s3://models/" + "/".join(["folder"] * 60)
    sources = [
        *map(in_a_bucket, uris),
        in_a_bucket(endpoint="https://minio"),
        in_a_bucket(endpoint="https://other"),
        in_a_bucket(long),
        in_a_bucket(f"{long}/v1"),
    ]
    folders = []
    for source in sources:
        world = MemoryCluster()
        world.apply(source)
        (container,) = job(world)["spec"]["template"]["spec"]["containers"]
        folders.append(container["command"][-2].removeprefix("--folder="))
    assert not [
        (one, other) for one in folders for other in folders if one != other and f"{other}/".startswith(f"{one}/")
    ]
    assert len(set(folders)) == len(sources)
    assert max(len(name.encode()) for folder in folders for name in folder.split("/")) < 255


def test_of_a_full_volume_it_is_told_that_it_does_not_grow() -> None:
    world = MemoryCluster()
    world.volume = {"phase": "Bound", "capacity": {"storage": "100Gi"}}
    world.download = failed(world, DownloadExit.DISK_FULL)
    world.apply(service(spec__model={"uri": "hf://org/m", "cache": {"claim": {"size": "200Gi"}}}))
    assert world.condition("ModelReady") == ("False", "VolumeFull")
    assert "the volume of claim chat-model has 100Gi and is to grow to 200Gi" in world.message("ModelReady")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (DownloadExit.CHECKSUM_WRONG, "ChecksumMismatch"),
        (DownloadExit.HUB_UNREACHABLE, "HubUnreachable"),
        (DownloadExit.NOT_LOCKED, "LockTimeout"),
        (137, "DownloadFailed"),
    ],
)
def test_what_passes_is_waited_for_and_tried_again(code: int, reason: str) -> None:
    world = MemoryCluster()
    world.download = failed(world, code)
    world.apply(cached())
    made = job(world)["metadata"]["uid"]
    assert world.condition("ModelReady") == ("False", reason)
    assert world.condition("Progressing") == ("True", reason)
    assert "Stalled" not in world.conditions()
    wait = world.look()
    assert wait is not None
    assert 0 < wait <= RETRY_SECONDS
    world.download = None
    world.wait(RETRY_SECONDS)
    assert job(world)["metadata"]["uid"] != made
    assert world.condition("Ready") == ("True", "Serving")


def test_an_attempt_that_failed_is_told_of_while_the_job_goes_on() -> None:
    world = MemoryCluster()
    world.download = (ended(DownloadExit.HUB_UNREACHABLE, "no address; 12 bytes are kept"), {"active": 0, "failed": 1})
    world.apply(cached())
    assert world.condition("ModelReady") == ("False", "HubUnreachable")
    assert "12 bytes" in world.message("ModelReady")


def test_what_only_the_user_can_mend_is_told_before_the_job_has_given_up() -> None:
    world = MemoryCluster()
    world.download = (ended(DownloadExit.NO_ACCESS), {"active": 0, "failed": 1})
    world.apply(cached())
    assert world.condition("Stalled") == ("True", "ModelAccessDenied")
    assert "kubectl delete job" in world.message("ModelReady")


@pytest.mark.parametrize(
    ("message", "reason", "ends"),
    [
        (NO_CLAIM, "ClaimNotFound", 'persistentvolumeclaim "models" not found; the download waits for it'),
        (UNBOUND, "ClaimPending", "has unbound immediate PersistentVolumeClaims; the download waits for it"),
        ("0/1 nodes are available: 1 Insufficient memory.", "DownloadPending", "1 Insufficient memory."),
    ],
)
def test_a_claim_is_waited_for(message: str, reason: str, ends: str) -> None:
    world = MemoryCluster()
    world.download = (unscheduled(message), {"active": 1})
    world.apply(cached())
    assert world.condition("ModelReady") == ("False", reason)
    assert world.message("ModelReady").endswith(ends)
    assert "Stalled" not in world.conditions()


def test_another_image_is_tried_while_the_model_is_not_there() -> None:
    world = MemoryCluster()
    downloading(world)
    world.apply(cached())
    name, made = job(world)["metadata"]["name"], job(world)["metadata"]["uid"]
    world.change(lambda found: found["spec"]["engine"].update(image="engine:other"))
    assert job(world)["metadata"]["name"] == name
    assert job(world)["metadata"]["uid"] != made
    world.download = None
    world.settle()
    made = job(world)["metadata"]["uid"]
    world.change(lambda found: found["spec"]["engine"].update(image="engine:third"))
    assert job(world)["metadata"]["uid"] == made
    assert world.image() == "engine:third"


def test_without_a_cache_there_is_no_job_and_no_condition() -> None:
    world = MemoryCluster()
    world.apply(cached())
    world.change(lambda found: found["spec"]["model"].pop("cache"))
    assert not world.api.find(JOBS)
    assert "ModelReady" not in world.conditions()
    reads = world.api.reads["list", "jobs"]
    world.look()
    assert world.api.reads["list", "jobs"] == reads


def test_a_job_that_is_gone_holds_nothing_that_runs() -> None:
    world = MemoryCluster()
    world.apply(cached())
    downloading(world)
    world.api.remove(JOBS, job(world)["metadata"]["name"])
    world.settle()
    assert world.condition("ModelReady") == ("False", "Downloading")
    assert world.condition("Ready") == ("True", "Serving")


def test_a_plain_engine_needs_the_plugin_for_the_download_alone() -> None:
    plain: dict[str, Any] = {"spec__engine__governed": False, "spec__tuning": {"mode": "Disabled"}}
    world = MemoryCluster(config=Config())
    world.apply(cached(**plain))
    assert world.condition("Accepted") == ("False", "OperatorMisconfigured")
    world = MemoryCluster()
    world.apply(cached(**plain))
    assert world.condition("Ready") == ("True", "Serving")
    assert "--model=/model/org--m/v1" in world.template()["spec"]["containers"][0]["command"]


def test_the_claim_is_left_when_the_service_goes() -> None:
    world = MemoryCluster()
    world.apply(cached())
    world.delete()
    assert not world.api.find(JOBS)
    assert not world.api.find(INFERENCE_SERVICES)
    assert not any(plural == "persistentvolumeclaims" for _, plural in world.api.counts)


def test_a_job_that_an_earlier_service_of_the_name_left_is_nobodys_concern() -> None:
    world = MemoryCluster()
    world.apply(cached())
    left = job(world)["metadata"]["uid"]
    world.delete(cascade="orphan")
    for plural, namespace, name in list(world.api.objects):
        # Of the others the status says that they are in the way.
        if plural != JOBS.plural:
            del world.api.objects[plural, namespace, name]
    world.apply(cached())
    assert world.condition("Ready") == ("True", "Serving")
    assert left in {one["metadata"]["uid"] for one in world.api.find(JOBS)}
    assert len(world.api.find(JOBS)) == 2


@pytest.mark.parametrize("phase", ["Succeeded", "Running"])
def test_a_download_that_has_ended_well_is_told_before_the_job_has_completed(phase: str) -> None:
    world = MemoryCluster()
    # A container that a mesh added may go on for ever.
    world.download = ({**DOWNLOADED, "phase": phase}, {"active": 1})
    world.apply(cached())
    assert world.condition("ModelReady") == ("True", "Downloaded")
    assert "9 bytes" in world.message("ModelReady")
    assert world.condition("Ready") == ("True", "Serving")
    assert not [one for one in world.api.find(EVENTS) if "DownloadFailed" in one["reason"]]


def test_a_download_that_failed_is_told_while_another_container_goes_on() -> None:
    world = MemoryCluster()
    world.download = ({**ended(DownloadExit.NO_ACCESS), "phase": "Running"}, {"active": 1})
    world.apply(cached())
    assert world.condition("Stalled") == ("True", "ModelAccessDenied")


def test_pods_of_the_job_are_labelled_and_annotated_as_those_of_the_engine() -> None:
    world = MemoryCluster()
    world.apply(cached(spec__podTemplate={"labels": {"team": "a"}, "annotations": {"mesh/inject": "false"}}))
    metadata = job(world)["spec"]["template"]["metadata"]
    assert metadata["labels"]["team"] == "a"
    assert metadata["annotations"] == {"mesh/inject": "false"}
    assert names.LABEL_SERVICE_UID not in metadata["labels"]


def test_a_job_that_is_refused_is_told_and_asked_for_again() -> None:
    api = RefusingApi()
    world = MemoryCluster(api)
    world.apply(cached())
    assert world.condition("Accepted")[0] == "True"
    assert world.condition("ModelReady") == ("False", "DownloadRefused")
    assert world.condition("Stalled") == ("True", "DownloadRefused")
    assert "exceeded quota: jobs" in world.message("ModelReady")
    assert world.api.find(SERVICES)
    assert not world.api.find(DEPLOYMENTS)
    again = world.look()
    assert again is not None
    assert 0 < again <= RETRY_SECONDS
    api.refuses = False
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    assert "Stalled" not in world.conditions()


def test_a_job_that_is_refused_holds_nothing_that_runs() -> None:
    api = RefusingApi()
    api.refuses = False
    world = MemoryCluster(api)
    world.apply(cached())
    api.refuses = True
    world.api.remove(JOBS, job(world)["metadata"]["name"])
    world.change(lambda found: found["spec"].update(replicas=3))
    assert world.api.one(DEPLOYMENTS, "chat")["spec"]["replicas"] == 3
    assert world.condition("Accepted")[0] == "True"
    assert world.condition("Ready") == ("True", "Serving")
    assert world.condition("ModelReady") == ("False", "DownloadRefused")


def test_a_job_is_removed_with_the_cache_also_where_the_service_was_not_accepted_meanwhile() -> None:
    world = MemoryCluster()
    world.apply(cached())
    world.change(lambda found: found["spec"].update(replicas="many"))
    assert world.condition("Accepted")[0] == "False"
    assert world.api.find(JOBS)

    def mend(found: Object) -> None:
        found["spec"]["replicas"] = 1
        found["spec"]["model"].pop("cache")

    world.change(mend)
    assert world.condition("Ready") == ("True", "Serving")
    assert not world.api.find(JOBS)


def test_the_service_is_that_of_the_pods_that_serve_while_a_rollout_waits_for_the_model() -> None:
    world = MemoryCluster()
    world.apply(cached())
    front = world.api.one(SERVICES, "chat")["spec"]
    url = world.api.one(INFERENCE_SERVICES, "chat")["status"]["url"]

    def to_https(found: Object) -> None:
        found["spec"]["model"]["cache"]["revision"] = "v2"
        found["spec"]["engine"]["tls"] = {"secretName": "chat-tls"}

    downloading(world)
    world.change(to_https)
    assert world.condition("Progressing") == ("True", "Downloading")
    assert world.api.one(SERVICES, "chat")["spec"] == front
    assert world.api.one(INFERENCE_SERVICES, "chat")["status"]["url"] == url
    world.download = None
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    assert world.api.one(SERVICES, "chat")["spec"] != front
    assert world.api.one(INFERENCE_SERVICES, "chat")["status"]["url"] == url.replace("http:", "https:")


def said_of(found: Object, reason: str, message: str) -> Object:
    involved = {"uid": found["metadata"]["uid"], "name": found["metadata"]["name"]}
    metadata = {"name": f"{reason}-1", "namespace": NAMESPACE}
    return {"metadata": metadata, "involvedObject": involved, "reason": reason, "message": message}


def test_a_pod_that_is_only_being_started_downloads_nothing() -> None:
    world = MemoryCluster()
    world.download = (INITIALIZING, {"active": 1})
    world.apply(cached())
    assert world.condition("ModelReady") == ("False", "DownloadPending")
    assert world.condition("Progressing") == ("True", "DownloadPending")
    # It begins as any does.
    assert not [one for one in world.api.find(EVENTS) if one["type"] == "Warning" and "Download" in one["reason"]]
    world.download = (RUNNING, {"active": 1, "ready": 1})
    world.settle()
    assert world.condition("ModelReady") == ("False", "Downloading")


def test_a_job_without_a_pod_says_why_in_the_words_of_its_events() -> None:
    world = MemoryCluster()
    world.download = (RUNNING, {})
    world.apply(cached())
    world.api.edit(JOBS, job(world)["metadata"]["name"], made_now(world))
    for pod in world.api.find(PODS):
        world.api.remove(PODS, pod["metadata"]["name"])
    words = "pods is forbidden: exceeded quota"
    world.api.put(EVENTS, said_of(job(world), "SuccessfulCreate", "Created pod: one"))
    world.api.put(EVENTS, said_of(job(world), "FailedCreate", f"Error creating: {words}"))
    again = world.look()
    assert again is not None
    assert 0 < again <= PATIENCE_SECONDS
    world.wait(AGAIN_SECONDS + PATIENCE_SECONDS)
    assert world.condition("ModelReady") == ("False", "DownloadPending")
    assert words in world.message("ModelReady")
    assert world.look() == AGAIN_SECONDS


def test_a_pod_that_waits_for_its_volume_says_why_in_the_words_of_its_events() -> None:
    world = MemoryCluster()
    world.download = (CREATING, {"active": 1})
    world.apply(cached())
    (pod,) = world.api.find(PODS)

    def place(found: Object) -> None:
        found["spec"]["nodeName"] = "node-1"
        made_now(world)(found)

    world.api.edit(PODS, pod["metadata"]["name"], place)
    world.api.put(EVENTS, said_of(pod, "FailedAttachVolume", "Multi-Attach error"))
    world.wait(AGAIN_SECONDS)
    assert world.condition("ModelReady") == ("False", "DownloadPending")
    assert "Multi-Attach error" in world.message("ModelReady")
    assert world.look() == AGAIN_SECONDS


def test_a_pod_that_its_node_put_out_does_not_download() -> None:
    world = MemoryCluster()
    world.download = ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, {"active": 0, "failed": 1})
    world.apply(cached())
    assert world.condition("ModelReady") == ("False", "DownloadPending")
    assert "Evicted" in world.message("ModelReady")


def made_now(world: MemoryCluster) -> Callable[[Object], None]:
    def change(found: Object) -> None:
        found["metadata"]["creationTimestamp"] = timestamp(world.now)

    return change
