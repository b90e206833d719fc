"""Scheduler scenarios played by the Python of the vLLM environment, which is not this one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flyball_lab.harness.vllm_server import cache_beside
from flyball_lab.repository import ROOT


def play_all(scenarios: Mapping[str, Mapping[str, Any]], *, python: str, model: Path, folder: Path) -> dict[str, Any]:
    """What came of each of these `scheduler_scenario.Scenario`s, by name.

    Beside them `objects`: what was misjudged of vLLM's classes.
    """
    results = played_by("flyball_lab.harness.scheduler_scenarios", scenarios, python=python, model=model, folder=folder)
    return dict(zip((*scenarios, "objects"), results, strict=True))


def played_by(
    module: str, scenarios: Mapping[str, Any], *, python: str, model: Path, folder: Path
) -> list[dict[str, Any]]:
    """The objects that a module writes when it is run with these scenarios: one each, in their order.

    What one writes beside them comes last.
    """
    texts = [json.dumps(scenario) for scenario in scenarios.values()]
    return _played(["-m", module, str(model), *texts], python=python, home=folder, cache=cache_beside(model))


def _played(arguments: Sequence[str], *, python: str, home: Path, cache: Path) -> list[dict[str, Any]]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "engine/src"), str(ROOT / "tests")]),
        # The other core is for tests beside these.
        "OMP_NUM_THREADS": "1",
        "VLLM_CACHE_ROOT": str(cache),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_PLUGINS": "",
        "FLYBALL_STATE_DIR": str(home),
    }
    ended = subprocess.run(
        [python, "-P", *arguments], env=environment, cwd="/", capture_output=True, text=True, timeout=1700, check=False
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
