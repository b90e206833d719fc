"""The law: which limits, budget and deadline follow from a model, a workload and objectives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flyball_engine.contract import LEAST_CHUNK
from flyball_engine.model import StepModel
from flyball_lab.harness.plant import A100, H100
from flyball_lab.harness.tuning import E2E, GAP, TPOT, TTFT, inputs, workload
from flyball_operator.tuning.control_input import Margins, margins
from flyball_operator.tuning.optimise import choose
from flyball_operator.tuning.spec import Envelope, LatencyObjective, Span
from flyball_operator.tuning.tunables import TUNABLES

LONG: Any = {"prompt": 1500.0, "uncached": 1500.0, "attention": 700.0, "ratio": 20.0, "arrivals": 1.0}
OVERLOAD: Any = {"arrivals": 40.0, "waiting": 200.0}
NARROW = Margins(token=0.9, first_token=0.8)


# The batch.


def test_the_batch_is_what_keeps_tokens_beside_a_least_chunk() -> None:
    here = inputs(TPOT)
    output, budget = choose(here), TPOT.seconds * here.margins.token
    assert here.step(output.seqs, LEAST_CHUNK) <= budget < here.step(output.seqs + 1, LEAST_CHUNK)
    assert output.binding == "tpot"


def test_a_tighter_objective_never_allows_more() -> None:
    sizes = [choose(inputs(replace(TPOT, seconds=seconds))).seqs for seconds in (0.02, 0.03, 0.04, 0.16)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_with_speculation_a_step_makes_several_tokens_and_may_take_as_much_longer() -> None:
    plain, drafting = inputs(TPOT), inputs(TPOT, drafted=3.0, made=2.0)
    assert drafting.step(8, 0) > plain.step(8, 0), "drafts are computed"
    assert choose(drafting).budget == pytest.approx(2 * (choose(plain).budget or 0.0))
    assert choose(inputs(TPOT, drafted=3.0)).seqs < choose(plain).seqs, "none accepted"


def test_memory_bounds_what_is_carried_and_leaves_the_batch_to_the_engine() -> None:
    roomy, short = (choose(inputs(TTFT, TPOT, kv_tokens=kv)) for kv in (100_000.0, 1_000.0))
    assert short.seqs == roomy.seqs
    assert short.capacity < roomy.capacity


def test_long_contexts_leave_room_for_fewer_decodes() -> None:
    gpu = replace(H100, beta=6e-6, d=5e-8)
    wide, fast = Envelope(Span(4, 256), Span(128, 8192)), replace(TPOT, seconds=0.03)
    chats = workload(arrivals=1.0, ratio=0.5, kv_tokens=1e8)
    short, long = (
        replace(inputs(fast, model=gpu, envelope=wide), workload=replace(chats, context=context))
        for context in (500.0, 16_000.0)
    )
    assert choose(short).seqs == 256
    chosen = choose(long)
    assert 4 < chosen.seqs < 64
    assert gpu.seconds(decodes=chosen.seqs, kv_tokens=16_000 * chosen.seqs) < 0.03


@pytest.mark.parametrize("objectives", [(TTFT, TPOT), (TPOT,), (TTFT,), (E2E,)])
def test_a_queue_changes_neither_batch_nor_budget(objectives: tuple[LatencyObjective, ...]) -> None:
    calm, crowded = choose(inputs(*objectives)), choose(inputs(*objectives, **OVERLOAD))
    assert (calm.seqs, calm.tokens, calm.budget) == (crowded.seqs, crowded.tokens, crowded.budget)


def test_without_objectives_nothing_is_held_back() -> None:
    output = choose(inputs())
    assert (output.seqs, output.tokens, output.binding) == (128, 2048, "")
    assert (output.budget, output.deadline) == (None, None)


def test_equal_bounds_pin_a_limit() -> None:
    pinned = Envelope(Span(32, 32), Span(512, 512))
    output = choose(inputs(TTFT, TPOT, GAP, envelope=pinned))
    assert (output.seqs, output.tokens) == (32, 512)


# The time of a step.


@pytest.mark.parametrize(
    ("objectives", "seconds"),
    [
        ((TTFT, TPOT), 0.9 * TPOT.seconds),
        ((TPOT,), 0.9 * TPOT.seconds),
        ((TTFT, GAP), 0.9 * TUNABLES.gap_share * GAP.seconds),
        ((TTFT, GAP, replace(TPOT, seconds=0.5)), 0.9 * TUNABLES.gap_share * GAP.seconds),
        ((TTFT,), None),
        ((E2E,), None),
        ((E2E, TPOT), 0.9 * TPOT.seconds),
    ],
)
def test_a_step_may_take_what_the_tightest_token_objective_leaves(
    objectives: tuple[LatencyObjective, ...], seconds: float | None
) -> None:
    output = choose(replace(inputs(*objectives), margins=NARROW))
    assert output.budget == (pytest.approx(seconds) if seconds is not None else None)


def test_the_token_limit_is_the_step_that_the_budget_allows_beside_the_mean_batch() -> None:
    here = inputs(TTFT, GAP, **LONG)
    output = choose(here)
    assert output.budget is not None
    decodes = here.workload.decodes
    assert output.tokens < 2048
    assert 0.8 * output.budget < here.step(decodes, output.tokens - decodes) <= output.budget * 1.01
    assert output.predicted.gap <= output.budget * 1.001


@pytest.mark.parametrize("drafted", [1.0, 5.0])
def test_a_step_has_room_for_the_whole_batch_and_a_chunk(drafted: float) -> None:
    output = choose(inputs(TTFT, TPOT, drafted=drafted, made=min(2.0, drafted), decodes=60.0))
    assert output.tokens >= min(2048, int(drafted * output.seqs + LEAST_CHUNK))


def test_one_law_fits_devices_that_differ_tenfold() -> None:
    wide = Envelope(Span(4, 256), Span(256, 8192))
    tight = replace(GAP, seconds=0.05)
    slow, fast = (choose(inputs(TTFT, tight, model=model, envelope=wide)) for model in (A100, H100))
    assert slow.predicted.gap <= 0.05
    assert fast.predicted.gap <= 0.05
    assert fast.capacity > 2 * slow.capacity


def test_a_token_objective_that_leaves_prompts_no_room_bounds_no_step() -> None:
    output = choose(inputs(TTFT, replace(TPOT, seconds=0.009)))
    assert output.budget is None, "no first token would be in time"
    assert (output.given_up, output.binding) == (("tpot",), "tpot")


def test_scatter_does_not_narrow_a_budget_until_its_objective_is_given_up() -> None:
    tight = inputs(TTFT, replace(TPOT, seconds=0.01))
    narrowed = choose(replace(tight, margins=replace(margins(), token=0.7)))
    assert narrowed.given_up == ()
    assert narrowed.budget == choose(replace(tight, margins=margins())).budget


# The deadline.


def test_the_first_token_objective_is_the_deadline_whatever_comes() -> None:
    loads: tuple[Any, ...] = ({}, OVERLOAD, LONG)
    for load in loads:
        assert choose(inputs(TTFT, TPOT, **load)).deadline == TTFT.seconds
    assert choose(inputs(TPOT)).deadline is None


def test_an_end_to_end_objective_leaves_the_first_token_what_the_others_do_not_take() -> None:
    short, long = (choose(inputs(E2E, output=output, ratio=120 / output)) for output in (10.0, 300.0))
    assert short.deadline is not None
    assert long.deadline is not None
    assert E2E.seconds > short.deadline > long.deadline >= TUNABLES.least_first_share * E2E.seconds
    assert choose(inputs(E2E, TTFT)).deadline == TTFT.seconds


def test_steps_that_a_model_makes_cost_nothing_divide_by_nothing() -> None:
    # Fitted to absurd figures: tokens cost something above κ alone.
    free = StepModel(t0=0.0, h=0.0, c1=0.0, c2=5e-4, beta=0.0, g=0.0, kappa=2048)
    decided = choose(inputs(TTFT, model=free))
    assert decided.capacity >= 0.0
