"""The plugin in an image: nothing where no service is named, all that the launcher would set where one is."""

from __future__ import annotations

import os

import pytest

from flyball_engine.contract import Env
from flyball_engine.vllm import entry, plugin


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What the entry point did; the environment is as in an image that knows nothing of Flyball."""
    for name in ("VLLM_PLUGINS", "VLLM_USE_RUST_FRONTEND", *Env):
        monkeypatch.delenv(name, raising=False)
    calls: list[bool] = []
    monkeypatch.setattr(plugin, "register", lambda: calls.append(True))
    return calls


def test_where_nobody_asks_for_it_vllm_stays_as_it_is(registered: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    before = dict(os.environ)
    entry.load()
    assert not registered
    assert dict(os.environ) == before


@pytest.mark.parametrize("asks", [Env.SERVICE_UID, Env.STATE_DIR])
def test_the_service_or_the_launcher_asks_for_it(
    registered: list[bool], asks: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(asks, "here")
    monkeypatch.setenv("VLLM_PLUGINS", "")
    entry.load()
    assert registered


@pytest.mark.parametrize(
    ("named", "loaded"),
    [
        ("", "flyball,flyball_control"),
        ("theirs,flyball", "theirs,flyball,flyball_control"),
        ("flyball,flyball_control", "flyball,flyball_control"),
    ],
)
def test_the_control_port_is_named_beside_the_users_plugins(named: str, loaded: str) -> None:
    environment = {"VLLM_PLUGINS": named}
    entry.prepare(environment)
    assert environment["VLLM_PLUGINS"] == loaded


def test_where_none_are_named_all_that_are_installed_go_on_being_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "installed_plugins", lambda: ["flyball", "theirs"])
    environment: dict[str, str] = {}
    entry.prepare(environment)
    assert environment["VLLM_PLUGINS"] == "theirs,flyball,flyball_control"


def test_the_rust_front_end_which_has_no_plugins_is_dropped() -> None:
    environment = {"VLLM_USE_RUST_FRONTEND": "1", "VLLM_RUST_FRONTEND_PATH": "/bin/front"}
    entry.prepare(environment)
    assert list(environment) == ["VLLM_PLUGINS"]
