"""Settings come from the environment, and wrong ones are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes.aio import client

from flyball_operator.app.main import ExitCode, main
from flyball_operator.app.settings import Settings


def settings(monkeypatch: pytest.MonkeyPatch, **values: str) -> Settings:
    for name, value in values.items():
        monkeypatch.setenv(f"FLYBALL_{name.upper()}", value)
    return Settings()


@pytest.mark.parametrize(
    ("namespaces", "watched"),
    [("", ("home",)), ("a, b,a", ("a", "b")), ("*", (None,))],
)
def test_namespaces(monkeypatch: pytest.MonkeyPatch, namespaces: str, watched: tuple[str | None, ...]) -> None:
    assert settings(monkeypatch, namespaces=namespaces, pod_namespace="home").watched == watched


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("namespaces", "*,a"),
        ("namespaces", "No_Name"),
        ("metrics_port", "0"),
        ("tick_seconds", "never"),
        ("prometheus_url", "prometheus:9090"),
        ("log_level", "LOUD"),
    ],
)
def test_a_wrong_setting_ends_the_process_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    monkeypatch.setenv(f"FLYBALL_{name.upper()}", value)
    assert main() == ExitCode.MISCONFIGURED
    assert f"FLYBALL_{name.upper()}" in capsys.readouterr().err


def test_a_signing_key_that_is_none_ends_the_process_and_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async def reachable() -> client.Configuration:
        return client.Configuration()

    monkeypatch.setattr("flyball_operator.app.main.load_configuration", reachable)
    monkeypatch.setattr("flyball_operator.app.main.configure_logging", lambda *_: None)
    key = tmp_path / "key.pem"
    key.write_text("no key")
    monkeypatch.setenv("FLYBALL_SIGNING_KEY_FILE", str(key))
    assert main() == ExitCode.MISCONFIGURED
    assert str(key) in caplog.text
    assert "Traceback" not in caplog.text
