"""A real vLLM is Ready once it has answered a request and runs under a setpoint; its health is as ever meanwhile."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import httpx
import pytest

from flyball_engine.contract import HEALTH_PATH, METRICS_PATH, READY_HEADER, MetricName
from flyball_lab.harness.engine import ControlClient, setpoint
from flyball_lab.harness.vllm_server import VllmServer, started
from flyball_lab.harness.waiting import eventually

pytestmark = pytest.mark.engine


def probed(server: VllmServer) -> str:
    """What a readiness probe hears, empty where all is well."""
    answer = httpx.get(server.url + HEALTH_PATH, headers={READY_HEADER: "yes"}, timeout=30, trust_env=False)
    assert answer.status_code in (200, 503)
    return "" if answer.status_code == 200 else answer.text


def counted(url: str, metric: str) -> float:
    """A counter of the server's, over all labels."""
    text = httpx.get(url + METRICS_PATH, timeout=30, trust_env=False).text
    lines = [line for line in text.splitlines() if line.startswith(metric)]
    assert lines, f"no {metric}"
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_an_engine_behind_a_key_answers_a_request_of_its_own_and_then_waits_for_its_setpoint(
    server_python: str, plugin: Path, model: Path, tmp_path: Path
) -> None:
    with started(server_python, tmp_path, model=model, plugin=plugin, user=["--api-key=secret"]) as server:
        server.expect_ready()
        eventually(lambda: "no setpoint yet" in probed(server), expecting="an answer", within=120, every=0.2)
        with closing(ControlClient(server.control_url, server.signer)) as control:
            control.put(setpoint(1))
        eventually(lambda: probed(server) == "", expecting="the engine to be Ready", within=20)
        assert counted(server.url, "vllm:generation_tokens_total") == 2
        assert counted(server.control_url, MetricName.REQUESTS) == 0, "it is nobody's request"
