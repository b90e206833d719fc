"""`flyball doctor` from within, as `helm test` runs it: against a real exporter and a real Prometheus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flyball_lab.harness.ports import free_port
from flyball_lab.harness.prometheus import ADDRESS, ScrapeJob, prometheus
from flyball_operator.app.telemetry import Health, TelemetryServer
from flyball_operator.cli.doctor.findings import Finding, Level
from flyball_operator.cli.doctor.within import ask_within
from flyball_operator.reconcile.metrics import Metrics


@asynccontextmanager
async def exporter() -> AsyncIterator[str]:
    """The address of an operator's exporter."""
    port = free_port()
    server = TelemetryServer(Metrics(), Health(lambda: ()), port)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop()


def level(finding: Finding) -> tuple[str, Level]:
    return finding.check, finding.level


async def test_an_operator_and_a_prometheus_that_answer_are_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with exporter() as address:
        with prometheus(tmp_path, jobs=[ScrapeJob("operator", [{ADDRESS: address}])]) as running:
            monkeypatch.setenv("FLYBALL_PROMETHEUS_URL", running.url)
            found = await ask_within(metrics=f"http://{address}/metrics", prometheus=True)
    assert list(map(level, found)) == [("metrics-port", Level.OK), ("prometheus-answers", Level.OK)]


async def test_what_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("FLYBALL_PROMETHEUS_URL", nowhere)
    port, asked = await ask_within(metrics=f"{nowhere}/metrics", prometheus=True)
    assert level(port) == ("metrics-port", Level.FAIL)
    assert f"{nowhere}/metrics does not answer: " in port.message
    assert level(asked) == ("prometheus-answers", Level.FAIL)


async def test_an_exporter_is_no_prometheus_and_a_prometheus_no_exporter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with exporter() as address:
        monkeypatch.setenv("FLYBALL_PROMETHEUS_URL", f"http://{address}")
        (asked,) = await ask_within(metrics=None, prometheus=True)
        (missing,) = await ask_within(metrics=f"http://{address}/none", prometheus=False)
    assert level(asked) == ("prometheus-answers", Level.FAIL)
    assert missing.message.endswith("/none answers 404")
    with prometheus(tmp_path) as running:
        (port,) = await ask_within(metrics=f"{running.url}/metrics", prometheus=False)
    assert level(port) == ("metrics-port", Level.FAIL)
    assert port.message.endswith("has no metrics of an operator")


async def test_a_wrong_setting_is_named_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYBALL_PROMETHEUS_URL", "prometheus:secret")
    (asked,) = await ask_within(metrics=None, prometheus=True)
    assert level(asked) == ("prometheus-answers", Level.FAIL)
    assert "FLYBALL_PROMETHEUS_URL" in asked.message
    assert "secret" not in asked.message
