"""For any spec and any edit: planning after applying gives nothing to do, and changes nothing of what was read."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_operator.kube.resources import DEPLOYMENTS, INFERENCE_SERVICES
from flyball_operator.reconcile.plan.planner import plan
from support.memory_api import Object, leaves
from support.memory_cluster import MemoryCluster, service

cores = st.sampled_from(["1", "1000m", "250m", 3])
memory = st.sampled_from(["2Gi", "1536Mi", 2**31, "0"])
specs = st.fixed_dictionaries(
    {},
    optional={
        "spec__replicas": st.integers(0, 5),
        "spec__engine__image": st.sampled_from(["engine:1", "engine:2", "engine:bad"]),
        "spec__engine__args": st.lists(st.sampled_from(["--max-model-len=1024", "--seed=1", "--x=<&>é"]), max_size=3),
        "spec__engine__env": st.sampled_from([[], [{"name": "A"}], [{"name": "A", "value": "1"}, {"name": "HOME"}]]),
        "spec__model__uri": st.sampled_from(["hf://a/b", "pvc://claim/a/b", "file:///models/x", "oci://r.test/m:v1"]),
        "spec__accelerator": st.just({"resourceName": "nvidia.com/gpu"}),
        "spec__rollout": st.sampled_from([{}, {"drainTimeout": "10s"}, {"maxSurge": 0}, {"maxUnavailable": 0}]),
        "spec__podTemplate__resources__requests": st.fixed_dictionaries({}, optional={"cpu": cores, "memory": memory}),
        "spec__podTemplate__nodeSelector": st.dictionaries(st.sampled_from(["a", "b"]), st.just("x")),
        "spec__podTemplate__labels": st.dictionaries(st.sampled_from(["team", "tier"]), st.just("x")),
        "spec__podTemplate__volumes": st.sampled_from([[], [{"name": "a", "emptyDir": {"sizeLimit": "1024Mi"}}]]),
        "spec__podTemplate__containers": st.sampled_from(
            [[], [{"name": "side", "image": "side:1", "resources": {"requests": {"cpu": "1000m"}}}]]
        ),
        "spec__podTemplate__resourceClaims": st.sampled_from([[], [{"name": "a", "resourceClaimName": "b"}]]),
        "spec__podDisruptionBudget": st.sampled_from([{}, {"enabled": False}, {"maxUnavailable": "25%"}]),
        "spec__batching__maxNumSeqs": st.integers(1, 512),
    },
)


canaries = st.sampled_from([{}, {"canary": {}}, {"canary": {"weight": 50, "duration": "1m"}}])
judged = st.builds(
    lambda spec, canary: spec | {"spec__rollout": spec.get("spec__rollout", {}) | canary}, specs, canaries
)


@settings(max_examples=20)
@given(st.lists(judged, min_size=1, max_size=3))
def test_any_chain_of_edits_settles_with_nothing_left_to_do(chain: list[dict[str, Any]]) -> None:
    world = MemoryCluster()
    for spec in chain:
        world.apply(service(**spec))
    seen = world.snapshot()
    as_read = copy.deepcopy(seen)
    assert plan(seen).empty
    assert seen == as_read, "planning changes nothing of what was read"
    strategy = world.api.one(DEPLOYMENTS, "chat")["spec"]["strategy"]["rollingUpdate"]
    assert strategy["maxSurge"] + strategy["maxUnavailable"] > 0


@settings(max_examples=12)
@given(st.lists(specs, min_size=2, max_size=4))
def test_the_way_does_not_matter_only_the_last_spec(chain: list[dict[str, Any]]) -> None:
    walked, direct = MemoryCluster(), MemoryCluster()
    chain[-1]["spec__engine__image"] = "engine:last"
    for spec in chain:
        walked.apply(service(**spec))
    direct.apply(service(**chain[-1]))
    assert _deployed(walked, chain[-1]) == _deployed(direct, chain[-1])


def _deployed(world: MemoryCluster, spec: dict[str, Any]) -> Object:
    found = world.api.one(DEPLOYMENTS, "chat")["spec"]
    if "spec__replicas" not in spec:
        # Without the field the size is what ran, which is not the same on both ways.
        found = {field: value for field, value in found.items() if field not in ("replicas", "strategy")}
    assert world.api.one(INFERENCE_SERVICES, "chat")["status"]["revisionOutdated"] is False
    # By leaf: the order of lists that are maps is the server's.
    return {str(path): value for path, value in leaves(found)}
