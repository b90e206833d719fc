"""The pod template of a service: an engine container that runs unprivileged, drains, and takes its time to start.

What is rendered here rolls pods when it changes, so nothing that may change without a restart enters it: no setpoint,
no bounds, no objectives. The result is kept in a ControllerRevision (`revision.py`), and a later operator that renders
otherwise leaves running services alone. Pods pass the `restricted` Pod Security level. Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Final

from flyball_engine.adapters import ADAPTERS_KEY, ADAPTERS_WAIT_SECONDS, DEFAULT_MAX_LORAS, MOST_ADAPTERS
from flyball_engine.contract import API_PORT, CONTROL_PORT, HEALTH_PATH, READY_HEADER, SETPOINT_WAIT_SECONDS, Env
from flyball_engine.draft_schedule import draft_schedule
from flyball_engine.launching import launch_command
from flyball_operator.api import names
from flyball_operator.api.containers import Container, EnvVar, Resources
from flyball_operator.api.kv_transfer import KVTransfer
from flyball_operator.api.objects import Object, digest
from flyball_operator.api.pod import PodSecurityContext, TopologySpreadConstraint
from flyball_operator.api.quantities import parse_duration
from flyball_operator.api.spec import Parallelism
from flyball_operator.api.v1alpha1 import Batching, InferenceService, Model, ModelSource
from flyball_operator.reconcile.plan.adapters import config_map_name
from flyball_operator.reconcile.plan.owned_objects import labels, selector
from flyball_operator.reconcile.plan.snapshot import Config

#: An unprivileged user that no image knows; distroless images use the same number.
USER_ID: Final = 65532
#: Seconds a stopping pod goes on serving, so that every kube-proxy and gateway has heard that it leaves.
ENDPOINT_SECONDS: Final = 5
#: Seconds beyond the drain time before the kubelet kills: vLLM ends its processes in them.
EXIT_SECONDS: Final = 15
#: Seconds between start-up probes: how late a ready engine may be noticed.
STARTUP_PERIOD: Final = 5
#: Seconds beyond the start-up time before a rollout counts as failed: scheduling, and an image that is mostly there.
PROGRESS_MARGIN: Final = 30
#: Starts of one engine that a rollout waits for. The kubelet starts one that died anew after 10 s, then 20 s, and each
#: start has its own wait for a setpoint. One that dies a third time will not come up by being started again.
ENGINE_STARTS: Final = 3

#: Of a container that serves nothing. Prometheus makes a target of every container, and of one without a port an
#: address that never answers; with this one it is the engine's own target again. Of another protocol than the engine's,
#: or the API server warns of a duplicate port.
_NO_TARGET: Final = {"containerPort": CONTROL_PORT, "protocol": "UDP"}

PLUGIN_PATH: Final = "/flyball"
_KEYS_PATH: Final = "/flyball-keys"
_TLS_PATH: Final = "/flyball-tls"
#: Keys of a Secret of type kubernetes.io/tls, and its files in a pod.
_CERTIFICATE, _PRIVATE_KEY = "tls.crt", "tls.key"
_ADAPTERS_PATH: Final = "/flyball-adapters"
MODEL_PATH: Final = "/model"
_COMPILED_PATH: Final = "/flyball-compiled"
_WHOLE: Final = re.compile(r"[0-9]{1,9}")
#: Bytes of a folder's name: file systems take 255.
_LONGEST_NAME: Final = 200
TMP_PATH: Final = "/tmp"  # noqa: S108 - a volume of the pod's own


def render(service: InferenceService, config: Config, spec_hash: str) -> Object:
    """The pod template for this spec, by this operator's renderer."""
    annotations = {
        **(_scraped_by_port(service) if service.spec.engine.tls else {}),
        **service.spec.pod_template.annotations,
        names.ANNOTATION_SCRAPE: "true",
        names.ANNOTATION_SPEC_HASH: spec_hash,
    }
    if service.spec.engine.tls:
        annotations[names.ANNOTATION_SCHEME] = "https"
    metadata = {"labels": {**service.spec.pod_template.labels, **labels(service.metadata)}, "annotations": annotations}
    template = {"metadata": metadata, "spec": _pod_spec(service, config)}
    annotations[names.ANNOTATION_TEMPLATE_HASH] = digest(template)
    return template


