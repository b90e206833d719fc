"""Random walks over specs: a service ends as one that was made with its last spec, whatever it was before.

The oracle is Acto's (SOSP 2023): what a fresh service with that spec has. Then the walk goes back to its first spec.
"""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, given, settings

from flyball_operator.api import names
from flyball_operator.api.objects import Kind
from flyball_operator.kube.resources import DEPLOYMENTS, INFERENCE_SERVICES, OWNED
from support.memory_api import Object, Path, leaves
from support.memory_cluster import MemoryCluster, service
from support.specs import WALKS, walks

#: Metadata that no two objects have in common, and annotations that tell of the way: what was asked for when.
_OF_THE_WAY = frozenset(
    {
        "uid",
        "managedFields",
        "resourceVersion",
        "generation",
        names.ANNOTATION_ASKED,
        names.ANNOTATION_GOOD,
        names.ANNOTATION_INTENT,
    }
)


# Shrinking takes minutes, and the walk that fails says enough.
@settings(max_examples=WALKS, phases=[Phase.explicit, Phase.generate])
@given(walks(most=15))
def test_a_walk_ends_where_a_fresh_service_begins_and_so_does_the_way_back(walk: list[Object]) -> None:
    walked, fresh, first = MemoryCluster(), MemoryCluster(), MemoryCluster()
    for spec in walk:
        walked.apply(service() | {"spec": spec})
    fresh.apply(service() | {"spec": walk[-1]})
    assert left(walked) == left(fresh)
    walked.apply(service() | {"spec": walk[0]})
    first.apply(service() | {"spec": walk[0]})
    assert left(walked) == left(first)


def left(world: MemoryCluster) -> dict[str, Any]:
    """Each leaf of what the service has and says, but for what tells of the way."""
    found: dict[str, Any] = {}
    for kind, resource in OWNED.items():
        for item in world.api.find(resource):
            if kind is Kind.JOB:
                # What is done stays as it was done, whatever image is asked for later.
                found[f"Job {item['metadata']['name']}"] = item["status"]["conditions"]
            elif kind in (Kind.VOLUME_CLAIM, Kind.CONFIG_MAP) and not _is_used(world, item):
                # One that an earlier spec asked for stays.
                continue
            elif kind is not Kind.REVISION or _is_asked_for(world, item):
                body = {field: value for field, value in item.items() if field not in ("status", "revision")}
                found |= {f"{kind.value} {path}": value for path, value in leaves(body) if not _of_the_way(path)}
    status = world.api.one(INFERENCE_SERVICES, "chat")["status"]
    found |= {f"condition {one['type']}": (one["status"], one["reason"]) for one in status["conditions"]}
    return found


def _is_asked_for(world: MemoryCluster, revision: Object) -> bool:
    asked: str = world.api.one(DEPLOYMENTS, "chat")["metadata"]["annotations"][names.ANNOTATION_ASKED]
    annotations: Object = revision["metadata"]["annotations"]
    return bool(annotations[names.ANNOTATION_SPEC_HASH] == asked.partition(" ")[0])


def _is_used(world: MemoryCluster, found: Object) -> bool:
    """Whether pods mount a claim, or the ConfigMap of the list of adapters."""
    volumes = world.template()["spec"]["volumes"]
    used = {one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one}
    used |= {one["configMap"]["name"] for one in volumes if "configMap" in one}
    return found["metadata"]["name"] in used


def _of_the_way(path: Path) -> bool:
    return bool(_OF_THE_WAY.intersection(step for step in path if isinstance(step, str)))
