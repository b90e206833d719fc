"""The endpoint plugin is a guest in vLLM's process: whatever it meets, it raises nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flyball_engine.contract import Env
from flyball_engine.control.server import bind
from flyball_engine.vllm.endpoint import FlyballControl


async def test_a_taken_port_is_logged_and_vllm_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with bind("127.0.0.1", 0) as taken:
        monkeypatch.setenv(Env.CONTROL_PORT, str(taken.getsockname()[1]))
        await FlyballControl().init_state(SimpleNamespace(), SimpleNamespace(), SimpleNamespace(host="127.0.0.1"))
    assert "ControlPortFailed" in caplog.text
    assert "in use" in caplog.text


async def test_a_server_without_an_engine_gets_no_control_port(caplog: pytest.LogCaptureFixture) -> None:
    await FlyballControl().init_state(None, SimpleNamespace(), SimpleNamespace(host="127.0.0.1"))
    assert caplog.text == ""


def test_what_cannot_be_counted_is_logged_and_vllm_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    FlyballControl().attach_router(object())
    assert "RequestsNotCounted" in caplog.text
