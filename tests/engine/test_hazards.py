"""What can go wrong when limits are moved live, on vLLM's own classes: a naive change, and the same asked of Flyball.

docs/hazards.md has all of them, those that cannot be shown in one process, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.scheduler_scenarios import played_by

pytestmark = pytest.mark.engine

STALLS = (
    "decodes_that_get_nothing",
    "a_prompt_that_gets_nothing",
    "a_queue_that_nobody_serves",
    "a_prompt_too_long_for_a_step",
    "a_strategy_that_never_lets_go",
)
#: What looks like a stall to who does not know of it.
BY_INTENT = "prompts_that_wait_for_their_step"
Told = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def told(vllm_python: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What came of each; all are shown by one process."""
    folder = tmp_path_factory.mktemp("hazards")
    tests = {name: test for name, test in globals().items() if name.startswith("test_")}
    shown = [name.removeprefix("test_") for name, test in tests.items() if "shown" in test.__annotations__]
    names = [*shown, *STALLS, BY_INTENT]
    results = played_by(
        "support.hazards", {name: name for name in names}, python=vllm_python, model=model, folder=folder
    )
    return dict(zip(names, results, strict=True))


@pytest.fixture
def shown(request: pytest.FixtureRequest, told: Told) -> tuple[Any, Any]:
    """The naive change and ours, of the hazard that the test is named after."""
    both = told[request.node.name.removeprefix("test_")]
    if "lacking" in both:
        pytest.skip(both["lacking"])
    return both["naive"], both["ours"]


Both = tuple[dict[str, Any], dict[str, Any]]


def test_slots_below_what_runs(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"died": "AssertionError"}
    assert (ours["running"][0], ours["running"][-1]) == (16, 0)
    assert ours["running"].index(1) > ours["running"].index(0), "nobody joins before the rest drained"


def test_admission_above_the_slots(shown: Both) -> None:
    naive, ours = shown
    assert naive["running"] == 40, "there are 32 slots"
    assert ours == {"running": 32, "clamped": {"max_num_active_seqs": [500, 32, "ceiling"]}}


def test_the_configuration_that_workers_share(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"worker_reads": 2000, "largest_step": 2000}, "its buffers are for 512"
    assert ours == {"changed": [], "threshold": 900, "largest_step": 512}


def test_a_change_in_the_middle_of_a_step(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"died": "AssertionError"}
    assert ours == {"applied_in_the_step": False, "applied_after_it": True, "answered": True, "tokens": 32}


def test_fewer_tokens_than_decodes(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"served": [4], "ever": 4}, "the other twelve get nothing"
    assert ours == {"served": [16], "ever": 16}


def test_prompts_before_decodes(shown: Both) -> None:
    naive, ours = shown
    assert naive["fewest"] == 0, "of eight decodes"
    assert ours["fewest"] == 8
    assert ours["prompt"] >= 16


def test_decodes_that_leave_prompts_nothing(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"prompt": 0, "fewest": 16}
    assert ours == {"prompt": 50 * 16, "fewest": 17}


def test_a_prompt_that_cannot_be_split(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"empty_steps": 50, "left": 1, "raised": 0}
    assert ours["left"] == 0
    assert ours["clamped"] == {"max_num_scheduled_tokens": [100, 1024, "floor"]}


def test_an_image_that_cannot_be_split(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"empty_steps": 49, "left": 1, "raised": 0}, "up to the image, and no further"
    assert ours["left"] == 0
    assert "long_prefill_token_threshold" in ours["unsupported"], "it could be below the image"


def test_a_block_of_state_that_cannot_be_split(shown: Both) -> None:
    naive, ours = shown
    assert naive["prompt"] == 0
    assert ours["prompt"] >= 400


def test_a_decode_padded_with_drafts(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"served": 0}, "as long as anybody decodes"
    assert ours == {"served": 50}


