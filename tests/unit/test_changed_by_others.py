"""An object that others change after each apply: what is told and how long, and that it holds up nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

from flyball_operator.api import names
from flyball_operator.kube.resources import DEPLOYMENTS, DISRUPTION_BUDGETS, INFERENCE_SERVICES, SERVICES, Resource
from support.memory_api import MemoryApi, Object
from support.memory_cluster import CONFIG, MemoryCluster, service

RESYNC = CONFIG.resync_seconds
GIVEN_UP = ("False", "ChangedByOthers")
ACCEPTED = ("True", "Accepted")
LONG = replace(CONFIG, resync_seconds=1e6)


class MeddledApi(MemoryApi):
    """Has a controller that changes objects of some kinds after each apply, and counts the applies."""

    def __init__(self) -> None:
        super().__init__()
        self.meddled: list[Resource] = []
        self.applies: Counter[str] = Counter()

    async def apply(self, resource: Resource, body: Object, *, subresource: str | None = None) -> Object:
        """Server-side apply, and what the controller does at once."""
        answer = await super().apply(resource, body, subresource=subresource)
        if not subresource:
            self.applies[resource.plural] += 1
            if resource in self.meddled:
                self.meddle(resource)
        return answer

    def meddle(self, resource: Resource) -> None:
        """Change the object as the controller does, from now on."""
        self.meddled = [*self.meddled, resource] if resource not in self.meddled else self.meddled
        self.edit(resource, "chat", _elsewhere)


def _elsewhere(found: Object) -> None:
    if "template" in found["spec"]:
        found["spec"]["template"]["spec"]["priorityClassName"] = "low"
    else:
        found["spec"]["selector"] = {**found["spec"]["selector"], names.LABEL_SERVICE: "mirror"}


def world_with(*meddled: Resource) -> tuple[MemoryCluster, MeddledApi]:
    """A service that serves, of whose objects others change these."""
    api = MeddledApi()
    world = MemoryCluster(api, LONG)
    world.apply(service(spec__engine__image="engine:good", spec__podTemplate__priorityClassName="high"))
    for resource in meddled:
        api.meddle(resource)
    world.settle()
    assert told(world) == "ChangedByOthers"
    return world, api


def told(world: MemoryCluster) -> str:
    """Why the service is not accepted, which Ready says too."""
    accepted = world.condition("Accepted")
    assert accepted[0] == "False"
    assert world.condition("Ready") == accepted
    return accepted[1]


def edit_image(world: MemoryCluster, image: str) -> None:
    world.change(lambda found: found["spec"]["engine"].update(image=image))


def test_a_bad_image_is_rolled_back_although_others_change_the_service() -> None:
    world, _ = world_with(SERVICES)
    edit_image(world, "engine:bad")
    assert world.image() == "engine:good"
    assert world.condition("Progressing") == ("False", "RolledBack")
    assert "ImagePullFailed" in world.message("Progressing")
    assert world.condition("Available") == ("True", "EarlierRevisionServes")
    assert told(world) == "ChangedByOthers"
    assert "Service chat: spec.selector" in world.message("Accepted")


def test_a_bad_image_is_rolled_back_although_others_change_the_deployment_itself() -> None:
    world, api = world_with(DEPLOYMENTS)
    edit_image(world, "engine:bad")
    assert world.image() == "engine:good"
    assert world.condition("Progressing") == ("False", "RolledBack")
    assert told(world) == "ChangedByOthers"
    before = api.applies.copy()
    world.settle()
    assert api.applies == before


def test_what_is_deleted_is_made_again_although_others_change_the_service() -> None:
    world, api = world_with(SERVICES)
    before = api.applies[SERVICES.plural]
    api.remove(DEPLOYMENTS, "chat")
    api.remove(DISRUPTION_BUDGETS, "chat")
    world.settle()
    assert world.image() == "engine:good"
    assert api.one(DISRUPTION_BUDGETS, "chat")
    assert world.condition("Progressing") == ("True", "RolloutComplete")
    assert told(world) == "ChangedByOthers"
    assert api.applies[SERVICES.plural] == before, "nothing more is applied to what others change"


def test_each_object_has_attempts_of_its_own() -> None:
    world, api = world_with(SERVICES)
    before = api.applies.copy()
    api.meddle(DEPLOYMENTS)
    world.settle()
    # That its pods are ready was noted by an apply of the same: it may count as the first of the two.
    assert 1 <= api.applies[DEPLOYMENTS.plural] - before[DEPLOYMENTS.plural] <= 2
    assert api.applies[SERVICES.plural] == before[SERVICES.plural]
    for named in ("Service chat: spec.selector", "Deployment chat: spec.template.spec.priorityClassName"):
        assert named in world.message("Accepted")


def scale(found: Object) -> None:
    """What another controller does: it wants three replicas."""
    found["spec"]["replicas"] = 3
    owned: Object = {"f:spec": {"f:replicas": {}}}
    found["metadata"]["managedFields"].append(
        {"manager": "scaler", "operation": "Update", "fieldsV1": owned, "paths": []}
    )


def look(world: MemoryCluster, *, after: float = 0) -> tuple[str, str]:
    """One look of the reconciler, these seconds later, and what is told of Accepted."""
    world.now += timedelta(seconds=after)
    world.act()
    return world.condition("Accepted")


def world_with_a_scaler() -> tuple[MemoryCluster, MeddledApi]:
    """A service whose replicas another controller changes after each apply, which is told."""
    api = MeddledApi()
    world = MemoryCluster(api)
    world.apply(service(spec__replicas=1))
    for _ in range(3):
        api.edit(DEPLOYMENTS, "chat", scale)
        seen = look(world, after=10)
    assert seen == GIVEN_UP
    return world, api


def test_what_another_controller_changes_back_each_time_is_told_without_a_pause() -> None:
    world, api = world_with_a_scaler()
    told = world.api.one(INFERENCE_SERVICES, "chat")["status"]["conditions"]
    for _ in range(3):
        before = api.applies[DEPLOYMENTS.plural]
        assert look(world, after=RESYNC) == GIVEN_UP
        assert api.one(DEPLOYMENTS, "chat")["spec"]["replicas"] == 1, "it is tried again"
        assert look(world, after=15) == GIVEN_UP
        api.edit(DEPLOYMENTS, "chat", scale)
        assert look(world, after=15) == GIVEN_UP
        assert api.applies[DEPLOYMENTS.plural] == before + 1
    assert world.api.one(INFERENCE_SERVICES, "chat")["status"]["conditions"] == told


def test_what_another_controller_left_alone_for_a_resync_is_accepted_again() -> None:
    world, _ = world_with_a_scaler()
    assert look(world, after=RESYNC) == GIVEN_UP
    assert look(world, after=RESYNC - 1) == GIVEN_UP
    assert look(world, after=1) == ACCEPTED


def test_asking_for_what_another_controller_wants_is_accepted_at_once() -> None:
    world, api = world_with_a_scaler()
    look(world, after=RESYNC)
    api.edit(DEPLOYMENTS, "chat", scale)
    api.edit(INFERENCE_SERVICES, "chat", lambda found: found["spec"].update(replicas=3))
    assert look(world) == ACCEPTED
