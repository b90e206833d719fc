"""What the operator's own port serves of its metrics: all of them, or those that are asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from flyball_lab.harness.ports import free_port
from flyball_operator.app.telemetry import Health, TelemetryServer
from flyball_operator.reconcile.metrics import Metrics


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """The page of an operator with two figures of its own, of which one must not be read."""

    def unread() -> float:
        raise AssertionError("this one was not asked for")

    metrics, port = Metrics(), free_port()
    metrics.watch("flyball_operator_queue_depth", "Services that wait", lambda: 3.0)
    metrics.watch("flyball_operator_leader", "1 while this process may write", unread)
    server = TelemetryServer(metrics, Health(tuple), port)
    await server.start()
    yield f"http://127.0.0.1:{port}/metrics"
    await server.stop()


async def test_what_is_not_asked_for_by_name_is_not_collected(url: str) -> None:
    asked = [("name[]", "flyball_operator_queue_depth"), ("name[]", "flyball_operator_nothing")]
    async with aiohttp.ClientSession() as session, session.get(url, params=asked) as answer:
        assert answer.status == 200
        lines = [line for line in (await answer.text()).splitlines() if not line.startswith("#")]
    assert lines == ["flyball_operator_queue_depth 3.0"]
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 500, "all are collected"
