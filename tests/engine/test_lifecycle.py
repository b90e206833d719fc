"""The launcher becomes vLLM: what a signal does is vLLM's own doing."""

from __future__ import annotations

import json
import signal

import httpx
import pytest

from flyball_lab.harness.vllm_server import MODEL_NAME
from support.served import Served

pytestmark = pytest.mark.engine

TOKENS = 150


@pytest.mark.ends_server
def test_a_stream_is_drained_on_sigterm_and_the_process_ends_well(served: Served) -> None:
    server = served.server
    body = {
        "model": MODEL_NAME,
        "prompt": "hello",
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120, trust_env=False) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        events = [next(lines)]
        server.process.send_signal(signal.SIGTERM)
        events += lines
    assert events[-1] == "data: [DONE]", server.tail()
    # Where a client is slow to read, an event has several tokens.
    assert json.loads(events[-2][6:])["usage"]["completion_tokens"] == TOKENS
    server.process.wait(timeout=120)
    assert server.process.returncode == 0, server.tail()