def _scraped_by_port(service: InferenceService) -> Mapping[str, str]:
    """Where a job that goes by annotations scrapes, which knows one scheme for all ports of a pod.

    Of a governed pod that is the control port, which tuning needs and which speaks HTTP; the user may say otherwise.
    """
    if service.spec.engine.governed:
        return {names.ANNOTATION_SCRAPE_PORT: str(CONTROL_PORT)}
    return {names.ANNOTATION_SCRAPE_SCHEME: "https"}


def _pod_spec(service: InferenceService, config: Config) -> Object:
    spec = service.spec
    extra = spec.pod_template
    pod: Object = {
        "automountServiceAccountToken": extra.automount_service_account_token,
        # A Service called `vllm` would otherwise set VLLM_PORT, which vLLM reads as its own.
        "enableServiceLinks": False,
        "securityContext": pod_security(extra.security_context),
        "terminationGracePeriodSeconds": ENDPOINT_SECONDS + drain_seconds(service) + EXIT_SECONDS,
        "containers": [_engine(service, config), *(_beside(one) for one in extra.containers)],
        "volumes": [*_volumes(service), *map(plain, extra.volumes)],
        "nodeSelector": dict(extra.node_selector),
        "tolerations": [dict(toleration) for toleration in extra.tolerations],
        "affinity": dict(extra.affinity),
        "imagePullSecrets": [{"name": secret.name} for secret in extra.image_pull_secrets],
        "priorityClassName": extra.priority_class_name,
        "runtimeClassName": extra.runtime_class_name,
        "schedulerName": extra.scheduler_name,
        "serviceAccountName": extra.service_account_name,
        # The API server fills each of the two from the other. One that is not ours would stay when the account is no
        # longer asked for, and bring it back.
        "serviceAccount": extra.service_account_name,
        "topologySpreadConstraints": [_spread(one, service) for one in extra.topology_spread_constraints],
        "resourceClaims": [plain(claim) for claim in extra.resource_claims],
        "initContainers": [
            *([plugin_container(config)] if spec.engine.governed else []),
            *(_beside(one) for one in extra.init_containers),
        ],
    }
    return {field: value for field, value in pod.items() if value not in (None, [], {})}


def plain(part: Model) -> Object:
    """A part of the spec as Kubernetes spells it. What stands at a default is Kubernetes' default, too."""
    return part.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def pod_security(asked: PodSecurityContext) -> Object:
    """The pod's security context: an unprivileged user, and what is asked for."""
    given = plain(asked)
    assigned = given.pop("runAsAssignedUser", False)
    user = {} if assigned else {"runAsUser": USER_ID, "runAsGroup": USER_ID}
    return {"runAsNonRoot": True, **user, "seccompProfile": {"type": "RuntimeDefault"}, **given}


def _spread(constraint: TopologySpreadConstraint, service: InferenceService) -> Object:
    """Without a selector Kubernetes would count no pod."""
    return {"labelSelector": {"matchLabels": selector(service.metadata)}, **plain(constraint)}


def _beside(container: Container) -> Object:
    """A container of the user's."""
    asked = plain(container.security_context)
    found = {
        **plain(container),
        "ports": [{"protocol": port.protocol, **plain(port)} for port in container.ports] or [_NO_TARGET],
        "resources": _amounts(container.resources),
        "securityContext": {**container_security(), **asked},
        # As of the engine: the last lines of one that ends tell why.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return {field: value for field, value in found.items() if value != {}}


def plugin_container(config: Config) -> Object:
    """The init container that brings the plugin."""
    return {
        "name": names.CONTAINER_PLUGIN,
        "image": config.plugin_image,
        "args": [PLUGIN_PATH],
        "ports": [_NO_TARGET],
        # Small and bounded, so that namespaces with a quota take the pod.
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "128Mi"}},
        "securityContext": container_security(),
        "volumeMounts": [{"name": "flyball", "mountPath": PLUGIN_PATH}],
    }


