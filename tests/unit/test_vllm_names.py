"""Every name of vLLM's that the plugin uses is one that the probe looks for."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from flyball_engine import vllm
from flyball_engine.contract import QueueKnob
from flyball_engine.vllm import compat, means
from flyball_engine.vllm.compat import EVERYTHING
from support.vllm_names import Names, used_names

PLUGIN = Path(vllm.__file__).parent
#: Names of other libraries, which do not change from one vLLM to the next: of argparse, of FastAPI, of OpenAI's API
#: as vLLM serves it.
PUBLIC = {
    "arguments.py": {
        "_actions", "dest", "error", "option_strings", "parse_args", "parse_known_args", "print_help",
    },
    # `openai_serving_models` is of an object without a class. Without it, each adapter is said to have failed.
    "endpoint.py": {"api_key", "host", "model_type", "openai_serving_models", "path", "routes"},
    "gate.py": {"max_completion_tokens", "max_output_tokens", "max_tokens", "model", "priority"},
    "requests.py": {"add_middleware"},
    "serve.py": {"parse_args"},
    "warm_up.py": {"add_middleware"},
}  # fmt: skip
#: Files that look at attributes by names of the contract's own, and at whatever they are told.
BY_OTHER_NAMES = {"queue_limiter.py", "wrapping.py"}
LISTED = {used.name: {*used.needed, *used.optional} for used in EVERYTHING}
FILES = sorted(path.name for path in PLUGIN.glob("*.py"))


@cache
def found() -> dict[str, Names]:
    """What the plugin's files use, read when a test asks: to collect tests needs none of it."""
    return used_names(PLUGIN)


def found_in(source: str, folder: Path) -> Names:
    (folder / "one.py").write_text(source)
    return used_names(folder)["one.py"]


@pytest.mark.parametrize("file", FILES)
def test_what_is_read_of_vllm_s_objects_is_in_the_list(file: str) -> None:
    known = set().union(*LISTED.values(), PUBLIC.get(file, ()))
    assert {name: f"{file}:{line}" for name, line in found()[file].attributes.items() if name not in known} == {}
    assert file in BY_OTHER_NAMES or found()[file].unclear == [], "lines with a name that cannot be made out"


@pytest.mark.parametrize("file", FILES)
def test_what_is_imported_from_vllm_is_in_the_list(file: str) -> None:
    owners = {f"{used.module}.{used.name}" for used in EVERYTHING}
    names = {f"{used.module}.{used.name}.{name}" for used in EVERYTHING for name in LISTED[used.name]}
    assert {name: f"{file}:{line}" for name, line in found()[file].imports.items() if name not in owners | names} == {}


def test_what_a_queue_has_of_python_s_is_in_the_list_too() -> None:
    """vLLM's queue by arrival is a deque now. It may become something else."""
    source = (PLUGIN / "queue.py").read_text()
    used = {*re.findall(r"\bwaiting\.(\w+)\(", source), *re.findall(r"hasattr\(waiting, \"(\w+)\"\)", source)}
    assert {"extendleft", "popleft", "rotate", "appendleft"} <= used
    assert used - LISTED["RequestQueue"] - LISTED["FCFSRequestQueue"] == set()


def test_what_is_in_the_list_is_used() -> None:
    lists = {Path(compat.__file__), Path(means.__file__)}
    source = "".join(path.read_text() for path in PLUGIN.glob("*.py") if path not in lists)
    words = {*re.findall(r"\w+", source), *(knob.name.lower() for knob in QueueKnob)}
    unused = {owner: names - words for owner, names in LISTED.items() if names - words}
    assert unused == {}


@pytest.mark.parametrize(
    "line",
    [
        "theirs.unlisted",
        "theirs.unlisted = 1",
        "theirs[0].unlisted",
        "theirs.running()[0].unlisted",
        "[each.unlisted for each in theirs.running]",
        "sorted(each.unlisted for _, each in enumerate(theirs.running))",
        "getattr(theirs, 'unlisted', None)",
        "hasattr(theirs, NAME)",
        "[name for name in NAMES if not hasattr(theirs, name)]",
        "[name for name in TABLE if not hasattr(theirs, name)]",
        "other, mine = theirs, 1\n    other.unlisted",
        "for each in list(theirs.running):\n        each.unlisted",
        "self.kept = theirs\n    self.kept.unlisted",
        "next(reversed(theirs)).unlisted",
        "copy.copy(theirs).unlisted",
        "from vllm.module import Class\n    Class.unlisted",
        "given().unlisted",
    ],
)
def test_a_name_is_found_however_it_is_reached(line: str, tmp_path: Path) -> None:
    source = f"""
NAME = "unlisted"
NAMES = ("unlisted",)
TABLE = {{"unlisted": 1}}

def given() -> Any:
    return None

def method(self, theirs: Any, mine: Mine):
    {line}
"""
    assert "unlisted" in found_in(source, tmp_path).attributes


@pytest.mark.parametrize(
    "line",
    [
        "mine.unlisted",
        "theirs.items()",
        "theirs.flyball.unlisted",
        "mine.field.unlisted",
        "len(mine.all).unlisted",
        "held.unlisted",
    ],
)
def test_what_is_ours_or_python_s_is_none_of_vllm_s(line: str, tmp_path: Path) -> None:
    source = f"def method(self, theirs: Any, mine: Mine, held: Held[Any]):\n    {line}\n"
    assert found_in(source, tmp_path).attributes == {}


def test_what_is_imported_is_found_with_its_module(tmp_path: Path) -> None:
    found = found_in("def method():\n    from vllm.module import Class, other\n", tmp_path)
    assert set(found.imports) == {"vllm.module.Class", "vllm.module.other"}


def test_a_name_that_cannot_be_made_out_is_said_to_be(tmp_path: Path) -> None:
    assert found_in("def method(theirs: Any, name: str):\n    hasattr(theirs, name)\n", tmp_path).unclear == [2]
