"""Every constant of the law is used, has a unit, and is the same for the whole process."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from flyball_lab.benches.law.ablation import INERT, OFF, changed, names
from flyball_lab.benches.law.random_scenarios import random_scenarios
from flyball_lab.tools import reference
from flyball_operator import tuning
from flyball_operator.tuning.tunables import TUNABLES, Tunables

SOURCES = Path(tuning.__file__).parent
NAMES = [one.name for one in fields(Tunables)]


@pytest.fixture(scope="module")
def sources() -> str:
    """All that may use one."""
    return "".join(path.read_text() for path in SOURCES.rglob("*.py"))


@pytest.fixture(scope="module")
def page() -> str:
    """Where each has its row."""
    return reference.tunables_page()


@pytest.mark.parametrize("name", NAMES)
def test_each_is_used_and_has_its_row(name: str, sources: str, page: str) -> None:
    assert re.search(rf"TUNABLES\.{name}\b", sources), "what nothing reads is to be deleted"
    assert re.search(rf"^\| `{name}` \| .+ \| .+ \| .+ \|$", page, re.MULTILINE)


def test_nobody_moves_one_by_accident() -> None:
    with pytest.raises(FrozenInstanceError):
        TUNABLES.huber = 1.0  # type: ignore[misc] # that is the point


@pytest.mark.parametrize("name", names())
def test_an_ablation_tries_another_value_of_each(name: str) -> None:
    tried = list(changed(name))
    assert all(one == name and value != getattr(TUNABLES, name) for one, value in tried)
    assert tried


def test_what_is_switched_off_is_there() -> None:
    assert set(OFF) <= set(names())
    assert set(INERT) <= set(NAMES)


def test_scenarios_made_from_a_seed_are_the_same_ones_each_time_and_all_have_requests() -> None:
    made = random_scenarios(12)
    assert made == random_scenarios(12)
    assert made[:1] != random_scenarios(1, seed=2)
    assert len({case.name for case in made}) == 12
    assert all(case.requests(1) for case in made)
