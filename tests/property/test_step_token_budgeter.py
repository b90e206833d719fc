"""For any batch and any budget: the step fits or is the least there is, and no decode goes without."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flyball_engine.batching.step_token_budgeter import Prompt, Queue, StepTokenBudgeter
from flyball_engine.model import StepModel
from support.reflexes import a_budget, seconds, served

LEAST = 16
UNLIMITED = 2**30
COST = st.floats(1e-7, 1e-3)

MODELS = st.builds(
    StepModel,
    t0=st.floats(0, 0.05),
    h=st.floats(0, 0.01),
    c1=COST,
    c2=COST,
    beta=st.floats(0, 1e-3),
    g=st.floats(0, 1e-7),
    kappa=st.integers(1, 4096),
    d=st.floats(0, 1e-6),
)
PROMPTS = st.lists(st.builds(Prompt, remaining=st.integers(1, 50_000), context=st.integers(0, 50_000)), max_size=8)


QUEUES = st.builds(
    Queue,
    decodes=st.integers(0, 300),
    tokens_per_decode=st.integers(1, 5),
    prefilling=PROMPTS,
    waiting=PROMPTS,
    more=st.just(False),
    indivisible=st.just(0),
    kv_tokens=st.integers(0, 1_000_000),
)


@given(QUEUES, MODELS, st.floats(1e-3, 1.0))
def test_a_step_fits_its_budget_or_is_the_least_there_is(queue: Queue, model: StepModel, budget: float) -> None:
    budgeter = StepTokenBudgeter()
    budgeter.set_budget(a_budget(budget, model))
    given_room = budgeter.step_tokens(queue, least_chunk=LEAST, most=UNLIMITED)
    step, chunks, fed = served(queue, given_room)
    assert fed == queue.decodes
    prompts = [*queue.prefilling, *queue.waiting]
    if prompts:
        assert chunks[0] >= min(LEAST, prompts[0].remaining), "the first advances"
    least = step.prefill_tokens <= LEAST
    assert least or seconds(model, step) <= budget * (1 + 1e-9)


@given(QUEUES, MODELS, st.floats(1e-3, 1.0), st.booleans())
def test_no_prompts_get_more_than_the_reach_of_a_step(
    drawn: Queue, model: StepModel, budget: float, more: bool
) -> None:
    queue, budgeter = drawn._replace(more=more), StepTokenBudgeter()
    budgeter.set_budget(a_budget(budget, model))
    reach = budgeter.reach(
        decodes=queue.decodes, decode_tokens=queue.decode_tokens, least=LEAST, kv_tokens=queue.kv_tokens
    )
    given_room = budgeter.step_tokens(queue, least_chunk=LEAST, most=UNLIMITED)
    if given_room < UNLIMITED:
        assert given_room - queue.decode_tokens <= reach


@given(QUEUES, MODELS, st.floats(1e-3, 1.0))
def test_no_prefill_that_fits_is_left_out(queue: Queue, model: StepModel, budget: float) -> None:
    budgeter = StepTokenBudgeter()
    budgeter.set_budget(a_budget(budget, model))
    given_room = budgeter.step_tokens(queue, least_chunk=LEAST, most=UNLIMITED)
    step, chunks, _ = served(queue, given_room)
    prompts = [*queue.prefilling, *queue.waiting]
    cut = [prompt for chunk, prompt in zip(chunks, prompts, strict=True) if 0 < chunk < prompt.remaining]
    if not cut:
        return
    # One token more for each prompt that is cut passes the budget.
    extra = sum(prompt.context + prompt.remaining for prompt in cut)
    more = model.step_seconds(
        tokens=step.tokens + len(cut),
        decodes=queue.decodes,
        prefills=True,
        attention=step.prefill_attention + extra,
        kv_tokens=step.kv_tokens,
    )
    assert more >= budget * (1 - 1e-9)


@given(QUEUES, MODELS, st.floats(1e-3, 1.0), st.sampled_from([16, 528, 1600]))
def test_the_first_prompt_of_a_hybrid_model_always_gets_a_block(
    drawn: Queue, model: StepModel, budget: float, block: int
) -> None:
    queue = drawn._replace(indivisible=block)
    budgeter = StepTokenBudgeter()
    budgeter.set_budget(a_budget(budget, model))
    step, chunks, fed = served(queue, budgeter.step_tokens(queue, least_chunk=LEAST, most=UNLIMITED))
    assert fed == queue.decodes
    prompts = [*queue.prefilling, *queue.waiting]
    if not prompts:
        return
    assert chunks[0] >= min(block, prompts[0].remaining)
    least = step.prefill_tokens <= max(block, LEAST)
    assert least or seconds(model, step) <= budget * (1 + 1e-9)


@given(QUEUES, MODELS, st.floats(1e-3, 1.0))
def test_a_step_that_is_cut_has_a_size_that_suits_the_engine(queue: Queue, model: StepModel, budget: float) -> None:
    graphs = (1, 2, 4, *range(8, 513, 8))
    budgeter = StepTokenBudgeter()
    budgeter.set_budget(a_budget(budget, model))
    room = budgeter.step_tokens(queue, least_chunk=LEAST, most=UNLIMITED, graphs=graphs)
    step, chunks, fed = served(queue, room)
    assert fed == queue.decodes
    least = step.prefill_tokens <= LEAST
    assert least or seconds(model, step) <= budget * (1 + 1e-9)
    left = sum(prompt.remaining for prompt in (*queue.prefilling, *queue.waiting)) - sum(chunks)
    if left and not least:
        assert step.tokens in graphs or step.tokens % 128 == 0
