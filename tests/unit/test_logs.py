"""Each line of the operator's log is one JSON object with the same fields."""

from __future__ import annotations

import json
import logging
import logging.config
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from kopf import OperatorSettings
from kopf._cogs.structs.bodies import Body
from kopf._core.actions.loggers import ObjectLogger

from flyball_engine.log_events import EngineLogEvent, EventLog
from flyball_lab.tools.log_events import engine_lines, logged_lines
from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.app.settings import LogFormat, LogLevel
from flyball_operator.app.telemetry import configure_logging, json_formatter


def line(**fields: Any) -> dict[str, Any]:
    record = logging.makeLogRecord({"name": "flyball", "levelname": "INFO", "created": 1.5} | fields)
    text = json_formatter().format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_line_says_when_how_grave_where_and_what() -> None:
    found = line(msg="%s: %d pods", args=("team/chat", 2))
    assert list(found) == ["time", "level", "logger", "message"]
    assert datetime.fromisoformat(found["time"]) == datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    assert (found["level"], found["logger"], found["message"]) == ("INFO", "flyball", "team/chat: 2 pods")


def test_what_else_a_record_has_is_written_as_json_or_as_text() -> None:
    found = line(msg="", pods=3, where=object)
    assert found["pods"] == 3
    assert isinstance(found["where"], str)


def test_a_line_names_its_event_and_what_it_is_about() -> None:
    found = line(msg="push failed", **logged(LogEvent.PUSH_FAILED, "team", "chat"))
    assert list(found)[4:] == ["event", "namespace", "service"]
    assert (found["event"], found["namespace"], found["service"]) == ("PushFailed", "team", "chat")


def test_every_line_of_the_operator_names_an_event_and_every_event_has_a_line() -> None:
    assert {event for event, _ in logged_lines()} == set(LogEvent.__members__)


def test_every_line_of_the_engine_names_an_event_and_every_event_has_a_line() -> None:
    assert {event for event, _ in engine_lines()} == set(EngineLogEvent.__members__)


def test_the_engine_names_the_event_in_the_message_and_as_a_field(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise OSError("disk full")
    except OSError:
        EventLog("flyball_engine.vllm.plugin").exception(EngineLogEvent.NOT_GOVERNED, "cannot govern %r", 3)
    (record,) = caplog.records
    assert record.getMessage() == "Flyball NotGoverned: cannot govern 3"
    assert (record.levelname, record.__dict__["event"], record.filename) == ("ERROR", "NotGoverned", "test_logs.py")
    assert "disk full" in caplog.text


def test_the_engine_s_lines_go_where_vllm_s_go_though_a_user_says_where_after_the_plugin_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log, theirs = EventLog("flyball_engine.of_this_test"), logging.getLogger("vllm")
    before = theirs.handlers[:], theirs.propagate, theirs.level
    # As in vLLM's documents: without disable_existing_loggers, so that all others are disabled.
    console = {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}
    vllm = {"handlers": ["console"], "level": "INFO", "propagate": False}
    loggers = [one for one in logging.Logger.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    enabled = [one for one in loggers if not one.disabled]
    try:
        logging.config.dictConfig({"version": 1, "handlers": {"console": console}, "loggers": {"vllm": vllm}})
        log.info(EngineLogEvent.WARM_UP_ENDED, "open")
    finally:
        for one in enabled:
            one.disabled = False
        theirs.handlers, theirs.propagate = before[:2]
        theirs.setLevel(before[2])
    assert capsys.readouterr().out == "Flyball WarmUpEnded: open\n"


def test_an_exception_is_written_with_its_traceback() -> None:
    try:
        raise ValueError("no such pod")
    except ValueError:
        found = line(msg="failed", exc_info=sys.exc_info())
    assert found["message"] == "failed"
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: no such pod")


@contextmanager
def configured(form: LogFormat) -> Iterator[None]:
    """The operator's log, as it is configured in this form."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure_logging(LogLevel.INFO, form)
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def test_a_line_of_text_has_the_event_before_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    with configured(LogFormat.TEXT):
        logging.getLogger("ours").info("leads", extra=logged(LogEvent.LEADING))
        logging.getLogger("theirs").info("goes on")
    ours, theirs = capsys.readouterr().err.splitlines()
    assert ours.endswith("INFO    ours Leading: leads")
    assert theirs.endswith("INFO    theirs -: goes on")


def test_what_kopf_says_of_an_object_is_one_line_with_the_object(capsys: pytest.CaptureFixture[str]) -> None:
    body: Any = {"kind": "InferenceService", "metadata": {"name": "chat", "namespace": "team", "uid": "u"}}
    with configured(LogFormat.JSON):
        ObjectLogger(body=Body(body), settings=OperatorSettings()).error("Handler %r failed", "seen")
    (written,) = capsys.readouterr().err.splitlines()
    found = json.loads(written)
    assert (found["level"], found["message"]) == ("ERROR", "Handler 'seen' failed")
    assert found["k8s_ref"]["name"] == "chat"
    assert "settings" not in found
