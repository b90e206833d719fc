"""Scheduler scenarios played by the Python of the vLLM environment, which is not this one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flyball_lab.repository import ROOT

#: Processes that play scenarios at the same time. Each plays on one core, and takes seconds to load vLLM.
PROCESSES = 2


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
    shares = [texts[first::PROCESSES] for first in range(min(PROCESSES, len(texts)))]

    def play_share(number: int) -> list[dict[str, Any]]:
        home = folder / str(number)
        home.mkdir()
        return _played(["-m", module, str(model), *shares[number]], python=python, home=home)

    with ThreadPoolExecutor(PROCESSES) as pool:
        played = list(pool.map(play_share, range(len(shares))))
    results = [played[number % PROCESSES][number // PROCESSES] for number in range(len(texts))]
    return results + played[0][len(shares[0]) :]


def _played(arguments: Sequence[str], *, python: str, home: Path) -> list[dict[str, Any]]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "engine/src"), str(ROOT / "tests")]),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_PLUGINS": "",
        "FLYBALL_STATE_DIR": str(home),
    }
    ended = subprocess.run(
        [python, "-P", *arguments], env=environment, cwd="/", capture_output=True, text=True, timeout=500, check=False
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
