"""The simulated scheduler schedules as vLLM's own: the same tokens to the same requests, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.scheduler_scenarios import played_by

pytestmark = pytest.mark.engine

SCENARIOS: dict[str, dict[str, Any]] = {
    "roomy": {"seed": 1},
    "roomy, by priority": {"seed": 4, "policy": "priority"},
    "tight": {"seed": 2, "blocks": 100},
    "tight, by priority": {"seed": 3, "blocks": 100, "policy": "priority"},
    "tight, long answers": {"seed": 5, "blocks": 100, "longest": 400, "requests": 80},
}


@pytest.fixture(scope="module")
def told(vllm_python: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came of each scenario."""
    folder = tmp_path_factory.mktemp("twins")
    results = played_by("support.scheduler_twins", SCENARIOS, python=vllm_python, model=model, folder=folder)
    return dict(zip(SCENARIOS, results, strict=True))


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_give_the_same_tokens_to_the_same_requests(name: str, told: dict[str, dict[str, Any]]) -> None:
    scenario = told[name]
    assert scenario["differ"] == {}, f"in step {scenario['steps']}: vLLM's tokens and ours"
    assert scenario["steps"] > 500
    assert scenario["retunes"] > 100
    assert scenario["most"] > 15


@pytest.mark.parametrize("name", [name for name in SCENARIOS if "tight" in name])
def test_both_preempt_as_often_when_blocks_run_out(name: str, told: dict[str, dict[str, Any]]) -> None:
    theirs, ours = told[name]["preemptions"]
    assert theirs == ours > 20


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_count_the_same_of_their_batches(name: str, told: dict[str, dict[str, Any]]) -> None:
    theirs, ours = told[name]["batches"]
    assert theirs == ours
    assert theirs["cohorts"] > 5
