"""How much of a threshold the law aims at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_lab.harness.tuning import E2E, GAP, TPOT, TTFT, outcome, signals, tuning, workload
from flyball_operator.api.v1alpha1 import Overload
from flyball_operator.tuning.control_input import margins, scattered
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.state import start


def policies_after(*, met: float, violated: float) -> list[Policy]:
    """What a service with a deadline and an end-to-end objective is told in five minutes."""
    spec, found = tuning(TTFT, TPOT, E2E, overload=Overload.SHED), []
    state = start(spec)
    for at in (100.0 + 5 * tick for tick in range(60)):
        counts = {objective.id: outcome(met, violated) for objective in spec.objectives}
        state, decision = decide(state, replace(signals(at), outcomes=counts), spec, at)
        found.append(decision.policy)
    return found


def test_answers_that_can_never_be_in_time_move_neither_margin_nor_budget() -> None:
    assert policies_after(met=60, violated=40) == policies_after(met=100, violated=0)
    shed = policies_after(met=60, violated=40)[-1].shed
    assert shed is not None
    assert shed.margin == margins().first_token


def test_short_answers_need_more_room_with_speculation() -> None:
    short, long = (
        scattered(margins(), (TPOT,), workload(output=output, drafted=4.0, made=2.0)).token for output in (32.0, 4000.0)
    )
    assert short == pytest.approx(1 / (1 + 2.326 * 0.5**0.5 / 4), abs=1e-3), "99 of 100 by the normal distribution"
    assert long == 0.92, "the other margin is the narrower one"


def test_tokens_of_a_step_scatter_with_speculation() -> None:
    def margin(made: float) -> float:
        return scattered(margins(), (TPOT,), workload(drafted=4.0, made=made)).token

    assert margin(2.5) < 0.92
    assert margin(1.0) == margin(4.0) == 0.92, "where none or all are accepted nothing is left to chance"


def test_scatter_narrows_no_margin_of_gaps() -> None:
    noisy = workload(output=1.0, drafted=33.0, made=16.0)
    assert scattered(margins(), (TPOT,), noisy).token < margins().token
    assert scattered(margins(), (TTFT, GAP), noisy) == margins()
