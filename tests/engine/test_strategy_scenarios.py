"""Every strategy on vLLM's own scheduler classes, with a made-up model: what it promises is checked at every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.installed import Installed
from support.scheduler_scenarios import play_all

pytestmark = pytest.mark.engine

DYNAMIC = {"type": "Dynamic", "batch_size": 6, "max_delay_seconds": 0.1, "max_batch_tokens": 900}
#: Random switches over all strategies and knobs, beside random limits.
KINDS: dict[str, dict[str, Any]] = {
    "roomy": {"seed": 40},
    "roomy, two steps in flight": {"seed": 41, "asynchronous": True},
    "roomy, by priority": {"seed": 42, "policy": "priority"},
    "tight": {"seed": 43, "blocks": 50},
    "tight, two steps in flight": {"seed": 44, "blocks": 50, "asynchronous": True},
    "tight, by priority, two steps in flight": {"seed": 45, "blocks": 50, "policy": "priority", "asynchronous": True},
    "with drafts": {"seed": 47, "drafts": True},
    "restless": {"seed": 46, "blocks": 60, "switches": 0.3, "asynchronous": True},
}
SWITCHING: dict[str, dict[str, Any]] = {
    f"switching, {name}": {"switches": 0.02, "longest": 30, "grammars": 0.3, **kind} for name, kind in KINDS.items()
}
#: One strategy from the first request to the last.
STEADY: dict[str, dict[str, Any]] = {
    f"steady, {name}": {"seed": 50, "longest": 30, "retunes": 0.0, "asynchronous": True, "batching": batching}
    for name, batching in {
        "static": {"strategy": {"type": "Static", "batch_size": 8}},
        "dynamic": {"strategy": DYNAMIC},
        "bucketed": {"strategy": {"type": "Bucketed", "batch_size": 8, "boundaries": [8, 100, 300]}},
        "sorted, by priority": {
            "strategy": {"type": "Bucketed", "batch_size": 8, "sorted": True},
            "policy": "priority",
        },
        "a delay": {"admission_delay_seconds": 0.05},
        "few prefills": {"max_concurrent_prefills": 2},
    }.items()
}
TIGHT: dict[str, Any] = {"seed": 60, "blocks": 50, "retunes": 0.0, "asynchronous": True}
NO_EVICT: dict[str, dict[str, Any]] = {"evicting": TIGHT, "never evicting": {**TIGHT, "batching": {"no_evict": {}}}}
#: Setpoints of all that the contract accepts, its ends among it: none of them stalls the engine.
KINDS_OF_ALL: dict[str, dict[str, Any]] = {
    "roomy": {"seed": 70},
    "lasting": {"seed": 74, "extremes": 0.007, "requests": 240},
    "tight, by priority, two steps in flight": {"seed": 71, "blocks": 50, "policy": "priority", "asynchronous": True},
}
ANYTHING: dict[str, dict[str, Any]] = {
    f"anything, {name}": {"extremes": 0.03, "retunes": 0.0, "longest": 30, "requests": 120, "unnamed": 0.1, **kind}
    for name, kind in KINDS_OF_ALL.items()
}
SCENARIOS = SWITCHING | STEADY | NO_EVICT | ANYTHING


LACKING = "this vLLM's scheduler admits no chosen requests"
#: What asks for nothing that older schedulers lack.
ANYWHERE = ("steady, few prefills", "evicting", *ANYTHING)


@pytest.fixture(scope="module")
def told(
    vllm_python: str, model: Path, installed: Installed, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    scenarios = {name: scenario for name, scenario in SCENARIOS.items() if installed.admits_chosen or name in ANYWHERE}
    return play_all(scenarios, python=vllm_python, model=model, folder=tmp_path_factory.mktemp("scenarios"))


@pytest.fixture(params=SCENARIOS)
def scenario(request: pytest.FixtureRequest, told: dict[str, Any]) -> Any:
    if request.param not in told:
        pytest.skip(LACKING)
    return told[request.param]


def test_every_step_keeps_what_the_strategy_promises(scenario: dict[str, Any]) -> None:
    assert scenario["broken"] == []


def test_every_request_says_exactly_what_it_should(scenario: dict[str, Any]) -> None:
    assert (scenario["wrong_outputs"], scenario["unfinished"], scenario["kv_usage"]) == (0, 0, 0)


def test_limits_hold_and_no_decode_is_left_out(scenario: dict[str, Any]) -> None:
    assert (scenario["over_cap"], scenario["over_tokens"], scenario["starved_decodes"]) == (0, 0, 0)


def test_neither_faults_nor_trips(scenario: dict[str, Any]) -> None:
    assert (scenario["governed"], scenario["trips"]) == (True, 0)


def test_the_stories_cover_what_they_say(told: dict[str, Any]) -> None:
    if not told.keys() >= SCENARIOS.keys():
        pytest.skip(LACKING)
    switching = [told[name] for name in SWITCHING]
    assert min(scenario["switches"] for scenario in switching) > 5
    assert sum(scenario["in_batches"] for scenario in switching) > 400
    assert sum(scenario["preemptions"] for scenario in switching) > 10
    assert told["steady, static"]["in_batches"] > 200
    assert min(told[name]["switches"] for name in ANYTHING) > 5
    assert told["switching, with drafts"]["depths"] == [0, 2, 4]


def test_without_eviction_nothing_is_preempted(told: dict[str, Any]) -> None:
    assert told["evicting"]["preemptions"] > 20
    if "never evicting" not in told:
        pytest.skip(LACKING)
    assert told["never evicting"]["preemptions"] == 0
