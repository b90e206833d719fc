"""A step gets the tokens that fit into its time, and learns what its time is worth here."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from flyball_engine.batching.step_statistics import Step
from flyball_engine.batching.step_token_budgeter import BIAS_RANGE, Prompt, Queue, StepTokenBudgeter
from flyball_engine.model import StepModel
from support.reflexes import a_budget, seconds, served

MODEL = StepModel(t0=5e-3, h=1e-3, c1=1e-5, c2=4e-5, beta=2e-5, g=1e-9, kappa=256)
LIMIT = 8192
#: Tokens of a prompt that a step has where none fit.
LEAST = 16
DECODES = Step(tokens=8, prefill_tokens=0, decodes=8, kv_tokens=0, prefill_attention=0.0)


def a_reflex(budget: float = 0.030, *, trusted: bool = True, model: StepModel = MODEL) -> StepTokenBudgeter:
    budgeter = StepTokenBudgeter()
    budgeter.set_budget(a_budget(budget, model, trusted=trusted))
    return budgeter


def room(budgeter: StepTokenBudgeter, queue: Queue, *, most: int = LIMIT) -> int:
    return budgeter.step_tokens(queue, least_chunk=16, most=most)


def test_without_a_budget_the_limits_alone_hold() -> None:
    assert room(StepTokenBudgeter(), Queue(decodes=8, more=True)) == LIMIT


def test_a_model_nobody_trusts_bounds_nothing_but_is_compared() -> None:
    budgeter = a_reflex(trusted=False)
    assert room(budgeter, Queue(decodes=8, more=True)) == LIMIT
    assert budgeter.seconds == 0.0
    budgeter.observe(DECODES, 0.05)
    assert budgeter.bias > 1


def test_a_long_prompt_gets_what_time_the_decodes_leave() -> None:
    queue = Queue(decodes=100, prefilling=[Prompt(remaining=30_000, context=0)])
    step, (chunk,), fed = served(queue, room(a_reflex(), queue))
    assert fed == 100
    assert seconds(MODEL, step) == pytest.approx(0.030, rel=0.01)
    assert 500 < chunk < 1000


def test_a_long_context_leaves_less() -> None:
    late = Queue(decodes=100, prefilling=[Prompt(remaining=5_000, context=25_000)])
    early = Queue(decodes=100, prefilling=[Prompt(remaining=5_000, context=0)])
    assert room(a_reflex(), late) < room(a_reflex(), early) * 0.75
    step, _, _ = served(late, room(a_reflex(), late))
    assert seconds(MODEL, step) == pytest.approx(0.030, rel=0.01)


@pytest.mark.parametrize("begun", [1, 3])
def test_long_contexts_of_the_decodes_leave_a_prompt_less(begun: int) -> None:
    model = replace(MODEL, d=5e-8)
    queue = Queue(decodes=64, prefilling=[Prompt(remaining=30_000, context=0)] * begun, kv_tokens=64 * 4000)
    step, chunks, _ = served(queue, room(a_reflex(model=model), queue))
    assert seconds(model, step) == pytest.approx(0.030, rel=0.01)
    assert chunks[0] > LEAST


def test_a_bias_is_no_matter_of_context() -> None:
    budgeter = a_reflex(model=replace(MODEL, d=5e-8))
    for context in (1_000, 100_000):
        step = DECODES._replace(kv_tokens=8 * context)
        budgeter.observe(step, seconds(replace(MODEL, d=5e-8), step))
    assert budgeter.bias == pytest.approx(1.0)


def test_short_prompts_are_taken_whole_one_after_the_other() -> None:
    queue = Queue(decodes=10, waiting=[Prompt(remaining=200, context=0)] * 8)
    step, chunks, _ = served(queue, room(a_reflex(), queue))
    assert chunks[:3] == [200, 200, 200]
    assert chunks[-1] == 0
    assert seconds(MODEL, step) == pytest.approx(0.030, rel=0.01)


def test_a_queue_longer_than_was_looked_at_gets_the_whole_budget() -> None:
    queue = Queue(decodes=10, waiting=[Prompt(remaining=5, context=0)] * 8, more=True)
    assert room(a_reflex(), queue) > 500


def test_decodes_that_fill_the_budget_still_let_a_prompt_advance() -> None:
    queue = Queue(decodes=2000, prefilling=[Prompt(remaining=30_000, context=0)])
    assert room(a_reflex(), queue) == 2016
    assert a_reflex().step_tokens(queue, least_chunk=64, most=LIMIT) == 2064


def test_speculating_decodes_take_all_their_tokens() -> None:
    queue = Queue(decodes=100, tokens_per_decode=5, prefilling=[Prompt(remaining=30_000, context=0)])
    step, _, fed = served(queue, room(a_reflex(), queue))
    assert fed == 100
    assert seconds(MODEL, step) <= 0.030


def test_of_prompts_that_have_begun_the_first_is_served_first() -> None:
    queue = Queue(decodes=9, prefilling=[Prompt(remaining=30_000, context=0)] * 3)
    step, chunks, fed = served(queue, room(a_reflex(), queue))
    assert fed == 9
    assert chunks[1:] == [0, 0]
    assert seconds(MODEL, step) == pytest.approx(0.030, rel=0.01)


def test_the_limit_holds_over_the_budget() -> None:
    queue = Queue(decodes=10, prefilling=[Prompt(remaining=30_000, context=0)])
    assert room(a_reflex(1.0), queue, most=256) == 256


def test_what_cannot_be_split_fits_beside_the_decodes() -> None:
    queue = Queue(decodes=10, waiting=[Prompt(remaining=4000, context=0)], indivisible=4096)
    assert room(a_reflex(), queue) == 4106


@pytest.mark.parametrize("decodes", [0, 50, 900])
@pytest.mark.parametrize("budget", [0.01, 0.08, 0.15, 0.4])
def test_prompts_of_a_hybrid_model_advance_by_whole_blocks(budget: float, decodes: int) -> None:
    queue = Queue(decodes=decodes, prefilling=[Prompt(remaining=9000, context=0)] * 2, indivisible=1600)
    step, chunks, fed = served(queue, room(a_reflex(budget), queue))
    assert chunks[0] >= 1600, "the first of them is served, whatever fits"
    assert fed == decodes
    assert step.prefill_tokens == 1600 or seconds(MODEL, step) <= budget


@pytest.mark.parametrize("slowdown", [0.7, 1.0, 1.4])
def test_the_bias_finds_how_slow_this_pod_is(slowdown: float) -> None:
    budgeter = a_reflex()
    queue = Queue(decodes=64, prefilling=[Prompt(remaining=100_000, context=0)])
    for _ in range(100):
        step, _, _ = served(queue, room(budgeter, queue))
        budgeter.observe(step, slowdown * seconds(MODEL, step))
    assert budgeter.bias == pytest.approx(slowdown, rel=0.02)
    step, _, _ = served(queue, room(budgeter, queue))
    assert slowdown * seconds(MODEL, step) == pytest.approx(0.030, rel=0.03)


def test_steps_with_a_prompt_have_a_bias_of_their_own() -> None:
    budgeter = a_reflex()
    queue = Queue(decodes=64, prefilling=[Prompt(remaining=100_000, context=0)])
    for _ in range(40):
        for _ in range(10):
            budgeter.observe(DECODES, 0.7 * seconds(MODEL, DECODES))
        step, _, _ = served(queue, room(budgeter, queue))
        budgeter.observe(step, 1.3 * seconds(MODEL, step))
    assert budgeter.bias == pytest.approx(1.3, rel=0.02)


def test_before_the_first_prompt_the_bias_is_that_of_decodes() -> None:
    budgeter = a_reflex()
    for _ in range(100):
        budgeter.observe(DECODES, 2 * seconds(MODEL, DECODES))
    assert budgeter.bias == pytest.approx(2.0, rel=0.02)


def test_the_bias_is_found_within_a_few_steps() -> None:
    budgeter = a_reflex()
    for _ in range(9):
        budgeter.observe(DECODES, 2 * seconds(MODEL, DECODES))
    assert budgeter.bias == pytest.approx(1.9, rel=0.01)


def test_one_stall_moves_the_bias_by_little() -> None:
    budgeter = a_reflex()
    for _ in range(50):
        budgeter.observe(DECODES, seconds(MODEL, DECODES))
    budgeter.observe(DECODES, 60.0)
    assert budgeter.bias < 1.1
    for _ in range(500):
        budgeter.observe(DECODES, 60.0)
    assert budgeter.bias <= BIAS_RANGE[1]


def test_a_step_is_fitted_by_the_last_few_and_prompts_that_wait_are_predicted_by_more() -> None:
    budgeter = a_reflex()
    queue = Queue(decodes=64, prefilling=[Prompt(remaining=100_000, context=0)])

    def next_step(slowdown: float) -> float:
        step, _, _ = served(queue, room(budgeter, queue))
        budgeter.observe(step, slowdown * seconds(MODEL, step))
        return slowdown * seconds(MODEL, step)

    for _ in range(100):
        next_step(1.0)
    of_slow = [next_step(1.4) for _ in range(6)]
    assert of_slow[0] == pytest.approx(1.4 * 0.030, rel=0.03)
    assert of_slow[-1] <= 1.1 * 0.030, "five slow steps are enough for the sixth to be short"
    assert budgeter.bias < 1.15, "and they say little of the many that a prompt waits for"
    of_fast = [next_step(1.0) for _ in range(6)]
    assert of_fast[-1] >= 0.9 * 0.030, "nor is the engine idle for long when it is fast again"


def test_a_stall_shortens_no_step_for_long() -> None:
    budgeter = a_reflex()
    queue = Queue(decodes=64, prefilling=[Prompt(remaining=100_000, context=0)])
    step, _, _ = served(queue, room(budgeter, queue))
    for _ in range(50):
        budgeter.observe(step, seconds(MODEL, step))
    budgeter.observe(step, 60.0)
    for _ in range(10):
        budgeter.observe(step, seconds(MODEL, step))
    after, _, _ = served(queue, room(budgeter, queue))
    assert seconds(MODEL, after) == pytest.approx(0.030, rel=0.05)


def test_the_bias_outlives_a_new_setpoint() -> None:
    budgeter = a_reflex()
    assert math.isnan(budgeter.bias)
    for _ in range(100):
        budgeter.observe(DECODES, 2 * seconds(MODEL, DECODES))
    before = budgeter.bias
    budgeter.set_budget(None)
    budgeter.set_budget(a_budget(0.020, MODEL))
    assert budgeter.bias == before


def test_a_model_that_says_nothing_teaches_nothing() -> None:
    nothing = StepModel(t0=0.0, h=0.0, c1=0.0, c2=0.0, beta=0.0, g=0.0, kappa=1)
    budgeter = a_reflex(model=nothing)
    budgeter.observe(DECODES, 0.05)
    assert math.isnan(budgeter.bias)
    queue = Queue(decodes=10, prefilling=[Prompt(remaining=30_000, context=0)])
    assert room(budgeter, queue) == LIMIT