def _engine(service: InferenceService, config: Config) -> Object:
    governed = service.spec.engine.governed
    ports = [{"name": names.PORT_HTTP, "containerPort": API_PORT, "protocol": "TCP"}]
    if governed:
        ports.append({"name": names.PORT_CONTROL, "containerPort": CONTROL_PORT, "protocol": "TCP"})
    container: Object = {
        "name": names.CONTAINER_ENGINE,
        "image": service.spec.engine.image,
        "imagePullPolicy": service.spec.engine.image_pull_policy,
        "command": _command(service),
        "env": _environment(service, config),
        "ports": ports,
        "resources": _amounts(service.spec.pod_template.resources, _devices(service)),
        "securityContext": container_security(),
        # The launcher writes there why it refuses; an engine that dies of itself leaves its last lines.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "lifecycle": {"preStop": {"sleep": {"seconds": ENDPOINT_SECONDS}}},
        "volumeMounts": [*_mounts(service), *map(plain, service.spec.pod_template.volume_mounts)],
        **_probes(service),
    }
    return {field: value for field, value in container.items() if value not in (None, {})}


def _command(service: InferenceService) -> list[str]:
    user = [*_lora_defaults(service), *service.spec.engine.args]
    owned = _owned_arguments(service)
    if service.spec.engine.governed:
        return launch_command(owned=owned, user=user, **_part(service.spec.parallelism))
    # The last one wins in vLLM's parser.
    return ["python3", "-m", "vllm.entrypoints.openai.api_server", *user, *owned]


def _part(parallel: Parallelism) -> Mapping[str, int]:
    """What the launcher of each pod of a group needs to know of it besides the pod's index."""
    if parallel.core_spans_nodes:
        return {"nodes": parallel.nodes}
    return {"ranks": parallel.cores_per_pod} if parallel.nodes > 1 else {}


def _lora_defaults(service: InferenceService) -> list[str]:
    """Sizes that are set at start, before the user's arguments: of two spellings vLLM takes the last.

    It does not start with fewer adapters in memory than a step may mix. So each follows the user's other one.
    """
    if service.spec.adapters is None:
        return []
    args = service.spec.engine.args
    mixed, in_memory = _number(args, "--max-loras"), _number(args, "--max-cpu-loras")
    return [
        f"--max-loras={min(DEFAULT_MAX_LORAS, in_memory or DEFAULT_MAX_LORAS)}",
        f"--max-cpu-loras={max(MOST_ADAPTERS, mixed or 0)}",
    ]


def _number(args: Sequence[str], option: str) -> int | None:
    """The number that the last of these options has; None without it, 0 where vLLM will refuse what it has."""
    found: int | None = None
    for one, following in zip_longest(args, args[1:], fillvalue=""):
        spelt, equals, value = one.partition("=")
        if spelt.replace("_", "-") == option:
            text = value if equals else following
            found = int(text) if _WHOLE.fullmatch(text) else 0
    return found


def _owned_arguments(service: InferenceService) -> list[str]:
    spec = service.spec
    return [
        f"--model={model_path(spec.model)}",
        f"--served-model-name={spec.model.served_name or service.metadata.name}",
        "--host=0.0.0.0",
        f"--port={API_PORT}",
        f"--tensor-parallel-size={spec.parallelism.tensor}",
        f"--pipeline-parallel-size={spec.parallelism.pipeline}",
        # Rendered where it is asked for: templates of services without it stay as they are.
        *((f"--data-parallel-size={spec.parallelism.data}",) if spec.parallelism.data > 1 else ()),
        f"--max-num-seqs={spec.batching.max_num_seqs}",
        f"--max-num-batched-tokens={spec.batching.max_num_batched_tokens}",
        *_prefix_caching_arguments(spec.batching.prefix_caching),
        *speculation(spec.batching, live=_moves_depth(service)),
        *kv_transfer(spec.engine.kv_transfer),
        f"--shutdown-timeout={drain_seconds(service)}",
        *(_tls_arguments() if spec.engine.tls else ()),
        *(("--enable-lora",) if spec.adapters is not None else ()),
    ]


