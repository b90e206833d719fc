"""The Job that downloads a model into its volume, once.

Its name says what is downloaded and where to, so another model or revision is another Job. It stays when it is done:
it is the record that the model is there, and goes with the service. So it has no time to live. Pure.
"""

from __future__ import annotations

from typing import Final

from flyball_engine.model_cache import PASSING, DownloadExit, download_command
from flyball_operator.api import names
from flyball_operator.api.model_source import ModelSource
from flyball_operator.api.objects import Kind, Object, digest
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan.owned_objects import owned
from flyball_operator.reconcile.plan.pod import (
    MODEL_PATH,
    PLUGIN_PATH,
    TMP_PATH,
    USER_ID,
    claim,
    compiled_folder,
    container_security,
    model_path,
    plain,
    plugin_container,
    pod_security,
    token_variable,
    value_of,
)
from flyball_operator.reconcile.plan.snapshot import Config

#: Pods that may fail before the Job does. Kubernetes waits 10 s, 20 s … 6 min between them: some 10 min in all.
BACKOFF_LIMIT: Final = 6
#: Seconds for one Job: 5 TB at 60 MB/s. What hangs for longer is begun anew, and goes on with what there is.
DEADLINE_SECONDS: Final = 86_400
#: Value of `app.kubernetes.io/name` of its pods. They have no label of the service's UID, so no Service selects them.
APPLICATION: Final = "flyball-download"
#: Four connections, buffers of 10 MB each, and checksums. The page cache counts, but gives way.
_RESOURCES: Final = {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "4", "memory": "2Gi"}}
#: Variables that the download decides on itself.
_OWN: Final = frozenset({"PYTHONPATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "USER", "HOME"})


def job_name(service: InferenceService, claim_uid: str = "") -> str:
    """Of the Job for what the spec asks for now. With the UID: an earlier service of this name may have left its.

    `claim_uid`: of the claim, where it is made by Flyball. What was downloaded to an earlier one is not in another.
    """
    model, meta = service.spec.model, service.metadata
    made = [claim_uid] if claim_uid else []
    return f"{meta.name}-model-{digest([meta.uid, claim(service), model_path(model), model.uri, *made])}"


def render(service: InferenceService, config: Config, claim_uid: str = "") -> Object:
    """The Job. Fails at once where trying again cannot help."""
    final = sorted(code.value for code in DownloadExit if code not in PASSING)
    spec = {
        "backoffLimit": BACKOFF_LIMIT,
        "activeDeadlineSeconds": DEADLINE_SECONDS,
        "podFailurePolicy": {
            "rules": [
                # A drain of the node is no failure.
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": names.CONTAINER_DOWNLOAD, "operator": "In", "values": final},
                },
            ]
        },
        "template": {"metadata": _metadata(service), "spec": _pod(service, config)},
    }
    body = owned(Kind.JOB, service.metadata, name=job_name(service, claim_uid), spec=spec)
    body["metadata"]["annotations"] = {names.ANNOTATION_INTENT: digest(spec)}
    return body


def _metadata(service: InferenceService) -> Object:
    """The user's as for the engine's pods: they tell meshes and policies what to do with a pod.

    The service's name is there so that a change of the pod is a reason to look at the service.
    """
    extra = service.spec.pod_template
    labels = {
        **extra.labels,
        names.LABEL_NAME: APPLICATION,
        names.LABEL_INSTANCE: service.metadata.name,
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_SERVICE: service.metadata.name,
    }
    return {"labels": labels, **({"annotations": dict(extra.annotations)} if extra.annotations else {})}


def _pod(service: InferenceService, config: Config) -> Object:
    extra = service.spec.pod_template
    security = pod_security(extra.security_context)
    # Else the volume of most drivers is root's. A platform that assigns users assigns the group as well.
    group = {"fsGroup": USER_ID, "fsGroupChangePolicy": "OnRootMismatch"} if "runAsUser" in security else {}
    node = {"nodeAffinity": extra.affinity["nodeAffinity"]} if "nodeAffinity" in extra.affinity else {}
    pod: Object = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**group, **security},
        "initContainers": [plugin_container(config)],
        "containers": [_container(service)],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "flyball", "emptyDir": {}},
            {"name": names.VOLUME_MODEL, "persistentVolumeClaim": {"claimName": claim(service)}},
            *_files(service),
        ],
        # Where the engine's pods may be: a volume may be bound to the node of its first pod.
        "nodeSelector": dict(extra.node_selector),
        "tolerations": [dict(toleration) for toleration in extra.tolerations],
        "affinity": node,
        "imagePullSecrets": [{"name": secret.name} for secret in extra.image_pull_secrets],
        "serviceAccountName": extra.service_account_name,
    }
    return {field: value for field, value in pod.items() if value not in (None, [], {})}


