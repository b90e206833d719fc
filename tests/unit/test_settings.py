"""Settings come from the environment, and wrong ones are refused by name."""

from __future__ import annotations

import pytest

from flyball_operator.shell.main import Exit, main
from flyball_operator.shell.settings import Settings


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
    assert main() == Exit.MISCONFIGURED
    assert f"FLYBALL_{name.upper()}" in capsys.readouterr().err
