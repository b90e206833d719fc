"""What all clients of a control port make of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from flyball_engine.contract import ErrorBody, Generation, ReadBack, Refusal
from flyball_engine.control_port import ForeignAnswerError, answer_of, unconfirmed
from flyball_engine.signing import Signer
from flyball_lab.benchmark import control
from flyball_lab.benchmark.control import ControlPort
from flyball_lab.benchmark.errors import ControlError
from flyball_lab.harness.engine import SetpointSigner, setpoint

EMPTY = ReadBack(service="s", plugin_version="1", engine_version="1", governed=True, accepted=None, cores=())
REFUSED = ErrorBody(error=Refusal.BAD_TOKEN, message="another key")


def test_an_answer_is_a_read_back_or_a_refusal() -> None:
    assert answer_of(200, EMPTY.model_dump_json().encode()) == EMPTY
    assert answer_of(401, REFUSED.model_dump_json().encode()) == REFUSED


def test_fields_of_a_newer_plugin_are_passed_over() -> None:
    assert answer_of(200, EMPTY.model_dump_json().encode()[:-1] + b', "later": 1}') == EMPTY
    assert answer_of(401, REFUSED.model_dump_json().encode()[:-1] + b', "later": 1}') == REFUSED


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, b"hello", "no read-back: 1 fields are wrong"),
        (200, b'{"service": 1}', "first: service: "),
        (502, b"<html>", "HTTP 502 without a reason of the contract"),
    ],
)
def test_what_is_neither_is_named(status: int, body: bytes, says: str) -> None:
    with pytest.raises(ForeignAnswerError, match=says):
        answer_of(status, body)


def test_a_setpoint_that_no_core_confirms_is_not_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unconfirmed(EMPTY, Generation(epoch=1, generation=1)) is not None

    def ask(_url: str, **_how: Mapping[str, Any]) -> tuple[int, bytes]:
        return 200, EMPTY.model_dump_json().encode()

    monkeypatch.setattr(control, "ask", ask)
    with pytest.raises(ControlError, match="--control: http://e: no engine core answers, so none has confirmed"):
        ControlPort("http://e").write(setpoint(1), Signer(SetpointSigner().key))