def _files(service: InferenceService) -> list[Object]:
    """The user's volumes that any number of pods may have, such as the certificate of a mirror's authority."""
    volumes = map(plain, service.spec.pod_template.volumes)
    return [volume for volume in volumes if not volume.keys().isdisjoint(("configMap", "secret", "projected"))]


def _container(service: InferenceService) -> Object:
    engine, model = service.spec.engine, service.spec.model
    assert model.cache is not None, "asked for by a service with a cache"  # noqa: S101
    bucket = _bucket_variables(model)
    own = _OWN | {one["name"] for one in bucket}
    # A mirror's address, a proxy, certificates.
    users = [{"name": one.name, **value_of(one)} for one in engine.env if one.name not in own]
    token = [{"name": one.name, **value_of(one)} for one in engine.env if one.name == "HF_TOKEN"]
    files = {volume["name"] for volume in _files(service)}
    # An image may be offline by a variable of its own: the client would call its hub unreachable.
    fixed = {"USER": "flyball", "HOME": TMP_PATH, "PYTHONPATH": PLUGIN_PATH, "HF_HUB_OFFLINE": "0"}
    container = {
        "name": names.CONTAINER_DOWNLOAD,
        "image": engine.image,
        "imagePullPolicy": engine.image_pull_policy,
        "command": download_command(
            model=model.uri.removeprefix("hf://"),
            revision=model.cache.revision,
            folder=model_path(model),
            make=_folder_to_make(service),
        ),
        "env": [
            *({"name": key, "value": value} for key, value in fixed.items()),
            *users,
            *(token or token_variable(model)),
            *bucket,
        ],
        "resources": _RESOURCES,
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": TMP_PATH},
            {"name": "flyball", "mountPath": PLUGIN_PATH, "readOnly": True},
            {"name": names.VOLUME_MODEL, "mountPath": MODEL_PATH},
            *(plain(mount) for mount in service.spec.pod_template.volume_mounts if mount.name in files),
        ],
    }
    return {field: value for field, value in container.items() if value is not None}


def _folder_to_make(service: InferenceService) -> str | None:
    """The folder for what vLLM compiles. A kubelet would make it for root alone."""
    folder = compiled_folder(service)
    return f"{MODEL_PATH}/{folder}" if folder else None


def made_folder(job: Object, service: InferenceService) -> bool:
    """Whether a Job that has ended made the folder that is asked for now, or none is."""
    folder = _folder_to_make(service)
    containers = job["spec"]["template"]["spec"]["containers"]
    made = {argument for one in containers for argument in one.get("command") or ()}
    return folder is None or f"--make={folder}" in made


def _bucket_variables(model: ModelSource) -> list[Object]:
    """How the client of S3 is told where the bucket is, and who asks: the names are those of Amazon's SDKs."""
    s3 = model.s3
    if s3 is None:
        return []
    places = {"AWS_ENDPOINT_URL_S3": s3.endpoint, "AWS_DEFAULT_REGION": s3.region}
    found: list[Object] = [{"name": name, "value": value} for name, value in places.items() if value]
    keys = (
        ()
        if s3.secret_name is None
        else (("AWS_ACCESS_KEY_ID", False), ("AWS_SECRET_ACCESS_KEY", False), ("AWS_SESSION_TOKEN", True))
    )
    for key, optional in keys:
        source = {"name": s3.secret_name, "key": key, **({"optional": True} if optional else {})}
        found.append({"name": key, "valueFrom": {"secretKeyRef": source}})
    return found
