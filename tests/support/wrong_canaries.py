"""Wrong canaries of a rollout, part of `wrong_manifests`."""

from __future__ import annotations

from flyball_lab.harness.manifests import DROP, Wrong

_CANARY = "spec.rollout.canary"


def _field(name: str, wrong: object, right: object, says: str) -> Wrong:
    path = f"{_CANARY}.{name}"
    return Wrong(f"canary {name} {wrong}", {path: wrong}, {path: right}, path, says)


WRONG_CANARIES = (
    _field("weight", 0, 1, "greater than or equal to 1"),
    _field("weight", 51, 50, "less than or equal to 50"),
    _field("duration", "30s", "1m", "must be at least 1m and at most 24h"),
    _field("duration", "25h", "24h", "must be at least 1m and at most 24h"),
    _field("duration", "soon", "10m", "must be"),
    Wrong(
        "canary without objectives",
        {_CANARY: {}, "spec.objectives": DROP},
        {_CANARY: {}},
        _CANARY,
        "needs an objective in spec.objectives, by which the new revision is judged",
    ),
    Wrong(
        "canary of plain vLLM",
        {_CANARY: {}, "spec.engine.governed": False, "spec.tuning.mode": "Disabled"},
        {_CANARY: {}, "spec.engine.governed": True, "spec.tuning.mode": "Disabled"},
        _CANARY,
        "needs spec.engine.governed true",
    ),
)
