"""`flyball` as it is typed: against an API server over HTTP that holds what a test put there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flyball_operator.cli.entry import main
from support.stored_api import Command, StoredApi, served


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command against an API server, by a kubeconfig alone; what it printed."""

    def run(api: StoredApi, *arguments: str, code: int = 0, namespace: str = "default") -> Any:
        with served(api, tmp_path, namespace=namespace) as kubeconfig:
            monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
            assert main(list(arguments)) == code
        return capsys.readouterr()

    return run
