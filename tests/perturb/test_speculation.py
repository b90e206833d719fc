"""Speculation: a step makes several tokens and computes more; the law is to find the limits that this allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from flyball_lab.benches.law.contenders import Contender, contenders, play, the_law
from flyball_lab.benches.law.scenarios import Scenario, scenario
from flyball_lab.simulator.core_config import Speculation

#: A small grid: its best is nearly that of a large one.
GRID = tuple(one for one in contenders((32, 64, 256), (512, 2048)) if one.in_grid)


def drafting(rate: float, *, tpot: float, speculation: Speculation) -> Scenario:
    return replace(scenario("h100 chat"), phases=((rate, "conversation"),) * 3, tpot=tpot, speculation=speculation)


@pytest.mark.parametrize(
    ("scene", "gate"),
    [
        pytest.param(
            drafting(14.0, tpot=0.012, speculation=Speculation(drafts=3, acceptance=0.7)), True, marks=pytest.mark.long
        ),
        pytest.param(
            drafting(14.0, tpot=0.012, speculation=Speculation(drafts=3, acceptance=0.7)), False, marks=pytest.mark.long
        ),
        (drafting(24.0, tpot=0.012, speculation=Speculation(drafts=3, acceptance=0.7)), True),
        pytest.param(
            drafting(14.0, tpot=0.020, speculation=Speculation(drafts=5, acceptance=0.4)), True, marks=pytest.mark.long
        ),
    ],
    ids=["within capacity behind a gate", "within capacity", "beyond capacity", "drafts that are mostly refused"],
)
def test_with_drafts_the_law_is_where_the_best_limits_are(
    scene: Scenario, gate: bool, note_figure: Callable[[str], None]
) -> None:
    def goodput(policy: Contender) -> float:
        return play(scene, policy, 1, gate=gate).goodput

    law, best = goodput(the_law(5.0)), max(map(goodput, GRID))
    note_figure(f"goodput {law:.2f}/s by the law, {best:.2f}/s by the best of {len(GRID)} fixed limits")
    assert law >= 0.97 * best


@pytest.mark.long
@pytest.mark.parametrize(
    ("rates", "least"),
    [((4.0, 4.0), 0.995), ((20.0, 20.0), 1.04), ((4.0, 22.0, 4.0), 1.02)],
    ids=["hardly any load", "much load", "load that comes and goes"],
)
def test_a_depth_that_the_law_chooses_is_at_least_as_good_as_the_full_one(
    rates: tuple[float, ...], least: float, note_figure: Callable[[str], None]
) -> None:
    """Of five drafts two in five are accepted at each position: in a large batch most cost more than they bring."""
    phases = tuple((rate, "conversation") for rate in rates)
    full = replace(drafting(0.0, tpot=0.020, speculation=Speculation(drafts=5, acceptance=0.4)), phases=phases)
    live = play(replace(full, live_depth=True), the_law(5.0), 1, gate=True)
    fixed = play(full, the_law(5.0), 1, gate=True)
    note_figure(f"goodput {live.goodput:.2f}/s live, {fixed.goodput:.2f}/s at the full depth; {live.changes} changes")
    assert live.goodput >= least * fixed.goodput
    assert live.changes <= 6 * len(rates)
