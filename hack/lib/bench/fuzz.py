"""`hack/fuzz` on the vLLM at hand: random setpoints on its scheduler classes, every step checked, no model run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.engines import Where
from support.vllm_server import ROOT, make_model

#: It ends earlier with 70,000 steps and 10,000 setpoints of each class.
SECONDS: Final = 240


def measure(where: Where) -> dict[str, dict[str, float]]:
    """What happened on each scheduler class, and how many stories went wrong."""
    with TemporaryDirectory(prefix="flyball-fuzz-") as name:
        folder = Path(name)
        model = where.model or make_model(where.python, folder / "model")
        environment = {
            **os.environ,
            "HOME": name,
            "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("engine/src", "tests", "hack/lib")),
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_PLUGINS": "",
            "FLYBALL_STATE_DIR": name,
        }
        command = [where.python, "-P", "-m", "fuzz", str(model), f"--seconds={SECONDS}"]
        played = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    figures = json.loads(played.stdout.splitlines()[-1])["figures"]
    return {"stories": {"went wrong": figures.pop("failures")}, **figures}
