"""What endpoint pickers read of a real vLLM: its own metrics, and how much time a prompt has that comes now."""

from __future__ import annotations

import re

import httpx
import pytest

from flyball_engine.contract import MetricName, OnTime
from flyball_engine.model import StepModel
from flyball_lab.harness.streams import StreamLoad
from flyball_lab.harness.vllm_server import MODEL_NAME
from flyball_lab.harness.waiting import eventually
from support.reflexes import a_budget
from support.served import Served

pytestmark = pytest.mark.engine

#: Steps of few tokens, so that prompts wait.
GUESS = StepModel(t0=0.002, h=0.0, c1=0.0003, c2=0.0003, beta=0.0, g=0.0, kappa=64)
DEADLINE = OnTime(first_token_deadline_seconds=600.0)
IN_TIME = DEADLINE.margin * 600.0


def headroom(served: Served) -> float | None:
    """By the port that requests go to; our own says the same of an engine at rest."""
    pages = (httpx.get(f"{served.server.url}/metrics", timeout=60, trust_env=False).text, served.control.metrics())
    found = [re.findall(rf"^{MetricName.HEADROOM_SECONDS} (\S+)$", page, flags=re.MULTILINE) for page in pages]
    assert len(found[0]) == len(found[1])
    return float(found[0][0]) if found[0] else None


def test_the_port_that_pickers_read_tells_what_time_a_prompt_has(served: Served) -> None:
    served.set()
    assert headroom(served) is None, "nothing is ordered"
    served.set(limits={"max_num_active_seqs": 4}, step=a_budget(0.02, GUESS), on_time=DEADLINE)
    assert headroom(served) == IN_TIME, "nobody is there"
    load = StreamLoad(url=served.server.url, model=MODEL_NAME, concurrency=24, prompt_tokens=300, max_tokens=16)
    with load.running() as totals:
        eventually(lambda: (headroom(served) or IN_TIME) < IN_TIME - 0.2, expecting="less, behind those that wait")
    totals.expect_nothing_lost()
    eventually(lambda: headroom(served) == IN_TIME, expecting="all of it again")
    served.set()
    assert headroom(served) is None
