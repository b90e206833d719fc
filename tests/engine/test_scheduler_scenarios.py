"""vLLM's own scheduler classes under the step hooks, with a made-up model: thousands of steps, checked one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.scheduler_scenarios import play_all

pytestmark = pytest.mark.engine

SCENARIOS: dict[str, dict[str, Any]] = {
    "roomy": {"seed": 1},
    "roomy, two steps in flight": {"seed": 2, "asynchronous": True},
    "tight": {"seed": 3, "blocks": 50},
    "tight, two steps in flight": {"seed": 4, "blocks": 50, "asynchronous": True},
    "tight, by priority": {"seed": 5, "blocks": 50, "policy": "priority"},
    "in order": {"seed": 9, "ordered": 1.0, "requests": 400},
    "in order, two steps in flight": {"seed": 14, "ordered": 1.0, "requests": 400, "asynchronous": True},
    "in order, before 0.31": {"seed": 13, "ordered": 1.0, "requests": 400, "ratchet": True},
    "in order, tight": {"seed": 11, "ordered": 1.0, "blocks": 60},
    "in order, tight, two steps in flight": {"seed": 12, "ordered": 1.0, "blocks": 60, "asynchronous": True},
    "before 0.31": {"seed": 6, "ratchet": True},
    "before 0.31, tight, two steps in flight": {"seed": 27, "ratchet": True, "blocks": 50, "asynchronous": True},
}
STALLING = {"seed": 8, "broken_floors": True, "retunes": 0, "patience": 0.2, "once": {"max_num_scheduled_tokens": 1}}


@pytest.fixture(scope="module")
def told(vllm_python: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came of each scenario."""
    scenarios = {**SCENARIOS, "stalling": STALLING}
    return play_all(scenarios, python=vllm_python, model=model, folder=tmp_path_factory.mktemp("scenarios"))


@pytest.fixture(params=SCENARIOS)
def scenario(request: pytest.FixtureRequest, told: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return told[request.param]


def test_much_happened(scenario: dict[str, Any]) -> None:
    assert scenario["steps"] > 300
    assert scenario["retunes"] > 100
    assert scenario["aborted"] > 0
    assert scenario["most_running"] > 15


def test_every_request_says_exactly_what_it_should(scenario: dict[str, Any]) -> None:
    assert (scenario["wrong_outputs"], scenario["unfinished"]) == (0, 0)
    assert scenario["kv_usage"] == 0


def test_limits_hold_in_every_step(scenario: dict[str, Any]) -> None:
    assert (scenario["over_cap"], scenario["over_tokens"]) == (0, 0)


def test_no_decode_is_left_out_of_a_step(scenario: dict[str, Any]) -> None:
    assert scenario["starved_decodes"] == 0


def test_every_step_fits_its_budget_or_is_the_least_there_is(scenario: dict[str, Any]) -> None:
    assert scenario["budgeted"] > 100
    assert scenario["over_budget"] == 0


def test_published_sums_are_those_added_up_by_hand(scenario: dict[str, Any]) -> None:
    assert scenario["published"].keys() == scenario["by_hand"].keys()
    for row, sums in scenario["by_hand"].items():
        assert scenario["published"][row] == pytest.approx(sums), row


def test_batches_are_counted_as_the_requests_and_steps_say(scenario: dict[str, Any]) -> None:
    counted, by_hand = dict(scenario["batches"]), dict(scenario["batches_by_hand"])
    counted["steps"] = sum(counted["steps"])
    counted["slots"] = counted["slots_used"] + counted["slots_free"] + counted["slots_withheld"]
    # Of a client that left while its last step was under way, nobody counts the token.
    generated = by_hand.pop("generated")
    assert 0 <= generated - counted["cohort_outputs"] <= 2 * scenario["aborted"] + scenario["preemptions"]
    assert {name: counted[name] for name in by_hand} == pytest.approx(by_hand)
    assert counted["cohorts"] > 5
    assert counted["cohort_outputs_padded"] > counted["cohort_outputs"]
    assert (counted["oldest"], counted["admitted_seconds"] > 0) == (0, True)


def test_what_is_cached_is_told_as_it_is(scenario: dict[str, Any]) -> None:
    prefixes = scenario["prefixes"]
    assert prefixes["held"] > 50
    assert prefixes["missed"] == 0
    # One in sixteen cells is taken, at most, and by mistake it lengthens a prefix.
    assert prefixes["overrated"] < 0.1 * prefixes["asked"]
    # Blocks of a prefix are given up from its end, but for those that another request still held.
    assert prefixes["core_differs"] < 0.02 * prefixes["asked"]


def test_neither_faults_nor_trips(scenario: dict[str, Any]) -> None:
    assert (scenario["governed"], scenario["trips"]) == (True, 0)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if "in order" in name])
def test_prompts_were_put_in_order_and_no_step_came_to_nothing_for_it(
    name: str, told: dict[str, dict[str, Any]]
) -> None:
    scenario = told[name]
    assert scenario["ordered"] > 100
    assert scenario["parked"] > 10
    assert scenario["parked_in_vain"] == 0
    assert scenario["order"]["moved_behind"] > scenario["order"]["in_time_after_all"] > 0
    assert (scenario["order"]["behind"], scenario["order"]["longest_wait_seconds"]) == (0, 0)


def test_the_stories_cover_what_they_say(told: dict[str, dict[str, Any]]) -> None:
    assert told["tight"]["preemptions"] > 20
    assert told["roomy, two steps in flight"]["overlapped"] > 100
    assert told["roomy"]["overlapped"] == 0
    assert told["roomy, two steps in flight"]["scheduler"] == "GovernedAsyncScheduler"
    assert told["before 0.31"]["scheduler"] == "GovernedOlderScheduler"


def test_without_floors_the_watchdog_gets_every_request_to_its_end(told: dict[str, dict[str, Any]]) -> None:
    stalling = told["stalling"]
    assert stalling["starved_decodes"] > 100
    assert stalling["trips"] == 1
    assert (stalling["wrong_outputs"], stalling["unfinished"]) == (0, 0)


def test_what_the_look_at_classes_finds_is_what_the_objects_of_a_step_have(told: dict[str, dict[str, Any]]) -> None:
    assert told["objects"] == {"misjudged": []}