def _prefix_caching_arguments(wanted: bool | None) -> Sequence[str]:
    if wanted is None:
        # vLLM knows the model: an encoder with prefix caching does not start.
        return ()
    return ("--enable-prefix-caching",) if wanted else ("--no-enable-prefix-caching",)


def _moves_depth(service: InferenceService) -> bool:
    """Whether the plugin can move the depth of speculation of such engines."""
    parallel = service.spec.parallelism
    return service.spec.engine.governed and parallel.data == parallel.pipeline == 1


def speculation(batching: Batching, *, live: bool) -> Sequence[str]:
    """Speculative decoding; where its depth is moved `live`, with a schedule of all depths: vLLM takes no other ones.

    Where nobody moves it, that schedule would have nothing but a cost.
    """
    speculative = batching.speculative
    if speculative is None:
        return ()
    most = speculative.num_speculative_tokens
    schedule = {"num_speculative_tokens_per_batch_size": draft_schedule(most, batching.max_num_seqs)} if live else {}
    config = {
        "method": speculative.method.value,
        "num_speculative_tokens": most,
        **({} if speculative.model is None else {"model": speculative.model}),
        **schedule,
    }
    return (f"--speculative-config={json.dumps(config, separators=(',', ':'))}",)


def kv_transfer(asked: KVTransfer | None) -> Sequence[str]:
    """How an engine hands on the KV cache of prompts, or loads it, in vLLM's words."""
    if asked is None:
        return ()
    config = {
        "kv_connector": asked.connector,
        "kv_role": f"kv_{asked.role.lower()}",
        "kv_connector_module_path": asked.connector_module_path,
        "kv_buffer_device": asked.buffer_device,
        "kv_load_failure_policy": None if asked.load_failure_policy is None else asked.load_failure_policy.lower(),
        "kv_connector_extra_config": asked.extra_config or None,
    }
    given = {name: value for name, value in config.items() if value is not None}
    return (f"--kv-transfer-config={json.dumps(given, separators=(',', ':'))}",)


def _tls_arguments() -> Sequence[str]:
    # vLLM sees a Secret's first renewal by itself; the plugin sees all, but may not be there.
    return (
        f"--ssl-certfile={_TLS_PATH}/{_CERTIFICATE}",
        f"--ssl-keyfile={_TLS_PATH}/{_PRIVATE_KEY}",
        "--enable-ssl-refresh",
    )


def model_path(model: ModelSource) -> str:
    """Where the engine finds the model: a folder of its pod, or a name on Hugging Face."""
    scheme, _, rest = model.uri.partition("://")
    if model.cache is not None and scheme == "s3":
        # No bucket and no folder has "+" in its name, so this is nobody else's folder. A bucket's name is its server's.
        server = [digest(model.s3.endpoint)] if model.s3 is not None and model.s3.endpoint else []
        folder = "+".join((scheme, *rest.strip("/").split("/"), *server))
        if len(folder) > _LONGEST_NAME:
            folder = f"{scheme}+{digest([rest, *server])}"
        return "/".join(part for part in (MODEL_PATH, model.cache.path, folder) if part)
    if model.cache is not None:
        # As the hub's client names folders. No model or revision has "--" in its name.
        parts = (model.cache.path, rest.replace("/", "--"), model.cache.revision.replace("/", "--"))
        return "/".join((MODEL_PATH, *(part for part in parts if part)))
    if scheme == "pvc":
        _, _, path = rest.partition("/")
        return f"{MODEL_PATH}/{path}".rstrip("/")
    return rest if model.image is None else MODEL_PATH


def compiled_folder(service: InferenceService) -> str:
    """The folder of the model's volume for what vLLM compiles; empty where that is not kept."""
    cache = service.spec.model.cache
    if cache is None or not cache.keeps_compiled:
        return ""
    # No model's folder has such a name.
    return "/".join(part for part in (cache.path, f"compiled+{service.metadata.name}") if part)


