"""The CRD's list of owned arguments against the installed vLLM's parser: it refuses nothing that is the user's."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from flyball_engine.contract import OWNED_ARGUMENTS
from flyball_operator.api.owned import REFUSED_ARGUMENTS
from support.launcher import environment

pytestmark = pytest.mark.engine

#: Prints {spelling: name} of every option, as vLLM's server takes them.
_LIST = """
import json
from flyball_engine.vllm.arguments import build_parser
options = build_parser()._option_string_actions
print(json.dumps({spelling: action.dest for spelling, action in options.items()}))
"""


@pytest.fixture(scope="module")
def options(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every spelling that the installed vLLM knows, with the argument it means."""
    variables = environment(tmp_path_factory.mktemp("home"))
    command = [vllm_python, "-c", _LIST]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=variables)
    found: dict[str, str] = json.loads(out.stdout.splitlines()[-1])
    return found


def refused(spelling: str) -> bool:
    return any(re.fullmatch(rule.pattern, spelling) for rule in REFUSED_ARGUMENTS)


def test_every_owned_argument_is_refused_in_full(options: dict[str, str]) -> None:
    owned = [spelling for spelling, name in options.items() if name in OWNED_ARGUMENTS]
    assert owned
    assert [spelling for spelling in owned if not refused(spelling)] == []
    assert [spelling for spelling in owned if not refused(f"{spelling}=1")] == []


def test_no_argument_of_the_users_is_refused(options: dict[str, str]) -> None:
    free = [spelling for spelling, name in options.items() if name not in OWNED_ARGUMENTS]
    assert [spelling for spelling in free if refused(spelling) or refused(f"{spelling}=1")] == []
