"""The pod template and the Deployment: what runs, as whom, how it starts, stops and is replaced."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_engine.contract import SETPOINT_WAIT_SECONDS
from flyball_lab.harness.manifests import Object, good
from flyball_operator.api import names
from flyball_operator.api.parse import InvalidSpecError, parse_service
from flyball_operator.api.v1alpha1 import InferenceService, InferenceServiceStatus
from flyball_operator.api.volumes import OWN_VOLUMES
from flyball_operator.reconcile.plan import pod
from flyball_operator.reconcile.plan.deployment import rollout_steps, wanted_replicas
from flyball_operator.reconcile.plan.fields import covers
from flyball_operator.reconcile.plan.revision import spec_hash
from flyball_operator.reconcile.plan.snapshot import Config

CONFIG = Config(plugin_image="flyball/plugin:1", public_key="PEM")
GPU = {"resourceName": "nvidia.com/gpu"}


def service(**changes: Any) -> InferenceService:
    found = good(metadata__namespace="ns", **changes)
    found["metadata"] |= {"uid": "u1", "generation": 1}
    return parse_service(found)


def template(**changes: Any) -> Object:
    return pod.render(service(**changes), CONFIG, "hash")


def engine(**changes: Any) -> Object:
    found: Object = template(**changes)["spec"]["containers"][0]
    return found


def owned(**changes: Any) -> list[str]:
    (argument,) = (item for item in engine(**changes)["command"] if item.startswith("--owned="))
    found: list[str] = json.loads(argument.removeprefix("--owned="))
    return found


def test_pods_pass_the_restricted_level_and_hold_no_token() -> None:
    spec = template()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*spec["containers"], *spec["initContainers"]):
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe"])
def test_devices_of_any_vendor_are_asked_for_by_their_resource_alone(resource: str) -> None:
    groups = {"securityContext": {"supplementalGroups": [44, 993]}}
    asked = {"spec__accelerator": {"resourceName": resource}, "spec__parallelism": {"tensor": 2}}
    assert engine(**asked)["resources"]["limits"] == {resource: "2"}
    assert {one["name"] for one in engine(**asked)["env"]} == {one["name"] for one in engine()["env"]}
    # Device files of AMD and Intel are for groups of the node. Nothing else is opened for them.
    spec = template(**asked, spec__podTemplate=groups)["spec"]
    assert spec["securityContext"] == {**template()["spec"]["securityContext"], "supplementalGroups": [44, 993]}
    assert [one["securityContext"] for one in spec["containers"]] == [engine()["securityContext"]]


def test_the_init_container_names_the_control_port_so_that_no_target_of_its_own_is_found() -> None:
    (plugin,) = template()["spec"]["initContainers"]
    # By another protocol: the API server warns of a port that two containers name.
    assert plugin["ports"] == [{"containerPort": 8001, "protocol": "UDP"}]
    assert all(port["protocol"] == "TCP" for port in engine()["ports"])


def test_a_stopping_pod_serves_until_everybody_knows_then_drains_then_has_time_to_exit() -> None:
    spec = template(spec__rollout={"drainTimeout": "90s"})["spec"]
    assert spec["containers"][0]["lifecycle"]["preStop"] == {"sleep": {"seconds": pod.ENDPOINT_SECONDS}}
    assert "--shutdown-timeout=90" in owned(spec__rollout={"drainTimeout": "90s"})
    assert spec["terminationGracePeriodSeconds"] == pod.ENDPOINT_SECONDS + 90 + pod.EXIT_SECONDS


def test_an_engine_may_take_its_start_up_time() -> None:
    probe = engine(
        spec__rollout={"startupTimeout": "10m"}, spec__engine__governed=False, spec__tuning={"mode": "Disabled"}
    )["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 600
    # A governed one may spend the wait for a setpoint besides: without an operator it passes.
    probe = engine(spec__rollout={"startupTimeout": "10m"})["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 600 + SETPOINT_WAIT_SECONDS


def test_warming_up_is_part_of_the_start_and_an_engine_that_cannot_is_started_anew() -> None:
    container = engine()
    assert container["startupProbe"]["httpGet"] == container["readinessProbe"]["httpGet"]
    assert "httpHeaders" in container["startupProbe"]["httpGet"]
    assert "httpHeaders" not in container["livenessProbe"]["httpGet"], "once started, only silence ends an engine"


@pytest.mark.parametrize(
    ("uri", "path", "claim"),
    [
        ("hf://Qwen/Qwen3-8B", "Qwen/Qwen3-8B", None),
        ("file:///models/tiny", "/models/tiny", None),
        ("pvc://weights/llama/8b", "/model/llama/8b", "weights"),
        ("pvc://weights", "/model", "weights"),
        ("oci://r.test/qwen:v1", "/model", None),
    ],
)
def test_where_the_weights_are(uri: str, path: str, claim: str | None) -> None:
    assert f"--model={path}" in owned(spec__model__uri=uri)
    volumes = {item["name"]: item for item in template(spec__model__uri=uri)["spec"]["volumes"]}
    if claim is not None:
        assert volumes["model"]["persistentVolumeClaim"] == {"claimName": claim, "readOnly": True}
    else:
        assert "persistentVolumeClaim" not in volumes.get("model", {})


def test_a_model_in_an_image_is_mounted_and_read_without_a_network() -> None:
    model = {"uri": "oci://r.test:5000/models/qwen:v1", "servedName": "qwen"}
    spec = template(spec__model=model)["spec"]
    (volume,) = (one for one in spec["volumes"] if one["name"] == "model")
    pulled = {"reference": "r.test:5000/models/qwen:v1", "pullPolicy": "IfNotPresent"}
    assert volume == {"name": "model", "image": pulled}
    container = spec["containers"][0]
    assert {"name": "model", "mountPath": "/model", "readOnly": True} in container["volumeMounts"]
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in container["env"]
    assert {"--model=/model", "--served-model-name=qwen"} <= set(owned(spec__model=model))
    assert [one["name"] for one in spec["initContainers"]] == [names.CONTAINER_PLUGIN]


def test_a_token_comes_from_its_secret_and_is_not_read_by_us() -> None:
    variables = {item["name"]: item for item in engine(spec__model__tokenSecretRef={"name": "hf", "key": "t"})["env"]}
    assert variables["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hf", "key": "t"}}


def test_the_users_environment_overrides_defaults_but_nothing_of_ours() -> None:
    env = [{"name": "HOME", "value": "/data"}, {"name": "OMP_NUM_THREADS", "value": "4"}]
    variables = {item["name"]: item.get("value") for item in engine(spec__engine__env=env)["env"]}
    assert variables["HOME"] == "/data"
    assert variables["OMP_NUM_THREADS"] == "4"
    assert variables["PYTHONPATH"] == "/flyball"
    assert variables["FLYBALL_SERVICE_UID"] == "u1"


def test_a_variable_comes_from_a_secret_that_is_not_read_by_us_and_overrides_a_default() -> None:
    source = {"secretKeyRef": {"name": "keys", "key": "home", "optional": True}}
    env = [{"name": "HOME", "valueFrom": source}, {"name": "HF_TOKEN", "valueFrom": source}]
    secret = {"name": "hf", "key": "t"}
    found = engine(spec__engine__env=env, spec__model__tokenSecretRef=secret)["env"]
    assert [item for item in found if item["name"] in ("HOME", "HF_TOKEN")] == env


def test_what_says_nothing_but_its_kind_is_kept_and_amounts_are_strings() -> None:
    volumes = [{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {"sizeLimit": 2**30}}]
    found = template(spec__podTemplate__volumes=volumes)["spec"]["volumes"]
    assert found[-2:] == [volumes[0], {"name": "b", "emptyDir": {"sizeLimit": str(2**30)}}]


def test_a_platform_may_assign_the_user() -> None:
    security = template(spec__podTemplate__securityContext={"runAsAssignedUser": True, "fsGroup": 7})["spec"]
    assert security["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        "fsGroup": 7,
    }


@pytest.mark.parametrize("field", ["runAsUser", "runAsGroup"])
def test_a_user_or_group_of_ones_own_replaces_only_that(field: str) -> None:
    security = template(spec__podTemplate__securityContext={field: 1000})["spec"]["securityContext"]
    other = {"runAsUser", "runAsGroup"} - {field}
    assert security[field] == 1000
    assert {security[name] for name in other} == {pod.USER_ID}


def test_spread_without_a_selector_counts_the_pods_of_this_service() -> None:
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    everyone: dict[str, Any] = {"labelSelector": {}}
    found = template(spec__podTemplate__topologySpreadConstraints=[constraint, constraint | everyone])["spec"]
    ours, theirs = found["topologySpreadConstraints"]
    assert ours["labelSelector"]["matchLabels"].items() <= template()["metadata"]["labels"].items()
    assert theirs == constraint | everyone


def test_containers_beside_the_engine_are_as_unprivileged_as_it_is_and_come_after_it() -> None:
    side = {"name": "side", "image": "side:1"}
    asked = {"runAsUser": 7, "readOnlyRootFilesystem": False, "privileged": False}
    spec = template(
        spec__podTemplate={
            "containers": [side | {"securityContext": asked}],
            "initContainers": [side | {"name": "first"}, side | {"name": "second", "restartPolicy": "Always"}],
        }
    )["spec"]
    assert [one["name"] for one in spec["containers"]] == [names.CONTAINER_ENGINE, "side"]
    assert [one["name"] for one in spec["initContainers"]] == [names.CONTAINER_PLUGIN, "first", "second"]
    ours = spec["containers"][0]["securityContext"]
    assert spec["containers"][1]["securityContext"] == ours | {"runAsUser": 7, "readOnlyRootFilesystem": False}
    assert all(one["securityContext"] == ours for one in spec["initContainers"])


def test_engines_by_claims_have_devices_and_are_replaced_in_place() -> None:
    changes: dict[str, Any] = {
        "spec__parallelism": {"tensor": 2},
        "spec__podTemplate": {
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "two-gpus"}],
            "resources": {"claims": [{"name": "gpu"}]},
        },
    }
    found = template(**changes)["spec"]
    assert found["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "two-gpus"}]
    assert found["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}
    assert rollout_steps(service(**changes), 2) == (0, 1)


def test_public_keys_come_from_a_config_map_that_need_not_be_there() -> None:
    spec = template()["spec"]
    (volume,) = (item for item in spec["volumes"] if "configMap" in item)
    assert volume["configMap"] == {"name": names.PUBLIC_KEYS, "optional": True}
    (mount,) = (item for item in engine()["volumeMounts"] if item["name"] == volume["name"])
    variables = {item["name"]: item.get("value") for item in engine()["env"]}
    assert variables["FLYBALL_PUBLIC_KEYS_FILE"] == f"{mount['mountPath']}/{names.PUBLIC_KEYS_KEY}"
    # By a path within the volume it would never change.
    assert mount["readOnly"] is True
    assert "subPath" not in mount


def test_where_the_operator_publishes_keys_no_template_names_one() -> None:
    config = Config(plugin_image="flyball/plugin:1", publishes_keys=True)
    rendered = pod.render(service(), config, "hash")
    (container,) = rendered["spec"]["containers"]
    variables = {item["name"] for item in container["env"]}
    assert "FLYBALL_PUBLIC_KEY" not in variables
    assert "FLYBALL_PUBLIC_KEYS_FILE" in variables


TLS = {"secretName": "chat-tls"}


def test_a_certificate_comes_from_its_secret_and_is_not_read_by_us() -> None:
    found = template(spec__engine__tls=TLS)["spec"]
    (volume,) = (item for item in found["volumes"] if "secret" in item)
    # These two keys alone: cert-manager's Secrets have the authority's certificate as well.
    items = [{"key": name, "path": name} for name in ("tls.crt", "tls.key")]
    assert volume["secret"] == {"secretName": "chat-tls", "items": items}
    (mount,) = (item for item in found["containers"][0]["volumeMounts"] if item["name"] == volume["name"])
    assert mount["readOnly"] is True
    # By a path within the volume it would never change.
    assert "subPath" not in mount
    path = mount["mountPath"]
    assert owned(spec__engine__tls=TLS)[-3:] == [
        f"--ssl-certfile={path}/tls.crt",
        f"--ssl-keyfile={path}/tls.key",
        "--enable-ssl-refresh",
    ]


def test_probes_speak_as_the_port_does_and_the_port_keeps_its_name() -> None:
    found = engine(spec__engine__tls=TLS)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert found[probe]["httpGet"]["scheme"] == "HTTPS"
        assert "scheme" not in engine()[probe]["httpGet"]
    assert found["ports"] == engine()["ports"]


def test_a_job_that_goes_by_annotations_scrapes_what_it_can_of_a_port_with_tls() -> None:
    ungoverned = {"spec__engine__governed": False, "spec__tuning": {"mode": "Disabled"}, "spec__objectives": []}
    port, scheme = names.ANNOTATION_SCRAPE_PORT, names.ANNOTATION_SCRAPE_SCHEME

    def annotations(**changes: Any) -> Object:
        found: Object = template(**changes)["metadata"]["annotations"]
        return {key: found[key] for key in (port, scheme) if key in found}

    # It knows one scheme for all ports of a pod, and the control port speaks HTTP.
    assert annotations() == {}
    assert annotations(spec__engine__tls=TLS) == {port: "8001"}
    assert annotations(spec__engine__tls=TLS, **ungoverned) == {scheme: "https"}
    theirs = {port: "9000", scheme: "http"}
    assert annotations(spec__engine__tls=TLS, spec__podTemplate__annotations=theirs) == theirs


def test_an_accelerator_is_requested_once_per_device() -> None:
    wide = {"tensor": 4, "pipeline": 2}
    found = engine(spec__accelerator=GPU, spec__parallelism=wide)
    assert found["resources"]["limits"]["nvidia.com/gpu"] == "8"
    given = owned(spec__accelerator=GPU, spec__parallelism=wide)
    assert {"--tensor-parallel-size=4", "--pipeline-parallel-size=2"} <= set(given)


def test_each_engine_core_of_a_pod_has_devices_of_its_own() -> None:
    wide = {"tensor": 4, "data": 2}
    found = engine(spec__accelerator=GPU, spec__parallelism=wide)
    assert found["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert "--data-parallel-size=2" in owned(spec__accelerator=GPU, spec__parallelism=wide)
    # Templates from before this field stay as they are.
    assert not any("data-parallel" in argument for argument in owned(spec__accelerator=GPU))


@pytest.mark.parametrize(
    ("wanted", "flags"), [(None, []), (True, ["--enable-prefix-caching"]), (False, ["--no-enable-prefix-caching"])]
)
def test_what_prompts_share_is_up_to_vllm_unless_the_spec_says(wanted: bool | None, flags: list[str]) -> None:
    batching = {} if wanted is None else {"prefixCaching": wanted}
    assert [one for one in owned(spec__batching=batching) if "prefix-caching" in one] == flags


def test_ungoverned_is_plain_vllm_with_nothing_of_ours_in_it() -> None:
    changes: dict[str, Any] = {
        "spec__engine__governed": False,
        "spec__tuning": {"mode": "Disabled"},
        "spec__objectives": [],
    }
    spec = template(**changes)["spec"]
    (container,) = spec["containers"]
    assert "initContainers" not in spec
    assert container["command"][:3] == ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    assert container["command"][-1] == "--shutdown-timeout=60"
    assert [port["name"] for port in container["ports"]] == [names.PORT_HTTP]
    assert not any("FLYBALL" in item["name"] or item["name"] == "PYTHONPATH" for item in container["env"])


def test_the_users_arguments_come_before_ours() -> None:
    changes: dict[str, Any] = {"spec__engine__args": ["--max-model-len=1024"]}
    command = engine(**changes)["command"]
    assert command[-2:] == ["--", "--max-model-len=1024"]


@pytest.mark.parametrize(
    ("changes", "replicas", "steps"),
    [
        ({}, 1, (1, 0)),
        ({}, 3, (1, 0)),
        ({"spec__accelerator": GPU}, 1, (1, 0)),
        ({"spec__accelerator": GPU}, 2, (0, 1)),
        ({"spec__accelerator": GPU, "spec__rollout": {"maxUnavailable": 0}}, 2, (1, 0)),
        ({"spec__accelerator": GPU, "spec__rollout": {"maxSurge": 2}}, 2, (2, 1)),
        ({"spec__rollout": {"maxSurge": 0}}, 1, (0, 1)),
        ({"spec__rollout": {"maxSurge": 0, "maxUnavailable": 2}}, 3, (0, 2)),
    ],
)
def test_how_pods_are_replaced(changes: dict[str, Any], replicas: int, steps: tuple[int, int]) -> None:
    assert rollout_steps(service(**changes), replicas) == steps


def test_without_replicas_what_runs_is_kept() -> None:
    assert wanted_replicas(service(), None) == 1
    assert wanted_replicas(service(), {"spec": {"replicas": 4}}) == 4
    assert wanted_replicas(service(spec__replicas=2), {"spec": {"replicas": 4}}) == 2


@pytest.mark.parametrize(("told", "wanted"), [("True", 7), ("False", 7), ("Unknown", 4)])
def test_the_number_that_scaling_left_is_followed_while_the_service_is_tuned(told: str, wanted: int) -> None:
    status = {"scaling": {"replicas": 7}, "conditions": [{"type": "ScalingActive", "status": told, "reason": "A"}]}
    found = service(spec__scaling={"maxReplicas": 8})
    scales = found.model_copy(update={"status": InferenceServiceStatus.model_validate(status)})
    assert wanted_replicas(scales, {"spec": {"replicas": 4}}) == wanted


@pytest.mark.parametrize(
    "changes",
    [
        {"spec__engine__image": "other:1"},
        {"spec__model__servedName": "other"},
        {"spec__batching": {"maxNumSeqs": 8}},
        {"spec__rollout": {"drainTimeout": "61s"}},
        {"spec__podTemplate": {"nodeSelector": {"a": "b"}}},
        {"spec__podTemplate": {"automountServiceAccountToken": True}},
        {"spec__podTemplate": {"volumes": [{"name": "a", "emptyDir": {}}]}},
        {"spec__podTemplate": {"containers": [{"name": "a", "image": "a:1"}]}},
        {"spec__engine__imagePullPolicy": "Always"},
        {"metadata__annotations": {names.ANNOTATION_ADOPT: "1"}},
    ],
)
def test_what_rolls_pods(changes: dict[str, Any]) -> None:
    assert spec_hash(service(**changes)) != spec_hash(service())


CACHE = {
    "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "a"}}],
    "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
}


def test_what_kubernetes_would_not_keep_is_not_rendered() -> None:
    said = {
        "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "a", "readOnly": False}}],
        "volumeMounts": [{"name": "cache", "mountPath": "/cache", "readOnly": False}],
    }
    assert template(spec__podTemplate=said)["spec"] == template(spec__podTemplate=CACHE)["spec"]
    assert spec_hash(service(spec__podTemplate=said)) == spec_hash(service(spec__podTemplate=CACHE))


@pytest.mark.parametrize(
    "changes",
    [
        {"spec__replicas": 7},
        {"spec__objectives": []},
        {"spec__tuning": {"mode": "Recommend", "bounds": {"maxNumActiveSeqs": {"max": 9}}}},
        {"spec__rollout": {"maxSurge": 3}},
        {"spec__rollout": {"drainTimeout": "60s"}},
        {"spec__batching": {"maxNumSeqs": 256}},
        {"spec__podDisruptionBudget": {"maxUnavailable": "25%"}},
        {"spec__podTemplate": {"automountServiceAccountToken": False, "hostNetwork": False, "volumes": []}},
        {"spec__podTemplate": {"securityContext": {"runAsNonRoot": True, "runAsAssignedUser": False}}},
        {"metadata__annotations": {"someone": "else"}},
    ],
)
def test_what_rolls_nothing(changes: dict[str, Any]) -> None:
    assert spec_hash(service(**changes)) == spec_hash(service())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=3), json_values, max_size=4))
def test_everything_covers_itself_and_more(found: dict[str, Any]) -> None:
    assert covers(found, found)
    assert covers({**found, "more": 1}, found)


@pytest.mark.parametrize(
    ("live", "wanted", "same"),
    [
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "1000m"}}, True),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1024Mi"}}, True),
        ({"limits": {"memory": "1G"}}, {"limits": {"memory": "1Gi"}}, False),
        ({"env": [{"name": "A"}]}, {"env": [{"name": "A", "value": ""}]}, True),
        ({"env": [{"name": "B"}, {"name": "A"}]}, {"env": [{"name": "A"}]}, True),
        (
            {"ports": [{"port": 8000, "protocol": "TCP"}, {"port": 8000, "protocol": "UDP"}]},
            {"ports": [{"port": 8000, "protocol": "TCP"}]},
            True,
        ),
        ({"ports": [{"port": 8000, "protocol": "UDP"}]}, {"ports": [{"port": 8000}]}, False),
        ({"command": ["a", "b"]}, {"command": ["a"]}, False),
        ({"replicas": 2}, {"replicas": 3}, False),
        ({}, {"replicas": 3}, False),
        ({}, {"nodeSelector": {}}, True),
    ],
)
def test_what_counts_as_the_same(live: Object, wanted: Object, same: bool) -> None:
    assert covers(live, wanted) is same


def test_names_and_paths_of_what_is_mounted_are_reserved() -> None:
    spec = template(spec__model__uri="pvc://weights/model", spec__engine__tls={"secretName": "chat-tls"})["spec"]
    ours = {volume["name"] for volume in spec["volumes"]}
    assert ours == set(OWN_VOLUMES)
    for mount in spec["containers"][0]["volumeMounts"]:
        for path in (mount["mountPath"], f"{mount['mountPath']}/file"):
            if path.startswith(("/tmp/", "/dev/shm/")):
                continue
            wrong = {"volumes": [{"name": "x", "emptyDir": {}}], "volumeMounts": [{"name": "x", "mountPath": path}]}
            with pytest.raises(InvalidSpecError, match="which Flyball mounts"):
                template(spec__podTemplate=wrong)


def speculative_config(**batching: Any) -> Object:
    (argument,) = (one for one in owned(spec__batching=batching) if one.startswith("--speculative-config="))
    found: Object = json.loads(argument.partition("=")[2])
    return found


def test_an_engine_that_speculates_is_started_with_all_depths_that_may_be_chosen_live() -> None:
    config = speculative_config(maxNumSeqs=256, speculative={"method": "ngram", "numSpeculativeTokens": 3})
    schedule = config.pop("num_speculative_tokens_per_batch_size")
    assert config == {"method": "ngram", "num_speculative_tokens": 3}
    assert schedule == [[1, 253, 3], [254, 254, 2], [255, 255, 1], [256, 256, 0]]
    few = speculative_config(maxNumSeqs=3, speculative={"method": "mtp", "numSpeculativeTokens": 2})
    assert few["num_speculative_tokens_per_batch_size"] == [[1, 1, 2], [2, 2, 1], [3, 3, 0]]


@pytest.mark.parametrize(
    "where",
    [
        {"spec__engine__governed": False, "spec__tuning": {"mode": "Disabled"}},
        {"spec__parallelism": {"pipeline": 2}, "spec__accelerator": GPU},
        {"spec__parallelism": {"data": 2}},
    ],
    ids=["without the plugin", "with pipeline stages", "with data parallelism"],
)
def test_an_engine_whose_depth_nobody_moves_has_no_schedule_of_depths(where: dict[str, Any]) -> None:
    ngram = {"method": "ngram", "numSpeculativeTokens": 3}
    command = "\n".join(engine(spec__batching={"speculative": ngram}, **where)["command"]).replace("\\", "")
    assert '--speculative-config={"method":"ngram","num_speculative_tokens":3}' in command


def test_who_drafts_with_another_model_is_told_which() -> None:
    eagle = {"method": "eagle3", "numSpeculativeTokens": 2, "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}
    config = speculative_config(speculative=eagle)
    assert (config["method"], config["model"]) == ("eagle3", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")


def test_without_speculation_the_engine_is_told_nothing_of_it() -> None:
    assert not [one for one in owned() if "speculative" in one]


def kv_transfer_config(**asked: Any) -> Object:
    transfer = {"role": "Producer", "connector": "NixlConnector", **asked}
    (argument,) = (one for one in owned(spec__engine__kvTransfer=transfer) if one.startswith("--kv-transfer-config="))
    found: Object = json.loads(argument.partition("=")[2])
    return found


@pytest.mark.parametrize(
    ("role", "of_vllm"), [("Producer", "kv_producer"), ("Consumer", "kv_consumer"), ("Both", "kv_both")]
)
def test_an_engine_that_transfers_kv_cache_is_told_its_connector_and_role(role: str, of_vllm: str) -> None:
    assert kv_transfer_config(role=role) == {"kv_connector": "NixlConnector", "kv_role": of_vllm}


def test_what_only_a_connector_knows_reaches_it_as_it_was_written() -> None:
    several = {"connectors": [{"kv_connector": "NixlConnector", "kv_role": "kv_both"}], "lmcache.mp.port": 6667}
    config = kv_transfer_config(
        connector="MultiConnector",
        connectorModulePath="my_package.my_connector",
        bufferDevice="cpu",
        loadFailurePolicy="Recompute",
        extraConfig=several,
    )
    assert config == {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_producer",
        "kv_connector_module_path": "my_package.my_connector",
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": several,
    }


def test_without_kv_transfer_the_engine_is_told_nothing_of_it() -> None:
    assert not [one for one in owned() if "kv-transfer" in one]
