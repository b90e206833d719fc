"""What the probe finds in the installed vLLM is what the documents say of its version."""

from __future__ import annotations

import pytest

from flyball_engine.contract import Knob
from flyball_engine.vllm.support import Support
from support.installed import Installed
from support.vllm_server import ROOT

pytestmark = pytest.mark.engine


def test_the_documents_say_what_the_probe_finds(installed: Installed) -> None:
    documented = ROOT / f"docs/versions/{installed.support.vllm}.json"
    assert documented.exists(), "hack/gen --versions writes it"
    assert Support.model_validate_json(documented.read_text()) == installed.support, (
        "hack/gen --versions writes it anew"
    )


def test_every_limit_moves_setpoints_arrive_and_requests_are_counted_and_refused(installed: Installed) -> None:
    found = installed.support
    assert set(found.knobs) == set(Knob)
    assert [
        verdict.how
        for verdict in (*found.knobs.values(), found.setpoints, found.counting, found.gate)
        if not verdict.works
    ] == []
