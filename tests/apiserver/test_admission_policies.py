"""The chart's admission policies on the real API server: what the operator may write, and what services may use.

Denials are of dry runs, which pass all admission. A policy acts some time after it is made.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flyball_lab.harness.manifests import good
from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from flyball_operator.api.objects import Kind
from flyball_operator.kube.resources import DEPLOYMENTS, JOBS, SERVICES, VOLUME_CLAIMS
from flyball_operator.reconcile.plan.owned_objects import API_VERSIONS
from support import helm, others_crds
from support.cluster import KubectlError, Object, apply, kubectl, namespace
from support.helm import CHART
from support.memory_cluster import MemoryCluster, service
from support.wrong_services import ALLOWED, WRONG_SERVICES

RELEASE = "flyball-admission-test"
USER = "flyball-test-user"
VALUES: Object = {
    "image": {"registry": "localhost", "repository": "no/such-image", "pullPolicy": "Never"},
    "crds": {"install": False},
    "adapters": {"enabled": True},
    "admissionPolicies": {
        "operator": True,
        "inferenceServices": {
            "enabled": True,
            "images": ["registry.example.com/vllm/"],
            "secrets": ["hf"],
            "claims": ["weights"],
            "serviceAccounts": ["engines"],
            "csiDrivers": [],
            "priorityClasses": ["serving"],
        },
    },
}


@pytest.fixture(scope="module")
def installed(crd: object) -> Iterator[str]:
    """The chart with its policies, in a namespace where a user may write InferenceServices."""
    with namespace("flyball-admission") as name:
        helm.run("install", RELEASE, str(CHART), "-n", name, values=VALUES)
        kubectl("create", "role", USER, "--verb=create", "--resource=inferenceservices.serving.flyball.dev", "-n", name)
        kubectl("create", "rolebinding", USER, f"--role={USER}", f"--user={USER}", "-n", name)
        yield name
        helm.run("uninstall", RELEASE, "-n", name, "--ignore-not-found")


def create(body: Object, place: str, *who: str) -> str:
    """What a dry run of creating it answers, or why it is refused."""
    placed = {**body, "metadata": {**body["metadata"], "namespace": place}}
    try:
        return kubectl("create", "--dry-run=server", *who, "-f", "-", stdin=json.dumps(placed))
    except KubectlError as error:
        return str(error)


def expect(answer: Callable[[], str], words: str) -> None:
    """A policy, and a role, act soon after they are made."""
    eventually(lambda: words in answer(), expecting=f"{words!r}; the answer is {answer()!r}", within=240)


@pytest.fixture(scope="module")
def owned() -> dict[str, Object]:
    """A Deployment, a Service and a Job as the operator makes them."""
    world = MemoryCluster()
    world.apply(service(spec__model={"uri": "hf://org/m", "cache": {"claimName": "models"}}))
    found = {}
    for kind, resource in (("Deployment", DEPLOYMENTS), ("Service", SERVICES), ("Job", JOBS)):
        (body,) = copy.deepcopy(world.api.find(resource))
        metadata = {field: body["metadata"][field] for field in ("name", "labels", "annotations", "ownerReferences")}
        found[kind] = {"apiVersion": body["apiVersion"], "kind": kind, "metadata": metadata, "spec": body["spec"]}
    return found


def changed(body: Object, change: Callable[[Object], Any]) -> Object:
    made = copy.deepcopy(body)
    change(made)
    return made


def test_the_operator_may_write_objects_of_services_alone(installed: str, owned: dict[str, Object]) -> None:
    account = f"--as=system:serviceaccount:{installed}:{RELEASE}"
    for body in owned.values():
        theirs = changed(body, lambda found: found["metadata"].pop("ownerReferences"))
        expect(lambda theirs=theirs: create(theirs, installed, account), "that an InferenceService controls")  # type: ignore[misc]
        # Others, not none: a Job without labels gets those of its pods.
        bare = changed(body, lambda found: found["metadata"].update(labels={"team": "a"}))
        expect(lambda bare=bare: create(bare, installed, account), "app.kubernetes.io/managed-by: flyball")  # type: ignore[misc]
        assert "created" in create(body, installed, account)
        assert "created" in create(theirs, installed), "the policy is the operator's alone"


@pytest.fixture(scope="module")
def volume_claim() -> Object:
    """A claim as the operator makes it: one that is kept, without an owner."""
    world = MemoryCluster()
    world.apply(service(spec__model={"uri": "hf://org/m", "cache": {"claim": {"size": "1Gi"}}}))
    (body,) = world.api.find(VOLUME_CLAIMS)
    metadata = {field: body["metadata"][field] for field in ("name", "labels")}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": body["spec"]}


WRONG_CLAIMS: list[tuple[Callable[[Object], Any], str]] = [
    (lambda found: found["metadata"].update(name="data"), "labelled and named for the model of a service"),
    (lambda found: found["metadata"].update(labels={"team": "a"}), "labelled and named for the model of a service"),
    (lambda found: found["spec"].update(volumeName="of-others"), "no volume, selector or source"),
    (lambda found: found["spec"].update(selector={"matchLabels": {"a": "b"}}), "no volume, selector or source"),
]


def test_the_operator_may_write_claims_for_models_alone(installed: str, volume_claim: Object) -> None:
    account = f"--as=system:serviceaccount:{installed}:{RELEASE}"
    for change, says in WRONG_CLAIMS:
        wrong = changed(volume_claim, change)
        expect(lambda wrong=wrong: create(wrong, installed, account), says)  # type: ignore[misc]
        assert "created" in create(wrong, installed), "the policy is the operator's alone"
    assert "created" in create(volume_claim, installed, account)
    theirs = changed(volume_claim, lambda found: found["metadata"].update(labels={"team": "a"}))
    kubectl("create", "-n", installed, "-f", "-", stdin=json.dumps(theirs))
    try:
        taken = json.dumps({"metadata": {"labels": volume_claim["metadata"]["labels"]}})
        with pytest.raises(KubectlError, match="that it made for the model of a service"):
            kubectl(
                "patch", "pvc", "chat-model", "-n", installed, "--type=merge", "-p", taken, "--dry-run=server", account
            )
    finally:
        kubectl("delete", "pvc", "chat-model", "-n", installed)
    kubectl("create", "-n", installed, "-f", "-", stdin=json.dumps(volume_claim))
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u"}
    later: list[tuple[Object, str]] = [
        ({"spec": {"volumeName": "of-others"}}, "may name no volume"),
        ({"metadata": {"ownerReferences": [owner]}}, "owned by its InferenceService alone"),
    ]
    try:
        for edit, says in later:
            patch = json.dumps(edit)
            with pytest.raises(KubectlError, match=says):
                kubectl(
                    "patch", "pvc", "chat-model", "-n", installed, "--type=merge", "-p", patch, "--dry-run=server",
                    account,
                )  # fmt: skip
    finally:
        kubectl("delete", "pvc", "chat-model", "-n", installed)


def config_map(name: str, **labels: str) -> Object:
    metadata = {"name": name, "labels": labels or {names.LABEL_MANAGED_BY: names.MANAGED_BY}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {names.PUBLIC_KEYS_KEY: "x"}}


def adapters_of(service: Object, name: str) -> Object:
    """A ConfigMap of adapters that a service controls."""
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": service["metadata"]["name"],
        "uid": service["metadata"]["uid"],
        "controller": True,
    }
    found = config_map(name, **{names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_SERVICE: owner["name"]})
    return {**found, "metadata": {**found["metadata"], "ownerReferences": [owner]}}


def test_the_operator_may_write_the_adapters_of_a_service_and_nobody_else_s(installed: str) -> None:
    account = f"--as=system:serviceaccount:{installed}:{RELEASE}"
    owner = service(metadata__uid="0a1b2c3d-0000-4000-8000-000000000000")
    ours, another = adapters_of(owner, "chat-adapters"), adapters_of(owner, "another")
    expect(lambda: create(another, installed, account), "the ConfigMap of an InferenceService's adapters")
    assert "created" in create(ours, installed, account)
    unowned = {**ours, "metadata": {**ours["metadata"], "ownerReferences": []}}
    assert "the ConfigMap of an InferenceService's adapters" in create(unowned, installed, account)
    kubectl("create", "-n", installed, "-f", "-", stdin=json.dumps(unowned))
    try:
        with pytest.raises(KubectlError, match="only a ConfigMap that an InferenceService controls"):
            kubectl(
                "patch", "configmap", "chat-adapters", "-n", installed, "--type=merge", "-p", json.dumps(ours),
                "--dry-run=server", account,
            )  # fmt: skip
    finally:
        kubectl("delete", "configmap", "chat-adapters", "-n", installed)


def test_the_operator_may_write_the_config_map_of_public_keys_alone(installed: str) -> None:
    account = f"--as=system:serviceaccount:{installed}:{RELEASE}"
    expect(lambda: create(config_map("another"), installed, account), "only the ConfigMap flyball-public-keys")
    assert "created" in create(config_map("another"), installed), "the policy is the operator's alone"
    assert "created" in create(config_map(names.PUBLIC_KEYS), installed, account)
    theirs = json.dumps(config_map(names.PUBLIC_KEYS, team="a"))
    kubectl("create", "-n", installed, "-f", "-", stdin=theirs)
    try:
        change = json.dumps({"data": {names.PUBLIC_KEYS_KEY: "y"}})
        with pytest.raises(KubectlError, match="only a ConfigMap with the label"):
            kubectl(
                "patch", "configmap", names.PUBLIC_KEYS, "-n", installed, "--type=merge", "-p", change,
                "--dry-run=server", account,
            )  # fmt: skip
    finally:
        kubectl("delete", "configmap", names.PUBLIC_KEYS, "-n", installed)


def pod(found: Object) -> Object:
    spec: Object = found["spec"]["template"]["spec"]
    return spec


WRONG_PODS: list[tuple[Callable[[Object], Any], str]] = [
    (lambda found: pod(found).update(hostNetwork=True), "hostNetwork, hostPID or hostIPC"),
    (lambda found: pod(found)["volumes"].append({"name": "x", "hostPath": {"path": "/"}}), "hostPath volumes"),
    (lambda found: pod(found).pop("securityContext"), "run as root"),
    (lambda found: pod(found)["containers"][0].pop("securityContext"), "must drop ALL capabilities"),
    (lambda found: pod(found)["initContainers"][0].pop("securityContext"), "must drop ALL capabilities"),
]


def test_the_operator_may_run_unprivileged_pods_alone(installed: str, owned: dict[str, Object]) -> None:
    account = f"--as=system:serviceaccount:{installed}:{RELEASE}"
    for kind in ("Deployment", "Job"):
        for change, says in WRONG_PODS:
            wrong = changed(owned[kind], change)
            expect(lambda wrong=wrong: create(wrong, installed, account), says)  # type: ignore[misc]


@pytest.fixture
def groups() -> Iterator[None]:
    """The cluster has LeaderWorkerSets, by their CRD alone."""
    others_crds.install(others_crds.of_groups())
    yield
    others_crds.uninstall()


@pytest.mark.usefixtures("groups")
def test_groups_of_pods_are_as_unprivileged_as_others(installed: str, owned: dict[str, Object]) -> None:
    account = f"--as=system:serviceaccount:{installed}:{RELEASE}"
    template = owned["Deployment"]["spec"]["template"]
    body: Object = {
        "apiVersion": API_VERSIONS[Kind.LEADER_WORKER_SET],
        "kind": Kind.LEADER_WORKER_SET.value,
        "metadata": owned["Deployment"]["metadata"],
        "spec": {"leaderWorkerTemplate": {"size": 2, "workerTemplate": template}},
    }

    def led(found: Object) -> None:
        found["spec"]["leaderWorkerTemplate"]["leaderTemplate"] = copy.deepcopy(template)

    expect(lambda: create(body, installed, account), "created")
    expect(lambda: create(changed(body, led), installed, account), "created")
    for of in ("leaderTemplate", "workerTemplate"):
        for change, says in WRONG_PODS:

            def wrong(found: Object, of: str = of, change: Callable[[Object], None] = change) -> None:
                led(found)
                # As a Deployment has it.
                change({"spec": {"template": found["spec"]["leaderWorkerTemplate"][of]}})

            expect(lambda wrong=wrong: create(changed(body, wrong), installed, account), says)  # type: ignore[misc]


@pytest.fixture
def theirs(installed: str) -> Iterator[str]:
    """The name of a service there. A user may write its status, and the operator read it, as kubectl does before."""
    rights = ("--verb=get,update,patch", "--resource=inferenceservices.serving.flyball.dev/status")
    who = (f"--user={USER}", f"--serviceaccount={installed}:{RELEASE}")
    kubectl("create", "role", f"{USER}-status", *rights, "-n", installed)
    kubectl("create", "rolebinding", f"{USER}-status", f"--role={USER}-status", *who, "-n", installed)
    apply(good(spec__engine__image=ALLOWED), namespace=installed)
    yield "chat"
    kubectl("delete", "inferenceservices.serving.flyball.dev", "chat", "-n", installed)


def test_only_the_operator_may_write_a_status(installed: str, theirs: str) -> None:
    def write(*who: str) -> str:
        kind, epoch = "inferenceservices.serving.flyball.dev", json.dumps({"status": {"epoch": 7}})
        try:
            return kubectl(
                "patch", kind, theirs, "-n", installed, "--subresource=status", "--type=merge", "-p", epoch,
                "--dry-run=server", *who,
            )  # fmt: skip
        except KubectlError as error:
            return str(error)

    expect(lambda: write(f"--as={USER}"), "only Flyball's operator may write the status")
    assert "patched" in write(f"--as=system:serviceaccount:{installed}:{RELEASE}")
    assert "patched" in write("--as=admin", "--as-group=system:masters")


def test_services_may_use_what_is_listed_alone(installed: str) -> None:
    user = f"--as={USER}"
    for wrong, says in WRONG_SERVICES:
        body = good(**({"spec__engine__image": ALLOWED} | wrong))
        expect(lambda body=body: create(body, installed, user), says)  # type: ignore[misc]
        # Of an exempt group, and named, because the local administrator need not be of it.
        exempt = ("--as=admin", "--as-group=system:masters")
        assert "created" in create(body, installed, *exempt)
    made = good(spec__engine__image=ALLOWED, spec__model={"uri": "hf://org/m", "cache": {"claim": {"size": "1Gi"}}})
    assert "created" in create(made, installed, user)
    in_an_image = good(spec__engine__image=ALLOWED, spec__model__uri="oci://registry.example.com/vllm/qwen:v1")
    assert "created" in create(in_an_image, installed, user)
    allowed = good(
        spec__engine__image=ALLOWED,
        spec__model__uri="pvc://weights/model",
        spec__engine__tls={"secretName": "hf"},
        spec__engine__env=[{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "t"}}}],
        spec__podTemplate={
            "imagePullSecrets": [{"name": "hf"}],
            "priorityClassName": "serving",
            "serviceAccountName": "engines",
            "containers": [{"name": "side", "image": ALLOWED}],
            "volumes": [
                {"name": "x", "secret": {"secretName": "hf"}},
                {"name": "y", "persistentVolumeClaim": {"claimName": "weights"}},
            ],
        },
    )
    assert "created" in create(allowed, installed, user)