def claim(service: InferenceService) -> str | None:
    """Name of the claim that has the model; None if none has."""
    model = service.spec.model
    if model.cache is not None:
        return model.cache.claim_name or f"{service.metadata.name}{names.CLAIM_SUFFIX}"
    scheme, _, rest = model.uri.partition("://")
    return rest.partition("/")[0] if scheme == "pvc" else None


def drain_seconds(service: InferenceService) -> int:
    """Seconds that running requests get to finish, rounded up."""
    return math.ceil(parse_duration(service.spec.rollout.drain_timeout))


def startup_seconds(service: InferenceService) -> int:
    """Seconds an engine may take to start, rounded up."""
    return math.ceil(parse_duration(service.spec.rollout.startup_timeout))


def waiting_seconds(service: InferenceService) -> int:
    """Seconds that a start may take besides, rounded up.

    Where no operator writes, a governed engine waits in vain; its adapters may load for all of their time.
    """
    if not service.spec.engine.governed:
        return 0
    adapters = ADAPTERS_WAIT_SECONDS if service.spec.adapters is not None else 0.0
    return math.ceil(max(SETPOINT_WAIT_SECONDS, adapters))


def progress_seconds(service: InferenceService) -> int:
    """Seconds without progress after which a rollout counts as failed: no pod that comes up may take longer."""
    return startup_seconds(service) + ENGINE_STARTS * waiting_seconds(service) + PROGRESS_MARGIN


def _environment(service: InferenceService, config: Config) -> list[Object]:
    """The user's variables first, then defaults they did not set, then ours, which they may not set."""
    there = service.spec.model.cache is not None or service.spec.model.image is not None
    ours = {**_owned_environment(service, config), **({"HF_HUB_OFFLINE": "1"} if there else {})}
    given = [variable for variable in service.spec.engine.env if variable.name not in ours]
    users = {variable.name: value_of(variable) for variable in given}
    # An unprivileged user without a passwd entry: getpass.getuser() and caches under ~ fail without these.
    defaults = {"USER": "flyball", "HOME": TMP_PATH}
    if compiled_folder(service):
        defaults["VLLM_CACHE_ROOT"] = _COMPILED_PATH
    fixed: dict[str, Object] = {name: {"value": value} for name, value in defaults.items()}
    if service.spec.parallelism.core_spans_nodes:
        # Where leader and workers find each other. Without, vLLM goes by its route to the internet, which may lack.
        fixed["VLLM_HOST_IP"] = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    owned = {name: {"value": value} for name, value in ours.items()}
    values = {**fixed, **users, **owned}
    variables: list[Object] = [{"name": name, **value} for name, value in values.items()]
    # Where the model is there, and pods download no adapters, the token is the download's alone.
    downloads = not there or service.spec.adapters is not None
    if downloads and "HF_TOKEN" not in values:
        variables += token_variable(service.spec.model)
    return variables


def token_variable(model: ModelSource) -> list[Object]:
    """The variable of the token, none where there is no token."""
    secret = model.token_secret_ref
    if secret is None:
        return []
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}}]


def value_of(variable: EnvVar) -> Object:
    """The variable without its name."""
    if variable.value_from is None:
        return {"value": variable.value}
    return {"valueFrom": plain(variable.value_from)}


def _owned_environment(service: InferenceService, config: Config) -> Mapping[str, str]:
    if not service.spec.engine.governed:
        return {}
    key = {Env.PUBLIC_KEY.value: config.public_key} if config.public_key else {}
    listed = service.spec.adapters is not None
    adapters = {Env.ADAPTERS_FILE.value: f"{_ADAPTERS_PATH}/{ADAPTERS_KEY}"} if listed else {}
    return {
        "PYTHONPATH": PLUGIN_PATH,
        Env.SERVICE_UID.value: service.metadata.uid,
        **key,
        Env.PUBLIC_KEYS_FILE.value: f"{_KEYS_PATH}/{names.PUBLIC_KEYS_KEY}",
        **adapters,
    }


def _devices(service: InferenceService) -> Mapping[str, int]:
    accelerator = service.spec.accelerator
    return {} if accelerator is None else {accelerator.resource_name: service.spec.parallelism.devices}


