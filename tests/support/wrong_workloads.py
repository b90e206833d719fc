"""Wrong workloads, part of `wrong_manifests`."""

from __future__ import annotations

from typing import Any

from flyball_lab.harness.manifests import DROP, Wrong

_WORKLOAD, _LABELS = "spec.workload", "spec.workload.selector.matchLabels"
_SELECTOR: dict[str, Any] = {"selector": {"matchLabels": {"app": "llm"}}}
_FOREIGN: dict[str, Any] = {"spec.model": DROP, "spec.engine": DROP, _WORKLOAD: _SELECTOR}
_KEYS, _VALUES = "has a key that is no qualified name", "must be a label value"


def _beside(field: str, value: Any, why: str) -> Wrong:
    """What makes no sense for pods of others; without it the manifest is good."""
    says = f"may not stand beside spec.workload: {why}"
    return Wrong(
        f"{field} {value} beside a workload", _FOREIGN | {f"spec.{field}": value}, _FOREIGN, f"spec.{field}", says
    )


def _labels(id: str, labels: dict[str, Any], says: str, server: str = "") -> Wrong:  # noqa: A002
    return Wrong(
        f"workload labels: {id}",
        _FOREIGN | {_WORKLOAD: {"selector": {"matchLabels": labels}}},
        _FOREIGN | {_WORKLOAD: {"selector": {"matchLabels": {"example.com/app": "llm", "tier": ""}}}},
        _LABELS,
        says,
        server,
    )


def _field(id: str, field: str, value: Any, good: Any, says: str, server: str = "") -> Wrong:  # noqa: A002
    path = f"{_WORKLOAD}.{field}"
    wrong, right = (_FOREIGN | {_WORKLOAD: _SELECTOR | {field: one}} for one in (value, good))
    return Wrong(f"workload {field}: {id}", wrong, right, path, says, server)


def _absent(id: str, workload: Any, path: str, says: str) -> Wrong:  # noqa: A002
    return Wrong(id, _FOREIGN | {_WORKLOAD: workload}, _FOREIGN, path, says, "Required value")


_SAYS, _REPLACES = "whoever made the pods says what", "whoever made the pods replaces them"
_BOUNDS = "spec.tuning.bounds"

WRONG_WORKLOADS = (
    Wrong("a model beside a workload", {_WORKLOAD: _SELECTOR}, _FOREIGN, "spec", "must have exactly one of model"),
    Wrong(
        "neither model nor workload",
        {"spec.model": DROP, "spec.engine": DROP},
        _FOREIGN,
        "spec",
        "must have exactly one of model",
    ),
    Wrong(
        "a model without an engine",
        {"spec.engine": DROP},
        {},
        "spec.engine",
        "is required beside spec.model: it names the image",
    ),
    Wrong(
        "an engine beside a workload",
        {"spec.model": DROP, _WORKLOAD: _SELECTOR},
        _FOREIGN,
        "spec.engine",
        f"may not stand beside spec.workload: {_SAYS} runs in them",
    ),
    _beside("accelerator", {"resourceName": "nvidia.com/gpu"}, f"{_SAYS} they run on"),
    _beside("replicas", 2, "whoever made the pods scales them"),
    _beside("replicas", 0, "whoever made the pods scales them"),
    _beside("scaling", {"maxReplicas": 4}, "whoever made the pods scales them"),
    _beside("batching", {"maxNumSeqs": 64}, "the ceilings are those that each engine was started with"),
    _beside("batching", {}, "the ceilings are those that each engine was started with"),
    _beside("rollout", {"maxSurge": 1}, _REPLACES),
    _beside("rollout", {}, _REPLACES),
    _beside("podTemplate", {"labels": {"a": "b"}}, _REPLACES),
    _beside("podTemplate", {"resources": {"limits": {"memory": "1Gi"}}}, _REPLACES),
    _beside("podDisruptionBudget", {"maxUnavailable": 2}, "Flyball makes no object for pods of others"),
    _beside("podDisruptionBudget", {"enabled": False}, "Flyball makes no object for pods of others"),
    _beside("adapters", [], "whoever made the pods says which adapters their engines load"),
    _beside("gateway", {"parentRefs": [{"name": "edge"}]}, "Flyball makes no object for pods of others"),
    _absent("a workload without a selector", {}, f"{_WORKLOAD}.selector", "by selector.matchLabels alone"),
    _absent("a selector without labels", {"selector": {}}, _LABELS, "such as {app: llm}; nothing else chooses pods"),
    Wrong(
        "a selector that chooses everything",
        _FOREIGN | {_WORKLOAD: {"selector": {"matchLabels": {}}}},
        _FOREIGN,
        _LABELS,
        "at least 1 item",
        "should have at least 1 properties",
    ),
    _labels("more than there may be", {f"l{number}": "x" for number in range(65)}, "at most 64 items", "at most 64"),
    _labels("a key with a space", {"my app": "llm"}, _KEYS),
    _labels("a key without a name", {"example.com/": "llm"}, _KEYS),
    _labels("a key with two slashes", {"a/b/c": "llm"}, _KEYS),
    _labels("a domain in capitals", {"Example.com/app": "llm"}, _KEYS),
    _labels("an empty key", {"": "llm"}, _KEYS),
    _labels("a key of 64 characters", {"k" * 64: "llm"}, _KEYS),
    _labels("a value with a space", {"app": "my llm"}, _VALUES),
    _labels("a value that ends in a dash", {"app": "llm-"}, _VALUES),
    _labels("a set of values", {"app": "a,b"}, _VALUES),
    _labels("a value that is too long", {"app": "v" * 64}, "at most 63", "may not be more than 63"),
    _field("in capitals", "container", "Main", "main", "must be a DNS label"),
    _field("none", "container", "", "main", "at least 1 character", "at least 1"),
    _field("0", "controlPort", 0, 1, "greater than or equal to 1"),
    _field("beyond the last", "controlPort", 65_536, 65_535, "less than or equal to 65535"),
    Wrong(
        "bounds that leave no room, of a workload",
        _FOREIGN | {f"{_BOUNDS}.maxNumActiveSeqs.max": 512, f"{_BOUNDS}.maxNumScheduledTokens.max": 256},
        _FOREIGN | {f"{_BOUNDS}.maxNumActiveSeqs.max": 512, f"{_BOUNDS}.maxNumScheduledTokens.max": 512},
        f"{_BOUNDS}.maxNumScheduledTokens.max",
        "must be at least the upper bound of maxNumActiveSeqs",
    ),
)
