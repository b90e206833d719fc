"""For any batch and any budget: the step fits or is the least there is, and no decode goes without."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flyball_engine.batching.reflex import Prompt, Queue, Reflex, Room
from flyball_engine.model import StepModel
from support.reflexes import a_budget, seconds, served

LEAST = 16
UNLIMITED = Room(tokens=2**30, threshold=0)
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
)
PROMPTS = st.lists(st.builds(Prompt, remaining=st.integers(1, 50_000), context=st.integers(0, 50_000)), max_size=8)


@st.composite
def queues(draw: st.DrawFn) -> tuple[Queue, int]:
    """A queue, and how many of its decodes stand before the prompts that have begun."""
    decodes, prefilling = draw(st.integers(0, 300)), draw(PROMPTS)
    behind = bool(prefilling) and decodes > 0 and draw(st.booleans())
    queue = Queue(
        decodes=decodes,
        tokens_per_decode=draw(st.integers(1, 5)),
        prefilling=prefilling,
        waiting=draw(PROMPTS),
        decodes_behind=behind,
    )
    return queue, draw(st.integers(0, decodes - 1)) if behind else decodes


@given(queues(), MODELS, st.floats(1e-3, 1.0))
def test_a_step_fits_its_budget_or_is_the_least_there_is(
    drawn: tuple[Queue, int], model: StepModel, budget: float
) -> None:
    queue, first = drawn
    reflex = Reflex()
    reflex.set_budget(a_budget(budget, model))
    given_room = reflex.room(queue, least_chunk=LEAST, most=UNLIMITED)
    step, chunks, fed = served(queue, given_room, decodes_first=first)
    assert fed == queue.decodes
    begun = chunks[: len(queue.prefilling)]
    assert all(chunk >= min(LEAST, prompt.remaining) for chunk, prompt in zip(begun, queue.prefilling, strict=True))
    least = step.prefill_tokens <= LEAST * max(1, len(begun))
    assert least or seconds(model, step) <= budget * (1 + 1e-9)


@given(queues(), MODELS, st.floats(1e-3, 1.0))
def test_no_prefill_that_fits_is_left_out(drawn: tuple[Queue, int], model: StepModel, budget: float) -> None:
    queue, first = drawn
    reflex = Reflex()
    reflex.set_budget(a_budget(budget, model))
    given_room = reflex.room(queue, least_chunk=LEAST, most=UNLIMITED)
    step, chunks, _ = served(queue, given_room, decodes_first=first)
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
    )
    assert more >= budget * (1 - 1e-9)
