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
    """What came of each of these `scheduler_story.Story`s, by name; all are told by one process.

    Beside them `objects`: what was misjudged of vLLM's classes.
    """
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "engine/src"), str(ROOT / "tests")]),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_PLUGINS": "",
        "FLYBALL_STATE_DIR": str(folder),
    }
    texts = [json.dumps(story) for story in stories.values()]
    command = [python, "-P", "-m", "support.scheduler_story", str(model), *texts]
    ended = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr[-5000:]
    results = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return dict(zip((*stories, "objects"), results, strict=True))
