"""What the probe finds in the installed vLLM is what the documents say of its version."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flyball_engine.contract import Knob
from flyball_engine.vllm.support import Support
from flyball_lab.harness.launcher import environment
from flyball_lab.repository import ROOT
from support.installed import Installed

pytestmark = pytest.mark.engine

#: What stands in the way of the scheduler, of counting and of refusing, in one process as an API server has them.
_HOOKS = """
import sys
from fastapi import FastAPI
from flyball_engine.batching.gate import Gate
from flyball_engine.batching.outcomes import RequestLedger
from flyball_engine.vllm import plugin
from flyball_engine.vllm.gate import RequestGate, install_gate
from flyball_engine.vllm.requests import install
plugin.register()
gate = RequestGate(Gate(lambda: None), lambda: 0.0, lambda: 0.0)
sys.stderr.write(f"\\n{plugin.failure()}, ")
sys.stderr.write(f"{install(RequestLedger(), FastAPI(), request_gate=gate)}, {install_gate(gate)}")
"""


def test_the_documents_say_what_the_probe_finds(installed: Installed) -> None:
    version, found = installed.support.vllm, installed.support
    known = documented(version)
    assert [
        f"{owner}.{name}: {'there' if there else 'gone or elsewhere'}, not so in the documents"
        for owner, names in found.names.items()
        for name, there in names.items()
        if known.names.get(owner, {}).get(name) != there
    ] == []
    assert page_of(version).exists(), f"{version} is new: hack/gen --versions writes it"
    assert known == found, "hack/gen --versions writes it anew"


def documented(version: str) -> Support:
    """What the documents say of a version; of one that is new to them, what they say of the newest."""
    known = page_of(version)
    if not known.exists():
        known = max(known.parent.glob("*.json"), key=lambda path: [int(part) for part in path.stem.split(".")])
    return Support.model_validate_json(known.read_text())


def page_of(version: str) -> Path:
    return ROOT / f"docs/versions/{version}.json"


def test_every_limit_moves_setpoints_arrive_and_requests_are_counted_and_refused(installed: Installed) -> None:
    found = installed.support
    assert set(found.knobs) == set(Knob)
    assert [
        verdict.how
        for verdict in (*found.knobs.values(), found.setpoints, found.counting, found.gate)
        if not verdict.works
    ] == []


def test_nothing_stands_in_the_way_of_the_hooks(vllm_python: str, tmp_path: Path) -> None:
    asked = subprocess.run(
        [vllm_python, "-c", _HOOKS],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert asked.stderr.splitlines()[-1] == "None, None, None"
