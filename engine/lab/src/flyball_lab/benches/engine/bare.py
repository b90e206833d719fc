"""Runs what needs vLLM's Python alone, and no engine: its scheduler classes, of a model that is never run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from flyball_lab.benches.engine.engines import Where
from flyball_lab.harness.vllm_server import make_model
from flyball_lab.repository import ROOT

#: Where the modules are.
TOOLS: Final = "flyball_lab.tools"


def played(where: Where, module: str, *arguments: str, check: bool = True) -> str:
    """What a module of `TOOLS` printed, given the model; raises CalledProcessError if it failed and `check`."""
    with TemporaryDirectory(prefix=f"flyball-{module}-") as name:
        model = where.model or make_model(where.python, Path(name) / "model")
        environment = {
            **os.environ,
            "HOME": name,
            "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("engine/src", "engine/lab/src")),
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_PLUGINS": "",
            "FLYBALL_STATE_DIR": name,
        }
        command = [where.python, "-P", "-m", f"{TOOLS}.{module}", str(model), *arguments]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=check)
    return done.stdout