def _amounts(asked: Resources, devices: Mapping[str, int] = MappingProxyType({})) -> Object:
    # Strings, as the API server returns them.
    amounts = {"requests": asked.requests, "limits": {**asked.limits, **devices}}
    found: Object = {
        field: {key: str(value) for key, value in given.items()} for field, given in amounts.items() if given
    }
    claims = [plain(claim) for claim in asked.claims]
    return {**found, "claims": claims} if claims else found


def container_security() -> Object:
    """The security context of containers."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _volumes(service: InferenceService) -> list[Object]:
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if service.spec.engine.governed:
        volumes.append({"name": "flyball", "emptyDir": {}})
        # A key can then be changed in pods that run.
        volumes.append({"name": "flyball-keys", "configMap": {"name": names.PUBLIC_KEYS, "optional": True}})
    if service.spec.adapters is not None:
        # Of the name alone, so that its content is none of the template's.
        listed = {"name": config_map_name(service.metadata.name), "optional": True}
        volumes.append({"name": "flyball-adapters", "configMap": listed})
    if (tls := service.spec.engine.tls) is not None:
        items = [{"key": name, "path": name} for name in (_CERTIFICATE, _PRIVATE_KEY)]
        volumes.append({"name": "flyball-tls", "secret": {"secretName": tls.secret_name, "items": items}})
    if (found := claim(service)) is not None:
        # A volume cannot be two in a pod, one of which is read-only: kubelets wait for the second for ever.
        read_only = {} if compiled_folder(service) else {"readOnly": True}
        volumes.append({"name": names.VOLUME_MODEL, "persistentVolumeClaim": {"claimName": found, **read_only}})
    if (image := service.spec.model.image) is not None:
        # The API server's default would stay in a volume that is then another kind's, and be refused with it. A node
        # that has the image starts pods without the registry.
        pulled = {"reference": image, "pullPolicy": "IfNotPresent"}
        volumes.append({"name": names.VOLUME_MODEL, "image": pulled})
    return volumes


def _mounts(service: InferenceService) -> list[Object]:
    mounts: list[Object] = [{"name": "tmp", "mountPath": TMP_PATH}, {"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108
    if service.spec.engine.governed:
        mounts.append({"name": "flyball", "mountPath": PLUGIN_PATH, "readOnly": True})
        mounts.append({"name": "flyball-keys", "mountPath": _KEYS_PATH, "readOnly": True})
    if service.spec.adapters is not None:
        mounts.append({"name": "flyball-adapters", "mountPath": _ADAPTERS_PATH, "readOnly": True})
    if service.spec.engine.tls is not None:
        mounts.append({"name": "flyball-tls", "mountPath": _TLS_PATH, "readOnly": True})
    if claim(service) is not None or service.spec.model.image is not None:
        mounts.append({"name": names.VOLUME_MODEL, "mountPath": MODEL_PATH, "readOnly": True})
    if folder := compiled_folder(service):
        mounts.append({"name": names.VOLUME_MODEL, "mountPath": _COMPILED_PATH, "subPath": folder})
    return mounts


def _probes(service: InferenceService) -> Object:
    scheme = {"scheme": "HTTPS"} if service.spec.engine.tls else {}
    get = {"path": HEALTH_PATH, "port": names.PORT_HTTP, **scheme}
    # Asks the plugin, too, whether the engine is warm. Where that did not load, vLLM answers as ever. Warming up is
    # part of the start. The waits for a setpoint and for adapters are added.
    governed = service.spec.engine.governed
    marked = {"httpHeaders": [{"name": READY_HEADER, "value": "yes"}]} if governed else {}
    ready = {"httpGet": get | marked}
    attempts = math.ceil((startup_seconds(service) + waiting_seconds(service)) / STARTUP_PERIOD)
    return {
        "startupProbe": {**ready, "periodSeconds": STARTUP_PERIOD, "timeoutSeconds": 5, "failureThreshold": attempts},
        "readinessProbe": {**ready, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        # A busy engine answers late; only one that is silent for a minute and a half is restarted.
        "livenessProbe": {"httpGet": get, "periodSeconds": 15, "timeoutSeconds": 10, "failureThreshold": 6},
    }
