"""Wrong services over several nodes, part of `wrong_manifests`."""

from __future__ import annotations

from typing import Any, Final

from flyball_lab.harness.manifests import Wrong
from support.wrong_pods import GPU

_NODES = "spec.parallelism.nodes"
_TWO: Final[dict[str, Any]] = {"spec.parallelism.data": 2, _NODES: 2}
_PARALLELISM, _ACCELERATOR = "spec.parallelism", "spec.accelerator"
#: One engine core over two nodes.
_SPREAD: Final[dict[str, Any]] = {
    _PARALLELISM: {"tensor": 2, "nodes": 2},
    _ACCELERATOR: {"resourceName": GPU},
}
_CLAIM = "spec.model.cache.claim"
_ARGS = "spec.engine.args"


def _beside(id: str, wrong: dict[str, Any], path: str, says: str, right: dict[str, Any] | None = None) -> Wrong:  # noqa: A002
    """What has no place beside several nodes, and has on one; or has another place there, which is `right`."""
    accepted = wrong if right is None else _TWO | right
    says = f"cannot be used where spec.parallelism.nodes is above 1: {says}"
    return Wrong(f"{id} over nodes", _TWO | wrong, accepted, path, says)


WRONG_NODES = (
    Wrong("no node", {_NODES: 0}, {_NODES: 1}, _NODES, "greater than or equal to 1"),
    Wrong(
        "engine cores that nodes cannot share evenly",
        {"spec.parallelism.data": 3, _NODES: 2},
        {"spec.parallelism.data": 4, _NODES: 2},
        _NODES,
        "must divide data",
    ),
    Wrong(
        "an engine core whose devices nodes cannot share evenly",
        {_PARALLELISM: {"tensor": 2, "pipeline": 3, "nodes": 4}, _ACCELERATOR: {"resourceName": GPU}},
        {_PARALLELISM: {"tensor": 2, "pipeline": 3, "nodes": 6}, _ACCELERATOR: {"resourceName": GPU}},
        _NODES,
        "where data is 1, must divide tensor * pipeline",
    ),
    Wrong(
        "an engine core over nodes on the CPU",
        {_NODES: 2},
        _TWO,
        _NODES,
        "where data is 1, must divide tensor * pipeline",
    ),
    Wrong(
        "adapters where an engine core spans nodes",
        _SPREAD | {"spec.adapters": []},
        _TWO | {"spec.adapters": []},
        "spec.adapters",
        "cannot be used where one engine core spans nodes",
    ),
    *(
        Wrong(
            f"{' '.join(args)} where an engine core spans nodes",
            _SPREAD | {_ARGS: args},
            _SPREAD | {_ARGS: ["--distributed-executor-backend=mp"]},
            _ARGS,
            "vLLM spans nodes by its executor mp alone; accepted: --distributed-executor-backend=mp, as one item",
        )
        for args in (["--distributed-executor-backend=ray"], ["--distributed_executor_backend", "ray"])
    ),
    _beside(
        "plain vLLM",
        {"spec.engine.governed": False, "spec.tuning.mode": "Disabled"},
        "spec.engine.governed",
        "the plugin's launcher tells each pod its part",
    ),
    _beside("scaling", {"spec.scaling": {"maxReplicas": 4}}, "spec.scaling", "it counts pods, not groups of pods"),
    _beside("a canary", {"spec.rollout.canary": {}}, "spec.rollout.canary", "it holds back pods, not groups of pods"),
    _beside(
        "a surge",
        {"spec.rollout.maxSurge": 1},
        "spec.rollout.maxSurge",
        "groups of pods are replaced one after another",
        {"spec.rollout.maxSurge": 0},
    ),
    _beside(
        "no group missing",
        {"spec.rollout.maxUnavailable": 0},
        "spec.rollout.maxUnavailable",
        "groups of pods are replaced one after another, and the earlier one ends first; accepted: 1 or more",
        {"spec.rollout.maxUnavailable": 1},
    ),
    _beside(
        "a claim of one node",
        {_CLAIM: {"size": "1Gi", "accessModes": ["ReadWriteOnce"]}},
        f"{_CLAIM}.accessModes",
        "pods of several nodes mount the volume; accepted: ReadWriteMany",
        {_CLAIM: {"size": "1Gi", "accessModes": ["ReadWriteMany"]}},
    ),
)
