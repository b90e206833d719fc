"""The CRD's list of refused arguments against the installed vLLM's parser: it refuses nothing that is the user's."""

from __future__ import annotations

import re

import pytest

from flyball_engine.launching import IMPOSSIBLE_ARGUMENTS, OWNED_ARGUMENTS
from flyball_operator.api.owned import REFUSED_ARGUMENTS
from support.installed import Installed

pytestmark = pytest.mark.engine


REFUSED = {*OWNED_ARGUMENTS, *IMPOSSIBLE_ARGUMENTS}


def refused(spelling: str) -> bool:
    return any(re.fullmatch(rule.pattern, spelling) for rule in REFUSED_ARGUMENTS)


def test_every_such_argument_is_refused_in_full(installed: Installed) -> None:
    ours = [spelling for spelling, name in installed.options.items() if name in REFUSED]
    assert ours
    assert [spelling for spelling in ours if not refused(spelling)] == []
    assert [spelling for spelling in ours if not refused(f"{spelling}=1")] == []


def test_no_argument_of_the_users_is_refused(installed: Installed) -> None:
    free = [spelling for spelling, name in installed.options.items() if name not in REFUSED]
    assert [spelling for spelling in free if refused(spelling) or refused(f"{spelling}=1")] == []
