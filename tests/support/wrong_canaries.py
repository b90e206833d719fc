"""Wrong canaries of a rollout, part of `wrong_manifests`."""

from __future__ import annotations

from flyball_lab.harness.manifests import DROP, Wrong

_CANARY = "spec.rollout.canary"


#: What is accepted, and of what it is a number.
_PERCENT = "must be a whole number, greater than or equal to 1 and less than or equal to 50 (Percentage of the pods"


def _field(name: str, wrong: object, right: object, says: str, server: str = "") -> Wrong:
    path = f"{_CANARY}.{name}"
    return Wrong(f"canary {name} {wrong}", {path: wrong}, {path: right}, path, says, server)


WRONG_CANARIES = (
    _field("weight", 0, 1, _PERCENT, "greater than or equal to 1"),
    _field("weight", 150, 50, _PERCENT, "less than or equal to 50"),
    _field("weight", "10%", 10, _PERCENT, "must be of type integer"),
    _field("weight", 2.5, 2, _PERCENT, "must be of type integer"),
    _field("duration", "30s", "1m", "must be at least 1m and at most 24h"),
    _field("duration", "25h", "24h", "must be at least 1m and at most 24h"),
    _field("duration", "soon", "10m", "must be"),
    _field("duration", 600, "600s", "90s for 1m30s. Write it in quotes", "must be of type string"),
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
