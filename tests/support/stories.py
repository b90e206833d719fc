"""Scheduler stories told by the Python of the vLLM environment, which is not this one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flyball_lab.repository import ROOT

#: Processes that tell stories beside each other. Each plays on one core, and takes seconds to load vLLM.
TELLERS = 2


def tell(stories: Mapping[str, Mapping[str, Any]], *, python: str, model: Path, folder: Path) -> dict[str, Any]:
    """What came of each of these `story.Story`s, by name.

    Beside them `objects`: what was misjudged of vLLM's classes.
    """
    results = told_by("flyball_lab.harness.scheduler_story", stories, python=python, model=model, folder=folder)
    return dict(zip((*stories, "objects"), results, strict=True))


def told_by(module: str, stories: Mapping[str, Any], *, python: str, model: Path, folder: Path) -> list[dict[str, Any]]:
    """The objects that a module writes when it is run with these stories: one each, in their order.

    What one writes beside them comes last.
    """
    texts = [json.dumps(story) for story in stories.values()]
    shares = [texts[first::TELLERS] for first in range(min(TELLERS, len(texts)))]

    def tell_share(number: int) -> list[dict[str, Any]]:
        home = folder / str(number)
        home.mkdir()
        return _told(["-m", module, str(model), *shares[number]], python=python, home=home)

    with ThreadPoolExecutor(TELLERS) as pool:
        told = list(pool.map(tell_share, range(len(shares))))
    results = [told[number % TELLERS][number // TELLERS] for number in range(len(texts))]
    return results + told[0][len(shares[0]) :]


def _told(arguments: Sequence[str], *, python: str, home: Path) -> list[dict[str, Any]]:
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
