"""How long a step takes, and the largest one that a time allows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from flyball_engine.model import StepModel

MODEL = StepModel(t0=5e-3, h=1e-3, c1=1e-5, c2=4e-5, beta=2e-5, g=1e-9, kappa=256)


def test_a_step_costs_what_is_in_it() -> None:
    assert MODEL.seconds(decodes=10) == pytest.approx(5e-3 + 10 * 1e-5 + 10 * 2e-5)
    assert MODEL.seconds(decodes=10, prefill_tokens=300, context=1000) == pytest.approx(
        5e-3 + 1e-3 + 256 * 1e-5 + 54 * 4e-5 + 10 * 2e-5 + 1e-9 * 300 * 1150
    )


@pytest.mark.parametrize("kappa", [1, 256, 100_000])
@pytest.mark.parametrize("prompts", [1, 3])
def test_the_largest_chunk_takes_the_time_exactly(kappa: int, prompts: int) -> None:
    model = StepModel(t0=5e-3, h=1e-3, c1=1e-5, c2=4e-5, beta=2e-5, g=1e-9, kappa=kappa)
    chunk = model.largest_chunk(
        seconds=0.05, tokens=140, decodes=40, attention=5000, prompts=prompts, context=2000.0 * prompts
    )
    attention = 5000 + prompts * chunk * (2000 + chunk / 2)
    taken = model.step_seconds(tokens=140 + prompts * chunk, decodes=40, prefills=True, attention=attention)
    assert taken == pytest.approx(0.05)


def test_decodes_pay_for_the_context_they_read() -> None:
    reading = replace(MODEL, d=5e-8)
    assert reading.seconds(decodes=10, kv_tokens=40_000) == pytest.approx(MODEL.seconds(decodes=10) + 2e-3)
    chunk = reading.largest_chunk(seconds=0.05, tokens=140, decodes=40, kv_tokens=200_000)
    assert chunk == pytest.approx(MODEL.largest_chunk(seconds=0.04, tokens=140, decodes=40))


def test_nothing_fits_into_a_step_that_is_full() -> None:
    assert MODEL.largest_chunk(seconds=0.006, tokens=100, decodes=100) == 0.0


def test_a_model_without_a_cost_per_token_allows_any_chunk() -> None:
    free = StepModel(t0=5e-3, h=0.0, c1=0.0, c2=0.0, beta=0.0, g=0.0, kappa=1)
    assert free.largest_chunk(seconds=0.006, tokens=10, decodes=10) == math.inf
