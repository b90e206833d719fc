"""Steps longer than the mean that a token may take, where few of them carry a prompt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_lab.benches.law.plays import known_model
from flyball_lab.harness.tuning import E2E, GAP, TPOT, TTFT, inputs
from flyball_lab.simulator.presets import PRESETS
from flyball_operator.tuning.control_input import ControlInput, margins
from flyball_operator.tuning.optimise import choose
from flyball_operator.tuning.spec import Envelope, LatencyObjective, Span
from flyball_operator.tuning.tunables import TUNABLES

FIRST, TOKEN = replace(TTFT, seconds=0.5), replace(TPOT, seconds=0.03)
MEAN = margins().token * TOKEN.seconds


def documents(*objectives: LatencyObjective, **load: float) -> ControlInput:
    """An H100 that is asked for long answers about long documents, 1.8 a second unless told otherwise."""
    base = {"arrivals": 1.8, "prompt": 6500.0, "uncached": 6500.0, "output": 300.0, "ratio": 21.7, "attention": 3250.0}
    held = {"decodes": 5.0, "kv_tokens": 430_000.0}
    here = inputs(*(objectives or (FIRST, TOKEN)), model=known_model(PRESETS["h100-8b"], 6700))
    envelope, asked = Envelope(Span(4, 256), Span(128, 8192)), replace(here.workload, **base | held | load)
    return replace(here, workload=asked, envelope=envelope, margins=margins())


def test_long_prompts_at_light_load_take_longer_steps_than_a_token_in_the_mean() -> None:
    output = choose(documents())
    assert output.budget == pytest.approx(TUNABLES.long_step * MEAN)
    assert output.predicted.tpot <= TOKEN.seconds


def test_at_full_load_each_step_is_held_to_the_mean() -> None:
    assert choose(documents(arrivals=5.0)).budget == pytest.approx(MEAN)


def test_steps_are_no_longer_the_more_load_there_is() -> None:
    budgets = [choose(documents(arrivals=rate / 10)).budget or 0.0 for rate in range(5, 60)]
    assert budgets == sorted(budgets, reverse=True)


def test_short_answers_and_short_prompts_have_no_longer_steps() -> None:
    assert choose(documents(output=30.0, ratio=217.0)).budget == pytest.approx(MEAN)
    short = documents(prompt=500.0, uncached=500.0, attention=250.0, ratio=1.7)
    assert choose(short).budget == pytest.approx(MEAN)


def test_a_gap_objective_bounds_longer_steps() -> None:
    gap = replace(GAP, seconds=0.06)
    budget = choose(documents(FIRST, TOKEN, gap)).budget
    assert budget is not None
    assert MEAN < budget < gap.seconds


def test_an_end_to_end_objective_bounds_no_step() -> None:
    whole = replace(E2E, seconds=8.0)
    assert choose(documents(FIRST, whole)).budget is None
