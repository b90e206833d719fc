"""Every constant of the law is used, has a unit, and is the same for the whole process."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

import reference
from bench.law_ablate import INERT, OFF, changed, names
from flyball_operator import tuning
from flyball_operator.tuning.tunables import TUNABLES, Tunables

SOURCES = Path(tuning.__file__).parent
NAMES = [one.name for one in fields(Tunables)]


@pytest.mark.parametrize("name", NAMES)
def test_each_is_used_and_has_its_row(name: str) -> None:
    users = [path for path in SOURCES.rglob("*.py") if re.search(rf"TUNABLES\.{name}\b", path.read_text())]
    assert users, "what nothing reads is to be deleted"
    assert re.search(rf"^\| `{name}` \| .+ \| .+ \| .+ \|$", reference.tunables_page(), re.MULTILINE)


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
