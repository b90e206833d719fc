"""`hack/fuzz` on the vLLM at hand: random setpoints on its scheduler classes, every step checked, no model run."""

from __future__ import annotations

import json
from typing import Final

from flyball_lab.benches.engine.bare import played
from flyball_lab.benches.engine.engines import Where

#: What plays them.
MODULE: Final = "fuzz"
#: It ends earlier with 70,000 steps and 10,000 setpoints of each class.
SECONDS: Final = 240


def measure(where: Where) -> dict[str, dict[str, float]]:
    """What happened on each scheduler class, and how many scenarios went wrong."""
    # It ends with 1 where one went wrong, and says so in its figures.
    figures = json.loads(played(where, MODULE, f"--seconds={SECONDS}", check=False).splitlines()[-1])["figures"]
    return {"scenarios": {"went wrong": figures.pop("failures")}, **figures}
