"""What Flyball's hooks take of a step on vLLM's scheduler classes, with warm caches and with emptied ones."""

from __future__ import annotations

import json

from flyball_lab.benches.engine.bare import played
from flyball_lab.benches.engine.engines import Where


def measure(where: Where) -> dict[str, dict[str, float]]:
    """Microseconds of processor time per step, by kind of load and state of the caches."""
    figures: dict[str, dict[str, float]] = json.loads(played(where, "hooks").splitlines()[-1])
    return figures
