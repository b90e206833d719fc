"""`flyball watch` as it is typed: against an API server over HTTP, by a kubeconfig alone, and on a terminal."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.harness.manifests import Object, good
from flyball_lab.harness.terminal import on_terminal
from flyball_lab.harness.waiting import eventually
from flyball_operator.kube.resources import INFERENCE_SERVICES
from support.stored_api import Command, StoredApi, served


def a_service(seqs: int) -> Object:
    setpoint = {"maxNumActiveSeqs": seqs, "maxNumScheduledTokens": 1024}
    return good(metadata__namespace="team") | {"status": {"tuning": {"setpoint": setpoint}}}


@pytest.fixture
def api() -> StoredApi:
    found = StoredApi()
    found.put(INFERENCE_SERVICES, a_service(48))
    return found


@pytest.fixture
def typed(api: StoredApi, command: Command) -> Command:
    return partial(command, api, "watch", namespace="team")


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
    with (
        served(api, tmp_path, namespace="team") as path,
        on_terminal("watch", "chat", "--interval", "0.5", KUBECONFIG=str(path)) as terminal,
    ):
        terminal.expect("48 at once", expecting="the limits")
        api.put(INFERENCE_SERVICES, a_service(32))
        terminal.expect("32 at once", expecting="other limits")
        assert terminal.interrupt() == (130, "flyball: interrupted\n")


def test_lines_of_json_go_on_once_the_api_server_answers_again(api: StoredApi, tmp_path: Path) -> None:
    with (
        served(api, tmp_path, namespace="team") as path,
        on_terminal("watch", "chat", "-o", "json", "--interval", "0.5", KUBECONFIG=str(path)) as terminal,
    ):
        terminal.expect('"requests": 48', expecting="the limits")
        api.away, asked = True, len(api.requests)
        # Whoever was asking when it went away may have had an answer.
        eventually(lambda: len(api.requests) > asked + 2, expecting="a look without an answer")
        api.away = False
        api.put(INFERENCE_SERVICES, a_service(32))
        terminal.expect('"requests": 32', expecting="other limits")
        code, complaints = terminal.interrupt(draws=False)
    assert code == 130
    complaint, interrupted = complaints.splitlines()
    assert complaint.startswith("flyball watch: ")
    assert interrupted == "flyball: interrupted"
