"""What a reconciler goes through in an undisturbed run, by name, and how two runs are compared.

The oracles are Sieve's: the state of all objects, and how often each was created and deleted.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any, Final

from flyball_engine.adapters import ADAPTERS_KEY
from flyball_operator.api import names
from flyball_operator.api.v1alpha1 import AnalysisPhase
from flyball_operator.kube.resources import CONFIG_MAPS, DEPLOYMENTS, EVENTS, HTTP_ROUTES, INFERENCE_POOLS, SERVICES
from support.memory_api import Object
from support.memory_cluster import MemoryCluster, service

Scenario = Callable[[MemoryCluster], None]

_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def edit(path: str, value: Any) -> Callable[[Object], None]:
    def change(found: Object) -> None:
        *parents, last = path.split(".")
        node = found
        for step in parents:
            node = node.setdefault(step, {})
        node[last] = value

    return change


def create(world: MemoryCluster) -> None:
    world.apply(service(spec__replicas=2))


def change_everything(world: MemoryCluster) -> None:
    create(world)
    world.change(edit("spec.engine.image", "engine:2"))
    world.change(edit("spec.replicas", 5))
    world.change(edit("spec.podTemplate.nodeSelector", {"zone": "a"}))
    world.change(edit("spec.podTemplate", {}))
    world.change(edit("spec.podDisruptionBudget", {"enabled": False}))


def roll_back_and_recover(world: MemoryCluster) -> None:
    create(world)
    world.change(edit("spec.engine.image", "engine:bad"))
    world.change(edit("spec.tuning", {"mode": "Disabled"}))
    world.change(edit("spec.engine.image", "engine:3"))


def fail_from_the_start(world: MemoryCluster) -> None:
    world.apply(service(spec__engine__image="engine:bad"))
    world.change(edit("spec.engine.image", "engine:2"))


def collect_revisions(world: MemoryCluster) -> None:
    create(world)
    for number in range(9):
        world.change(edit("spec.engine.image", f"engine:{number}"))


def delete_and_make_again(world: MemoryCluster) -> None:
    create(world)
    world.delete()
    create(world)


def orphan_and_make_again(world: MemoryCluster) -> None:
    create(world)
    world.delete(cascade="orphan")
    create(world)
    for kind in ("deployments", "services", "poddisruptionbudgets"):
        world.api.objects.pop((kind, "ns", "chat"))
    world.settle()


def lose_objects(world: MemoryCluster) -> None:
    create(world)
    for resource in (DEPLOYMENTS, SERVICES):
        world.api.remove(resource, "chat")
        world.settle()


def wait_for_a_shortage(world: MemoryCluster) -> None:
    create(world)
    world.held = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}
    world.change(edit("spec.engine.image", "engine:2"))
    world.held = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
    world.settle()
    world.held = None
    world.settle()


def replace_on_the_last_device(world: MemoryCluster) -> None:
    world.one_device = True
    world.apply(service(spec__accelerator={"resourceName": "nvidia.com/gpu"}))
    world.change(edit("spec.engine.image", "engine:2"))
    assert world.condition("Ready") == ("True", "Serving")


def adopt(world: MemoryCluster) -> None:
    create(world)
    world.change(edit("metadata.annotations", {names.ANNOTATION_ADOPT: "now"}))


def scale_to_none_and_back(world: MemoryCluster) -> None:
    create(world)
    world.change(edit("spec.replicas", 0))
    world.change(edit("spec.replicas", 3))


def stop_governing_and_go_on(world: MemoryCluster) -> None:
    create(world)
    world.change(edit("spec.engine.governed", False))
    world.change(edit("spec.engine.governed", True))


def lose_a_template_twice(world: MemoryCluster) -> None:
    create(world)
    world.change(edit("spec.engine.image", "engine:bad"))
    world.change(edit("spec.engine.image", "engine:worse-bad"))
    world.change(edit("spec.rollout", {"maxSurge": 2}))


def serve_under_a_policy(world: MemoryCluster) -> None:
    def tolerate(found: Object) -> None:
        found["spec"]["template"]["spec"]["tolerations"] = [{"key": "added"}]

    world.api.policies = [(DEPLOYMENTS, tolerate)]
    world.apply(service(spec__podTemplate__tolerations=[{"key": "asked"}]))
    world.change(edit("spec.engine.image", "engine:2"))
    assert world.condition("Accepted") == ("True", "Accepted")


def download_to_claims_that_are_made(world: MemoryCluster) -> None:
    def cache(claim: Object) -> Object:
        return {"uri": "hf://org/m", "cache": {"claim": claim}}

    world.apply(service(spec__model=cache({"size": "1Gi", "deletion": "Delete"})))
    world.change(edit("spec.model", cache({"size": "2Gi"})))
    world.delete()
    world.apply(service(spec__model=cache({"size": "2Gi", "deletion": "Delete"})))
    assert world.condition("ModelReady") == ("True", "Downloaded")


def name_gateways_and_no_more(world: MemoryCluster) -> None:
    gateway = {"parentRefs": [{"name": "edge"}]}
    world.apply(service(spec__gateway={**gateway, "endpointPicker": {"name": "picker"}}))
    world.change(edit("spec.gateway", gateway))
    assert len(world.api.find(HTTP_ROUTES)) == 1
    world.change(lambda found: found["spec"].pop("gateway"))
    assert not world.api.find(HTTP_ROUTES)
    assert not world.api.find(INFERENCE_POOLS)


def change_adapters(world: MemoryCluster) -> None:
    world.apply(service(spec__adapters=[{"name": "sql", "uri": "file:///adapters/sql"}]))
    world.change(edit("spec.adapters", [{"name": "law", "uri": "file:///adapters/law"}]))
    assert "law" in world.api.one(CONFIG_MAPS, f"chat{names.ADAPTERS_SUFFIX}")["data"][ADAPTERS_KEY]
    world.change(lambda found: found["spec"].pop("adapters"))


def judged(world: MemoryCluster, phase: AnalysisPhase) -> None:
    """A revision is judged, and the tuner says this of it."""

    def say(found: Object) -> None:
        canary = found["status"]["canary"]
        about = {field: canary[field] for field in ("revision", "startTime")}
        found["status"]["analysis"] = {**about, "phase": phase.value, "message": "said"}

    canary = {"canary": {"duration": "10m"}}
    world.apply(service(spec__replicas=10, spec__rollout=canary, spec__engine__image="engine:1"))
    world.change(edit("spec.engine.image", "engine:2"))
    world.change(say)


def promote(world: MemoryCluster) -> None:
    judged(world, AnalysisPhase.SUCCESSFUL)
    assert (world.condition("Ready"), world.image()) == (("True", "Serving"), "engine:2")


def abort(world: MemoryCluster) -> None:
    judged(world, AnalysisPhase.FAILED)
    assert (world.condition("Progressing"), world.image()) == (("False", "RolledBack"), "engine:1")


SCENARIOS = (
    create,
    change_everything,
    roll_back_and_recover,
    fail_from_the_start,
    collect_revisions,
    delete_and_make_again,
    orphan_and_make_again,
    lose_objects,
    wait_for_a_shortage,
    replace_on_the_last_device,
    adopt,
    scale_to_none_and_back,
    stop_governing_and_go_on,
    lose_a_template_twice,
    serve_under_a_policy,
    download_to_claims_that_are_made,
    name_gateways_and_no_more,
    change_adapters,
    promote,
    abort,
)


def end_state(world: MemoryCluster) -> dict[Any, Object]:
    """All objects but events, without what no two runs have in common."""
    state = {}
    for key, found in world.api.objects.items():
        if key[0] != EVENTS.plural:
            kept = copy.deepcopy(found)
            for field in ("resourceVersion", "managedFields", "generation"):
                kept["metadata"].pop(field, None)
            state[key] = kept
    return state


def without_times(found: Any) -> Any:
    """The same without times, as a later look writes later, and without a Deployment's hash of what has one in it."""
    if isinstance(found, dict):
        return {key: without_times(value) for key, value in found.items() if key != names.ANNOTATION_INTENT}
    if isinstance(found, list):
        return [without_times(value) for value in found]
    return _MOMENT.sub("a moment", found) if isinstance(found, str) else found


def counts(world: MemoryCluster) -> dict[tuple[str, str], int]:
    return {what: count for what, count in world.api.counts.items() if not what[1].startswith("events/")}