def test_nobody_may_run(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"empty_steps": 50, "left": 4}, "the core spins"
    assert ours["left"] == 0
    assert ours["clamped"]["max_num_active_seqs"] == [0, 1, "floor"]
    assert ours["clamped"]["max_num_scheduled_tokens"][0] == 0


def test_requests_that_are_hidden(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"blocked": True}
    assert ours == {"blocked": False, "gathered": True, "steps_to_the_end": 4}


def test_a_scheduler_of_the_wrong_kind(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"kind": "Scheduler", "served": [4, 0]}, "the second step in flight is empty"
    assert ours == {"kind": "GovernedAsyncScheduler", "served": [4, 4]}


def test_a_name_that_nobody_reads(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"running": 16}, "of 4"
    assert ours == {"running": 4}


def test_memory_that_stays_taken(shown: Both) -> None:
    naive, ours = shown
    before, after = naive["blocks"]
    assert before == after
    assert ours == {"limit": 1, "ceiling": 32}, "the read-back says both"


def test_ranks_that_draft_differently(shown: Both) -> None:
    naive, ours = shown
    assert naive["drafts"] == [2, 4]
    assert ours["drafts"] == [4, 4]
    assert "data-parallel" in ours["why"]


def test_ranks_that_schedule_for_themselves(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"alike": False}
    assert ours == {"alike": True, "unsupported": 4}


def test_a_route_without_a_key(shown: Both) -> None:
    naive, ours = shown
    assert naive["reached"] == ["/plugins/limits"], "without a key"
    assert ours == {"refused": "BadToken"}


def test_plugins_that_are_not_named(shown: Both) -> None:
    naive, ours = shown
    assert naive["installed"]
    assert naive["loaded"] == []
    assert ours["loaded"] == ours["installed"]


def test_a_plugin_that_raises(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"raises": True}
    assert ours == {"raises": False, "why": "RuntimeError: no such attribute"}


def test_a_plugin_that_is_loaded_again(shown: Both) -> None:
    naive, ours = shown
    assert (naive["around"], ours["around"]) == (2, 1)


def test_a_scheduler_by_name(shown: Both) -> None:
    naive, ours = shown
    assert "flyball_gone" in naive["ended_with"]
    assert ours["starts"] == "Scheduler"


def test_a_metric_of_whole_prompts(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"largest": 600}, "in a step of 100"
    assert ours == {"largest": 100, "bucket": 128}


def test_a_first_token_without_its_wait(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"seconds": 1.0}
    assert ours == {"seconds": 4.0}


def test_a_value_that_is_not_of_the_message(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"arrives": False}
    assert ours == {"running": 3}


def test_a_limit_in_the_compile_key(shown: Both) -> None:
    naive, ours = shown
    assert naive == {"keys": 2}
    assert ours == {"same": True}


def test_a_restart_that_forgets(shown: Both) -> None:
    naive, ours = shown
    assert naive["limit"] == [4, 32]
    assert ours == {"applied": None, "effective": 32}, "who reads this sends the setpoint anew"


@pytest.mark.parametrize("stall", STALLS)
def test_start_values_are_back_within_5_s_of_a_stall(stall: str, told: Told) -> None:
    seen = told[stall]
    if "lacking" in seen:
        pytest.skip(seen["lacking"])
    assert (seen["trips"], seen["restored"], seen["left"]) == (1, True, 0)
    assert seen["seconds"] <= 5, "by the scheduler's clock"


def test_the_watchdog_sees_stalls_of_an_engine_that_is_busy(told: Told) -> None:
    assert not told["decodes_that_get_nothing"]["idle"]
    assert not told["a_prompt_that_gets_nothing"]["idle"]


def test_prompts_that_wait_for_their_step_by_intent_are_no_stall(told: Told) -> None:
    seen = told[BY_INTENT]
    if "lacking" in seen:
        pytest.skip(seen["lacking"])
    assert seen["steps"] > 400, "two waits, of 10 s each"
    assert seen["trips"] == 0
