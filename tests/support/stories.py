"""Scheduler stories told by the Python of the vLLM environment, which is not this one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.vllm_server import ROOT


def tell(stories: Mapping[str, Mapping[str, Any]], *, python: str, model: Path, folder: Path) -> dict[str, Any]:
    """What came of each of these `story.Story`s, by name; all are told by one process.

    Beside them `objects`: what was misjudged of vLLM's classes.
    """
    results = told_by("scheduler_story", stories, python=python, model=model, folder=folder)
    return dict(zip((*stories, "objects"), results, strict=True))


def told_by(module: str, stories: Mapping[str, Any], *, python: str, model: Path, folder: Path) -> list[dict[str, Any]]:
    """The objects that a module of `support` writes when it is run with these stories."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "engine/src"), str(ROOT / "tests")]),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_PLUGINS": "",
        "FLYBALL_STATE_DIR": str(folder),
    }
    texts = [json.dumps(story) for story in stories.values()]
    command = [python, "-P", "-m", f"support.{module}", str(model), *texts]
    ended = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr[-5000:]
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
