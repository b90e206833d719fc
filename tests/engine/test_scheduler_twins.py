"""The simulated scheduler schedules as vLLM's own: the same tokens to the same requests, step by step."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.vllm_server import ROOT

pytestmark = pytest.mark.engine

STORIES: dict[str, dict[str, Any]] = {
    "roomy": {"seed": 1},
    "roomy, by priority": {"seed": 4, "policy": "priority"},
    "tight": {"seed": 2, "blocks": 100},
    "tight, by priority": {"seed": 3, "blocks": 100, "policy": "priority"},
    "tight, long answers": {"seed": 5, "blocks": 100, "longest": 400, "requests": 80},
}


@pytest.fixture(scope="module")
def told(vllm_python: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came of each story; all are told by one process."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path_factory.mktemp("home")),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "engine/src"), str(ROOT / "tests")]),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_PLUGINS": "",
        "FLYBALL_STATE_DIR": str(tmp_path_factory.mktemp("state")),
    }
    texts = [json.dumps(story) for story in STORIES.values()]
    command = [vllm_python, "-P", "-m", "support.scheduler_twins", str(model), *texts]
    ended = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr[-5000:]
    results = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return dict(zip(STORIES, results, strict=True))


@pytest.mark.parametrize("name", STORIES)
def test_both_give_the_same_tokens_to_the_same_requests(name: str, told: dict[str, dict[str, Any]]) -> None:
    story = told[name]
    assert story["differ"] == {}, f"in step {story['steps']}: vLLM's tokens and ours"
    assert story["steps"] > 500
    assert story["retunes"] > 100
    assert story["most"] > 15


@pytest.mark.parametrize("name", [name for name in STORIES if "tight" in name])
def test_both_preempt_as_often_when_blocks_run_out(name: str, told: dict[str, dict[str, Any]]) -> None:
    theirs, ours = told[name]["preemptions"]
    assert theirs == ours > 20
