"""What the law decides for an engine of several stages, where each token takes as many steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_engine.contract import LEAST_CHUNK, Metric, StepKind
from flyball_lab.harness.plant import CPU
from flyball_lab.harness.tuning import ENVELOPE, GAP, TPOT, TTFT, inputs, signals, tuning
from flyball_operator.api.v1alpha1 import Overload
from flyball_operator.tuning.control_input import ControlInput, ControlOutput, in_rounds, in_steps
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.observe.signals import CellKey, StepWindow, Sums
from flyball_operator.tuning.optimise import choose
from flyball_operator.tuning.spec import LatencyObjective
from flyball_operator.tuning.state import TuningState, start
from flyball_operator.tuning.status_codec import came_of_it

STAGES = 4
#: Loose enough for a round of four steps.
LONG_TTFT = LatencyObjective("ttft", Metric.TIME_TO_FIRST_TOKEN, 8.0, 0.01)
LONG_TPOT = LatencyObjective("tpot", Metric.TIME_PER_OUTPUT_TOKEN, 0.4, 0.01)


def chosen(asked: ControlInput, *, stages: int) -> ControlOutput:
    return in_steps(choose(in_rounds(asked, stages)), stages)


def test_without_stages_nothing_is_different() -> None:
    asked = inputs(TTFT, TPOT, arrivals=8.0, decodes=12.0)
    assert chosen(asked, stages=1) == choose(asked)


def test_a_round_takes_as_long_as_its_steps() -> None:
    # Prompts of less than a chunk among them, and chunks whose own attention counts.
    asked = inputs(TTFT, TPOT, attention=60.0, model=replace(CPU, g=1e-6))
    rounds = in_rounds(asked, STAGES)
    for decodes, prefill in ((5, 0), (5, 0.5), (5, 40), (20, 300), (60, 0), (20, 1500)):
        assert rounds.step(STAGES * decodes, STAGES * prefill) == pytest.approx(STAGES * asked.step(decodes, prefill))
    for seconds in (0.05, 0.1, 0.5):
        step = asked.chunk(5, seconds)
        assert rounds.chunk(STAGES * 5, STAGES * seconds) == pytest.approx(STAGES * step)


def test_the_batch_is_what_keeps_a_token_through_all_stages() -> None:
    asked = inputs(TTFT, TPOT, decodes=8.0)
    output = chosen(asked, stages=STAGES)
    rounds = in_rounds(asked, STAGES)
    assert 4 < output.seqs < 128
    # The whole batch's round, each of its steps with a fourth of it, is within what the objective leaves.
    alone = replace(asked, workload=replace(asked.workload, decodes=8.0))
    assert STAGES * alone.balanced_step(output.seqs / STAGES) == pytest.approx(rounds.balanced_step(output.seqs))
    assert rounds.step(output.seqs, LEAST_CHUNK) <= TPOT.seconds


def test_who_does_not_know_of_stages_allows_tokens_that_take_too_long() -> None:
    asked = inputs(TTFT, TPOT, decodes=8.0)
    naive = choose(asked)
    assert STAGES * asked.step(naive.seqs / STAGES, LEAST_CHUNK / STAGES) > TPOT.seconds


def test_a_gap_is_a_round_too() -> None:
    asked = inputs(TTFT, GAP, decodes=4.0)
    output = chosen(asked, stages=STAGES)
    gap = STAGES * asked.step(4.0, output.tokens - 4.0)
    assert gap <= GAP.seconds
    assert output.predicted.gap <= GAP.seconds


def test_behind_a_gate_each_step_has_its_part_of_the_budget() -> None:
    asked = inputs(TTFT, TPOT, decodes=8.0)
    alone, staged = choose(asked), in_steps(choose(in_rounds(asked, STAGES)), STAGES)
    assert alone.budget is not None
    assert staged.budget == pytest.approx(alone.budget / STAGES)
    assert staged.tokens >= max(ENVELOPE.tokens.least, staged.seqs)


def test_the_engine_is_told_of_steps_within_the_bounds() -> None:
    alone, staged = governed(stages=1), governed(stages=STAGES)
    assert alone.policy.step is not None
    assert staged.policy.step is not None
    assert staged.policy.step.seconds == pytest.approx(alone.policy.step.seconds / STAGES, rel=0.1)
    # The model is of steps: with it the engine fits them.
    assert staged.policy.step.model == alone.policy.step.model
    assert (staged.limits.max_num_scheduled_tokens or 0) >= ENVELOPE.tokens.least


def test_a_pipeline_carries_what_its_steps_carry() -> None:
    alone, staged = governed(stages=1), governed(stages=STAGES)
    assert alone.balance is not None
    assert staged.balance is not None
    # The fixed part of a step comes four times in a round, and the rest of it once.
    assert 0.3 < staged.balance.carried.rate / alone.balance.carried.rate < 1.0


def governed(*, stages: int) -> TuningState:
    """After some ticks of calm behind a gate."""
    spec = replace(tuning(LONG_TTFT, LONG_TPOT, overload=Overload.SHED), stages=stages)
    state = start(spec)
    for tick in range(1, 8):
        state, _ = decide(state, signals(15.0 * tick), spec, 15.0 * tick)
    return state


def test_what_came_of_a_change_is_told_of_tokens() -> None:
    steps = {CellKey(8, StepKind.DECODE): Sums(steps=100, seconds=2.0, decodes=800, tokens=800)}
    window = signals(15.0, window=StepWindow(start=0.0, end=15.0, cells=steps))
    told = [came_of_it(window, replace(tuning(TTFT, TPOT), stages=stages)) for stages in (1, STAGES)]
    assert told == ["token 20ms", "token 80ms"]


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_step_with_the_whole_batch_keeps_gaps_too(stages: int) -> None:
    gap = replace(GAP, seconds=0.15 * stages)
    asked = inputs(TTFT, gap, decodes=8.0)
    output = chosen(asked, stages=stages)
    # Those that joined in one step stay together: the engine leaves each step as much room.
    assert output.tokens >= output.seqs
    decodes = min(output.seqs, 8.0)
    assert stages * asked.step(decodes, output.tokens - decodes) <= gap.seconds
