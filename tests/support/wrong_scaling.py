"""Wrong scaling, part of `wrong_manifests`."""

from __future__ import annotations

from typing import Any

from flyball_lab.harness.manifests import DROP, Wrong

_SCALING = "spec.scaling"
_ONE: dict[str, Any] = {"maxReplicas": 4}


def _window(direction: str, wrong: object, right: int, says: str) -> Wrong:
    path = f"{_SCALING}.{direction}.stabilizationWindowSeconds"
    wanted = {f"{_SCALING}.maxReplicas": 4}
    return Wrong(f"{direction} window {wrong}", wanted | {path: wrong}, wanted | {path: right}, path, says)


WRONG_SCALING = (
    Wrong(
        "scaling to zero",
        {_SCALING: _ONE | {"minReplicas": 0}},
        {_SCALING: _ONE | {"minReplicas": 1}},
        f"{_SCALING}.minReplicas",
        "must be at least 1: without a pod nobody holds a request until one serves",
    ),
    Wrong(
        "scaling upside down",
        {_SCALING: _ONE | {"minReplicas": 5}},
        {_SCALING: _ONE | {"minReplicas": 4}},
        f"{_SCALING}.minReplicas",
        "must be at most maxReplicas",
    ),
    Wrong(
        "scaling without a maximum",
        {_SCALING: {"minReplicas": 2}},
        {_SCALING: {"minReplicas": 2, "maxReplicas": 2}},
        f"{_SCALING}.maxReplicas",
        "required",
        "Required",
    ),
    Wrong(
        "scaling to more than there may be",
        {_SCALING: {"maxReplicas": 10_001}},
        {_SCALING: {"maxReplicas": 10_000}},
        f"{_SCALING}.maxReplicas",
        "less than or equal to 10000",
    ),
    Wrong(
        "scaling beside replicas",
        {_SCALING: _ONE, "spec.replicas": 2},
        {_SCALING: _ONE},
        "spec.replicas",
        "may not stand beside spec.scaling, by which the operator sets the number of pods; accepted: one of the two",
    ),
    Wrong(
        "scaling without objectives",
        {_SCALING: _ONE, "spec.objectives": DROP},
        {_SCALING: _ONE},
        _SCALING,
        "needs an objective in spec.objectives",
    ),
    Wrong(
        "scaling of plain vLLM",
        {_SCALING: _ONE, "spec.engine.governed": False, "spec.tuning.mode": "Disabled"},
        {_SCALING: _ONE, "spec.engine.governed": True, "spec.tuning.mode": "Disabled"},
        _SCALING,
        "needs spec.engine.governed true",
    ),
    _window("scaleUp", -1, 0, "greater than or equal to 0"),
    _window("scaleDown", 3601, 3600, "less than or equal to 3600"),
)
