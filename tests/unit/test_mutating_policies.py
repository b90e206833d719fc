"""Admission policies that change the operator's objects: what the cluster adds stays, what Flyball needs is told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flyball_operator.api import names
from flyball_operator.kube.errors import ClusterError, InvalidObjectError, UnavailableError
from flyball_operator.kube.resources import DEPLOYMENTS, DISRUPTION_BUDGETS, EVENTS, SERVICES, Resource
from flyball_operator.reconcile.plan.admission import is_needed
from flyball_operator.reconcile.plan.fields import Item, Path
from flyball_operator.reconcile.plan.pod import USER_ID
from support.memory_api import MemoryApi, Object, copied
from support.memory_cluster import CONFIG, MemoryCluster, service

RESYNC = CONFIG.resync_seconds
READY = ("True", "Serving")
ACCEPTED = ("True", "Accepted")
GIVEN_UP = ("False", "ChangedByOthers")
ASKED = {"key": "asked", "operator": "Exists"}
ADDED = {"key": "added", "operator": "Exists"}
MIRROR = "mirror.test/"
TEMPLATE = ("spec", "template", "spec")

Policy = Callable[[Object], None]


def pod(found: Object) -> Object:
    spec: Object = found["spec"]["template"]["spec"]
    return spec


def container(found: Object, name: str = "engine") -> Object:
    return next(item for item in pod(found)["containers"] if item["name"] == name)


def tolerates_more(found: Object) -> None:
    """An atomic list: one that was added to is not the one that was asked for."""
    given = pod(found).get("tolerations", [])
    pod(found)["tolerations"] = given if ADDED in given else [*given, ADDED]


def labels_the_deployment(found: Object) -> None:
    found["metadata"]["labels"]["team"] = "platform"


def labels_the_template(found: Object) -> None:
    found["spec"]["template"]["metadata"]["labels"] |= {"team": "platform", "asked": "otherwise"}


def annotates_the_template(found: Object) -> None:
    found["spec"]["template"]["metadata"]["annotations"]["inject"] = "true"


def adds_a_sidecar(found: Object) -> None:
    if len(pod(found)["containers"]) == 1:
        pod(found)["containers"].insert(0, {"name": "proxy", "image": "proxy:1"})
        pod(found)["volumes"].append({"name": "proxy", "emptyDir": {}})


def adds_a_variable(found: Object) -> None:
    if not any(item["name"] == "HTTPS_PROXY" for item in container(found)["env"]):
        container(found)["env"].append({"name": "HTTPS_PROXY", "value": "http://proxy"})


def uses_a_mirror(found: Object) -> None:
    image = container(found)["image"]
    container(found)["image"] = image if image.startswith(MIRROR) else MIRROR + image


def pulls_always(found: Object) -> None:
    container(found)["imagePullPolicy"] = "Always"


def hardens(found: Object) -> None:
    pod(found)["securityContext"]["runAsUser"] = 1000
    container(found)["resources"] = {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}


HARMLESS: tuple[Policy, ...] = (
    tolerates_more,
    labels_the_deployment,
    labels_the_template,
    annotates_the_template,
    adds_a_sidecar,
    adds_a_variable,
    uses_a_mirror,
    pulls_always,
    hardens,
)
#: Those that change what was asked for. What others add is not looked at.
OVERRIDING: tuple[Policy, ...] = (tolerates_more, labels_the_template, uses_a_mirror, pulls_always, hardens)


def asked(**changes: Any) -> Object:
    """A service that asks for something of each that policies change."""
    return service(
        spec__engine__image="engine:good",
        spec__engine__imagePullPolicy="IfNotPresent",
        spec__podTemplate__tolerations=[ASKED],
        spec__podTemplate__labels={"asked": "this"},
        spec__podTemplate__resources={"limits": {"memory": "2Gi"}},
        spec__replicas=2,
        **changes,
    )


def world_under(*policies: Policy, resource: Resource = DEPLOYMENTS) -> MemoryCluster:
    """A service that was made under these policies."""
    world = MemoryCluster()
    world.api.policies = [(resource, policy) for policy in policies]
    world.apply(asked())
    return world


def versions(world: MemoryCluster) -> dict[Any, str]:
    """Resource versions of everything: a write changes one."""
    return {
        key: found["metadata"]["resourceVersion"] for key, found in world.api.objects.items() if key[0] != EVENTS.plural
    }


def look(world: MemoryCluster, *, after: float = 0) -> None:
    """One look of the reconciler, these seconds later."""
    world.now += timedelta(seconds=after)
    world.act()


def expect_quiet(world: MemoryCluster) -> None:
    """Nothing is written at looks and resyncs, nor after a restart."""
    before = versions(world)
    for _ in range(3):
        look(world, after=RESYNC)
        look(world)
    world.restart()
    look(world, after=RESYNC)
    assert versions(world) == before


def edit_image(world: MemoryCluster, image: str) -> None:
    world.change(lambda found: found["spec"]["engine"].update(image=image))


def dry_runs(world: MemoryCluster) -> int:
    return sum(world.api.dry_runs.values())


@pytest.mark.parametrize("policy", HARMLESS)
def test_what_the_cluster_adds_is_its_will(policy: Policy) -> None:
    world = world_under(policy)
    assert world.condition("Accepted") == ACCEPTED
    assert world.condition("Ready") == READY
    expect_quiet(world)
    edit_image(world, "engine:2")
    assert container(world.api.one(DEPLOYMENTS, "chat"))["image"].endswith("engine:2")
    assert world.condition("Ready") == READY
    expect_quiet(world)


@pytest.mark.parametrize("policy", HARMLESS)
def test_a_policy_that_comes_later_waits_for_the_next_edit(policy: Policy) -> None:
    world = world_under()
    world.api.policies = [(DEPLOYMENTS, policy)]
    expect_quiet(world)
    edit_image(world, "engine:2")
    again = copied(world.api.one(DEPLOYMENTS, "chat"))
    policy(again)
    assert again == world.api.one(DEPLOYMENTS, "chat"), "the policy acted"
    assert world.condition("Ready") == READY
    expect_quiet(world)


@pytest.mark.parametrize("policy", OVERRIDING)
def test_what_was_asked_for_is_back_once_the_policy_is_gone(policy: Policy) -> None:
    world = world_under(policy)
    world.api.policies.clear()
    look(world, after=RESYNC)
    world.settle()
    deployment = world.api.one(DEPLOYMENTS, "chat")
    assert pod(deployment)["tolerations"] == [ASKED]
    assert pod(deployment)["securityContext"]["runAsUser"] == USER_ID
    engine = container(deployment)
    asked_for = ("engine:good", "IfNotPresent", "2Gi")
    assert (engine["image"], engine["imagePullPolicy"], engine["resources"]["limits"]["memory"]) == asked_for
    assert world.template()["metadata"]["labels"]["asked"] == "this"
    assert world.condition("Ready") == READY
    expect_quiet(world)


def test_a_policy_that_changes_rolls_no_pods() -> None:
    world = world_under(uses_a_mirror, tolerates_more)

    def uses_another_mirror(found: Object) -> None:
        container(found)["image"] = f"other.test/{container(found)['image'].rpartition('/')[2]}"

    later = (uses_another_mirror, tolerates_more, adds_a_sidecar)
    world.api.policies = [(DEPLOYMENTS, policy) for policy in later]
    expect_quiet(world)
    assert world.image() == f"{MIRROR}engine:good"
    edit_image(world, "engine:2")
    assert container(world.api.one(DEPLOYMENTS, "chat"))["image"] == "other.test/engine:2"
    expect_quiet(world)


def drift(found: Object) -> None:
    """What a person does: `kubectl edit`, which sets another image."""
    container(found)["image"] = "drifted:1"
    path = ("spec", "template", "spec", ("containers", "engine"), "image")
    owned: Object = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"engine"}': {"f:image": {}}}}}}}
    entry = {"manager": "kubectl-edit", "operation": "Update", "fieldsV1": owned, "paths": [path]}
    found["metadata"]["managedFields"].append(entry)


def test_an_edit_by_hand_of_what_a_policy_changes_is_undone() -> None:
    world = world_under(uses_a_mirror)
    world.api.edit(DEPLOYMENTS, "chat", drift)
    look(world)
    assert world.image() == f"{MIRROR}engine:good"
    assert world.condition("Accepted") == ACCEPTED
    expect_quiet(world)


def test_a_bad_image_is_rolled_back_under_policies() -> None:
    world = world_under(uses_a_mirror, tolerates_more, adds_a_sidecar)
    edit_image(world, "engine:bad")
    assert container(world.api.one(DEPLOYMENTS, "chat"))["image"] == f"{MIRROR}engine:good"
    assert world.condition("Progressing") == ("False", "RolledBack")
    assert world.condition("Accepted") == ACCEPTED
    expect_quiet(world)


def knows_no_image_volumes(found: Object) -> None:
    """An API server before Kubernetes 1.35: it drops the volumes, and their mounts."""
    pod(found)["volumes"] = [one for one in pod(found)["volumes"] if "image" not in one]
    mounts = container(found)["volumeMounts"]
    container(found)["volumeMounts"] = [one for one in mounts if one["name"] != "model"]


def test_a_server_that_drops_the_model_s_image_is_told() -> None:
    world = MemoryCluster()
    world.api.policies = [(DEPLOYMENTS, knows_no_image_volumes)]
    world.apply(service(spec__model={"uri": "oci://r.test/qwen:v1"}))
    look(world)
    assert world.condition("Accepted") == GIVEN_UP
    assert "volumes" in world.message("Accepted")


# How often it is asked


def test_without_policies_nothing_is_asked() -> None:
    world = world_under()
    edit_image(world, "engine:2")
    edit_image(world, "engine:bad")
    world.change(lambda found: found["spec"].update(replicas=3))
    world.restart()
    expect_quiet(world)
    assert dry_runs(world) == 0


def test_the_answer_is_remembered() -> None:
    world = world_under(tolerates_more)
    look(world, after=RESYNC)
    before = dry_runs(world)
    for _ in range(10):
        look(world, after=RESYNC / 100)
    assert dry_runs(world) == before
    world.restart()
    look(world)
    look(world)
    assert dry_runs(world) == before + 1
    look(world, after=RESYNC)
    assert dry_runs(world) == before + 2, "nobody tells that a policy has changed"


# What Flyball needs


def strips_the_labels(found: Object) -> None:
    found["metadata"]["labels"].pop(names.LABEL_SERVICE_UID, None)


def strips_the_command(found: Object) -> None:
    container(found)["command"] = ["vllm", "serve"]


def strips_the_variables(found: Object) -> None:
    container(found)["env"] = [item for item in container(found)["env"] if not item["name"].startswith("FLYBALL_")]


def strips_the_plugin(found: Object) -> None:
    pod(found).pop("initContainers", None)


def strips_the_mounts(found: Object) -> None:
    container(found)["volumeMounts"] = container(found)["volumeMounts"][:1]


def strips_the_probe(found: Object) -> None:
    container(found).pop("startupProbe", None)


def rewrites_the_spec_hash(found: Object) -> None:
    found["spec"]["template"]["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH] = "theirs"


def strips_the_annotations(found: Object) -> None:
    found["metadata"]["annotations"] = {}


def scales(found: Object) -> None:
    found["spec"]["replicas"] = 7


def renames_the_engine(found: Object) -> None:
    container(found)["ports"] = [{"name": "web", "containerPort": 80}]


def selects_others(found: Object) -> None:
    found["spec"]["selector"] = {"app": "mirror"}


@pytest.mark.parametrize(
    ("resource", "policy", "field"),
    [
        (DEPLOYMENTS, strips_the_labels, "Deployment chat: metadata.labels[serving.flyball.dev/service-uid]"),
        (DEPLOYMENTS, strips_the_command, "spec.template.spec.containers[engine].command"),
        (DEPLOYMENTS, strips_the_variables, "containers[engine].env[FLYBALL_SERVICE_UID]"),
        (DEPLOYMENTS, strips_the_plugin, "Deployment chat: spec.template.spec.initContainers"),
        (DEPLOYMENTS, strips_the_mounts, "containers[engine].volumeMounts[/dev/shm]"),
        (DEPLOYMENTS, strips_the_probe, "containers[engine].startupProbe"),
        (DEPLOYMENTS, renames_the_engine, "containers[engine].ports[8000]"),
        (DEPLOYMENTS, rewrites_the_spec_hash, "template.metadata.annotations[serving.flyball.dev/spec-hash]"),
        (DEPLOYMENTS, strips_the_annotations, "Deployment chat: metadata.annotations[serving.flyball.dev/asked]"),
        (DEPLOYMENTS, scales, "Deployment chat: spec.replicas"),
        (SERVICES, selects_others, "Service chat: spec.selector[serving.flyball.dev/service]"),
        (DISRUPTION_BUDGETS, selects_others, "PodDisruptionBudget chat: spec.selector.matchLabels"),
    ],
)
def test_a_policy_that_undoes_what_flyball_needs_is_told(resource: Resource, policy: Policy, field: str) -> None:
    world = world_under(policy, resource=resource)
    assert world.condition("Accepted") == GIVEN_UP
    assert world.condition("Ready") == GIVEN_UP
    assert field in world.message("Accepted")
    assert "in each apply, by an admission policy or webhook" in world.message("Accepted")
    expect_quiet(world)
    world.api.policies.clear()
    look(world, after=RESYNC)
    world.settle()
    assert world.condition("Accepted") == ACCEPTED
    assert world.condition("Ready") == READY


def test_only_what_is_needed_is_told() -> None:
    world = world_under(strips_the_command, uses_a_mirror, tolerates_more)
    assert "containers[engine].command" in world.message("Accepted")
    assert "image" not in world.message("Accepted")
    assert "tolerations" not in world.message("Accepted")


def test_another_controller_is_told_without_what_policies_change() -> None:
    world = world_under(uses_a_mirror, tolerates_more)
    path = ("spec", "replicas")

    def scale(found: Object) -> None:
        found["spec"]["replicas"] = 3
        entry = {
            "manager": "scaler",
            "operation": "Update",
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
            "paths": [path],
        }
        found["metadata"]["managedFields"].append(entry)

    for _ in range(3):
        world.api.edit(DEPLOYMENTS, "chat", scale)
        look(world, after=10)
    assert world.condition("Accepted") == GIVEN_UP
    assert "spec.replicas changed after each apply, by field manager scaler." in world.message("Accepted")
    assert "image" not in world.message("Accepted")
    before = versions(world)
    for _ in range(3):
        look(world, after=10)
    assert versions(world) == before


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        (("metadata", "ownerReferences", Item("uid", "u")), True),
        (("metadata", "annotations", names.ANNOTATION_GOOD), True),
        (("metadata", "annotations", "team"), False),
        (("spec", "ingress"), True),
        (("spec", "template"), True),
        ((*TEMPLATE, "containers", Item("name", "engine"), "image"), False),
        ((*TEMPLATE, "containers", Item("name", "logs"), "command"), False),
        ((*TEMPLATE, "initContainers", Item("name", names.CONTAINER_PLUGIN), "image"), False),
        ((*TEMPLATE, "initContainers", Item("name", names.CONTAINER_PLUGIN), "volumeMounts"), True),
        ((*TEMPLATE, "containers", Item("name", "engine"), "env", Item("name", "HF_HOME"), "value"), False),
        ((*TEMPLATE, "containers", Item("name", "engine"), "readinessProbe", "periodSeconds"), True),
        (("spec", "maxUnavailable"), False),
    ],
)
def test_what_is_needed(path: Path, needed: bool) -> None:
    assert is_needed(path) == needed


FROZEN = InvalidObjectError("ValidatingAdmissionPolicy 'frozen' denied request")
AWAY = UnavailableError('failed calling webhook "a.test": context deadline exceeded')


class RefusingApi(MemoryApi):
    """Refuses applies to the Deployment, dry runs of them, or both, while it is told to."""

    refuses: ClusterError | None = None
    refuses_dry_runs: ClusterError | None = None

    async def apply(self, resource: Resource, body: Object, *, subresource: str | None = None) -> Object:
        """Server-side apply, or a refusal."""
        if self.refuses is not None and resource is DEPLOYMENTS:
            raise self.refuses
        return await super().apply(resource, body, subresource=subresource)

    async def dry_apply(self, resource: Resource, body: Object) -> Object:
        """The same as a dry run."""
        if self.refuses_dry_runs is not None and resource is DEPLOYMENTS:
            raise self.refuses_dry_runs
        return await super().dry_apply(resource, body)


def refusing(policy: Policy) -> tuple[RefusingApi, MemoryCluster]:
    """A service that was made under this policy, on an API server that may refuse."""
    api = RefusingApi()
    world = MemoryCluster(api)
    api.policies = [(DEPLOYMENTS, policy)]
    world.apply(asked())
    return api, world


def test_a_policy_that_refuses_the_dry_run_is_named() -> None:
    api, world = refusing(tolerates_more)
    api.refuses = api.refuses_dry_runs = FROZEN
    look(world, after=RESYNC)
    assert world.condition("Accepted") == ("False", "RefusedByServer")
    assert "ValidatingAdmissionPolicy 'frozen' denied request" in world.message("Accepted")
    api.refuses = api.refuses_dry_runs = None
    look(world)
    assert world.condition("Accepted") == ACCEPTED


def test_a_webhook_that_is_away_holds_up_nothing_else() -> None:
    api, world = refusing(tolerates_more)
    deployment = copied(api.one(DEPLOYMENTS, "chat"))
    api.refuses_dry_runs = AWAY
    api.remove(SERVICES, "chat")
    look(world, after=RESYNC)
    assert api.one(SERVICES, "chat"), "it is made again"
    assert api.one(DEPLOYMENTS, "chat") == deployment
    assert world.condition("Accepted") == ACCEPTED
    api.refuses_dry_runs = None
    world.settle()
    assert world.condition("Ready") == READY
    expect_quiet(world)


def test_where_dry_runs_alone_are_refused_what_a_policy_changes_is_told_and_applies_end() -> None:
    api, world = refusing(tolerates_more)
    api.refuses_dry_runs = FROZEN
    look(world, after=RESYNC)
    assert world.condition("Accepted") == GIVEN_UP
    api.refuses_dry_runs = None
    look(world, after=RESYNC)
    look(world, after=RESYNC)
    look(world, after=RESYNC)
    assert world.condition("Accepted") == ACCEPTED


def test_what_a_policy_undoes_holds_up_nothing_else() -> None:
    world = world_under(selects_others, resource=SERVICES)
    edit_image(world, "engine:2")
    assert world.image() == "engine:2"
    world.api.remove(DEPLOYMENTS, "chat")
    world.settle()
    assert world.image() == "engine:2"
    assert world.condition("Accepted") == GIVEN_UP
