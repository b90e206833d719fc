"""An ablation of the law: it runs with each value that is tried, and what decides the same is not simulated again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flyball_lab.benches.law import contenders
from flyball_lab.benches.law.ablation import SHARES, Run, changed, in_force
from flyball_lab.benches.law.contenders import play, the_law
from flyball_lab.benches.law.random_scenarios import random_scenarios
from flyball_lab.benches.law.scenarios import scenario
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.virtual import run


@pytest.mark.parametrize("name", SHARES)
def test_the_law_runs_with_each_share_that_an_ablation_tries(name: str) -> None:
    short = replace(scenario("h100 code in bursts"), phases=((8, "code"),))
    for change in changed(name):
        with in_force(change):
            assert play(short, the_law(5.0), 1, gate=True).goodput > 0


@pytest.mark.parametrize(
    ("change", "simulated"),
    [
        (("cusum_alarm", 7.5), False),
        (("spare", 0.05), False),
        (("token_margin", 0.46), True),
        (("hysteresis", 0.0), True),
    ],
)
def test_what_decides_the_same_is_not_simulated_again_and_what_does_not_is(
    change: tuple[str, float], simulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(scenario("h100 code in bursts"), phases=((8, "code"),))
    as_it_is = Run(short, 1, gate=True, changed=None).play()
    with in_force(change):
        whole = play(short, the_law(5.0), 1, gate=True)
    runs = list[Any]()

    def counted(core: Core, *given: Any, **named: Any) -> None:
        runs.append(core)
        run(core, *given, **named)

    monkeypatch.setattr(contenders, "run", counted)
    assert Run(short, 1, gate=True, changed=change).play() == whole
    assert bool(runs) is simulated
    assert simulated or whole == as_it_is


def test_it_plays_fleets_that_are_made_from_a_seed() -> None:
    fleet = next(case for case in random_scenarios(12) if case.pods > 1)
    assert play(replace(fleet, phases=((8, "code"),)), the_law(5.0), 1, gate=True).goodput > 0
