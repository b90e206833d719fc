"""What the tests on a real vLLM share: its environment, the plugin as a pod finds it, the small model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.installed import Installed, ask
from support.vllm_server import make_model, make_plugin


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The Python of the vLLM environment, which is not this one."""
    python = os.environ.get("FLYBALL_VLLM_PYTHON")
    if not python:
        pytest.skip("FLYBALL_VLLM_PYTHON names no Python with vLLM; hack/test engine does")
    return python


@pytest.fixture(scope="session")
def installed(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """What is known of the vLLM that is tested."""
    return ask(vllm_python, tmp_path_factory.mktemp("asked"))


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH."""
    return make_plugin(tmp_path_factory.mktemp("plugin") / "flyball")


@pytest.fixture(scope="session")
def model(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model."""
    return make_model(vllm_python, tmp_path_factory.mktemp("model") / "tiny")
