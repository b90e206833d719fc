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
        return printed(where, Path(name), module, str(model), *arguments, check=check)


def printed(where: Where, folder: Path, module: str, *arguments: str, check: bool = True) -> str:
    """What a module of `TOOLS` printed; its home is `folder`. Raises CalledProcessError if it failed and `check`."""
    done = subprocess.run(
        command(where, module, *arguments), env=environment(folder), stdout=subprocess.PIPE, text=True, check=check
    )
    return done.stdout


def command(where: Where, module: str, *arguments: str) -> list[str]:
    """That which runs a module of `TOOLS`."""
    return [where.python, "-P", "-m", f"{TOOLS}.{module}", *arguments]


def environment(folder: Path) -> dict[str, str]:
    """Of a module of `TOOLS`, whose home is `folder`: vLLM with no plugin, which says little."""
    return {
        **os.environ,
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("engine/src", "engine/lab/src")),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_PLUGINS": "",
        "FLYBALL_STATE_DIR": str(folder),
    }
