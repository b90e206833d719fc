"""What it buys to know how long answers will be, where they are to be whole in time and late requests are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_lab.benches.law.contenders import play, the_law
from flyball_lab.benches.law.scenarios import SCENARIOS, Scenario

#: What clients choose from, as the most tokens that they want.
SIZES = (64, 128, 256, 512, 1024, 4096)
CASES = {
    case.name: case
    for case in SCENARIOS
    if isinstance(case, Scenario) and case.name in ("h100 whole answers", "h100 three objectives")
}


def goodput(case: Scenario) -> float:
    return play(case, the_law(5.0), 1, gate=True).goodput


@pytest.mark.parametrize("name", ["h100 whole answers", pytest.param("h100 three objectives", marks=pytest.mark.long)])
def test_more_answers_are_whole_in_time_where_requests_name_their_size(name: str) -> None:
    silent = goodput(CASES[name])
    assert goodput(replace(CASES[name], sizes=SIZES)) > 1.05 * silent
    assert goodput(replace(CASES[name], sizes=(4096,))) == silent, "a size that all name says nothing"
