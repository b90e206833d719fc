"""The mix changes: limits that were right for long prompts and short answers must not be in the way of what follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from flyball_lab.benches.law.contenders import Contender, contenders, play, the_law
from flyball_lab.benches.law.scenarios import Scenario, scenario

#: A small grid: its best is nearly that of a large one.
GRID = tuple(one for one in contenders((32, 64, 256), (512, 2048, 8192)) if one.in_grid)
CODE, CHAT = "code", "conversation"


def shifting(*phases: tuple[float, str]) -> Scenario:
    return replace(scenario("h100 chat"), phases=phases)


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(shifting((9, CODE), (17, CHAT), (8, CHAT)), marks=pytest.mark.long),
        shifting((8, CODE), (16, CHAT), (8, CODE), (16, CHAT)),
        pytest.param(shifting((7, CHAT), (9, CODE), (20, CHAT), (7, CHAT)), marks=pytest.mark.long),
    ],
    ids=["code and then more chats than are carried", "by turns", "chats, code, and twice as many chats"],
)
def test_chats_after_code_find_places(scene: Scenario, note_figure: Callable[[str], None]) -> None:
    def goodput(policy: Contender) -> float:
        return play(scene, policy, 1, gate=False).goodput

    law, best = goodput(the_law(5.0)), max(map(goodput, GRID))
    note_figure(f"goodput {law:.2f}/s by the law, {best:.2f}/s by the best of {len(GRID)} fixed limits")
    assert law >= 0.97 * best
