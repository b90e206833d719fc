"""`flyball watch` as it is typed: against an API server over HTTP, by a kubeconfig alone, and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.harness.manifests import Object, good
from flyball_lab.harness.waiting import eventually
from flyball_operator.cli.main import main
from flyball_operator.kube.resources import INFERENCE_SERVICES
from support.exercises import hear_interrupts
from support.stored_api import StoredApi, served


def a_service(seqs: int) -> Object:
    setpoint = {"maxNumActiveSeqs": seqs, "maxNumScheduledTokens": 1024}
    return good(metadata__namespace="team") | {"status": {"tuning": {"setpoint": setpoint}}}


@pytest.fixture
def api() -> StoredApi:
    found = StoredApi()
    found.put(INFERENCE_SERVICES, a_service(48))
    return found


@pytest.fixture
def typed(api: StoredApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str, code: int = 0) -> Any:
        with served(api, tmp_path, namespace="team") as path:
            monkeypatch.setenv("KUBECONFIG", str(path))
            assert main(["watch", *arguments]) == code
        return capsys.readouterr()

    return run


def test_without_a_terminal_it_is_printed_once(typed: Any) -> None:
    said = typed("chat").out
    assert "48 at once" in said
    assert "\x1b" not in said
    assert max(map(len, said.splitlines())) <= 80


def test_as_json_it_is_a_document_of_one_line(typed: Any) -> None:
    (line,) = typed("chat", "--once", "-o", "json").out.splitlines()
    assert json.loads(line)["row"]["requests"] == 48


def test_a_service_that_is_not_there_ends_with_1(typed: Any) -> None:
    assert "no InferenceService other in namespace team" in typed("other", code=1).err


def test_on_a_terminal_it_is_live_until_ctrl_c(api: StoredApi, tmp_path: Path) -> None:
    outer, inner = pty.openpty()
    shown = ""

    def sees(text: str) -> bool:
        nonlocal shown
        shown += os.read(outer, 65536).decode(errors="ignore")
        return text in shown

    with served(api, tmp_path, namespace="team") as path:
        ended = subprocess.Popen(
            [sys.executable, "-m", "flyball_operator.cli", "watch", "chat", "--interval", "0.5"],
            stdout=inner,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "KUBECONFIG": str(path), "TERM": "xterm"},
            preexec_fn=hear_interrupts,  # noqa: PLW1509 – no thread of ours runs yet
        )
        os.close(inner)
        eventually(lambda: sees("48 at once"), expecting="the limits")
        api.put(INFERENCE_SERVICES, a_service(32))
        eventually(lambda: sees("32 at once"), expecting="other limits")
        ended.send_signal(signal.SIGINT)
        eventually(lambda: sees("\x1b[?1049l"), expecting="the screen from before")
        _, complained = ended.communicate(timeout=60)
    os.close(outer)
    assert ended.returncode == 130
    assert complained == "flyball: interrupted\n"
