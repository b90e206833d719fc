"""Colours are for terminals, and for nobody who set NO_COLOR; a screen is drawn anew, and left as it was."""

from __future__ import annotations

import io
import sys

import pytest

from flyball_operator.cli.terminal import RED, Screen, coloured, fitting, printable, redraws, wrapped


@pytest.mark.parametrize(
    ("terminal", "variables", "shown"),
    [
        (True, {}, "\x1b[31mFAIL\x1b[0m"),
        (True, {"NO_COLOR": "1"}, "FAIL"),
        (True, {"TERM": "dumb"}, "FAIL"),
        (False, {}, "FAIL"),
    ],
)
def test_colours(monkeypatch: pytest.MonkeyPatch, terminal: bool, variables: dict[str, str], shown: str) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert coloured("FAIL", RED) == shown
    assert redraws() is (terminal and "TERM" not in variables)


def test_what_a_terminal_would_obey_is_not_passed_on() -> None:
    assert printable("a\x1b[31mb\x07") == "a\N{REPLACEMENT CHARACTER}[31mb\N{REPLACEMENT CHARACTER}"
    assert "\x1b" not in wrapped("a\x1b[2Jb")


@pytest.mark.parametrize("terminal", [True, False])
def test_lines_fit_a_terminal_and_are_whole_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("COLUMNS", "40")
    row = "  ttft             TimeToFirstToken within 500ms for 99 %"
    found = fitting(f"objectives\n{row}")
    assert found.splitlines()[0] == "objectives"
    assert all(len(line) <= 40 for line in found.splitlines()) is terminal
    assert found.split() == ["objectives", *row.split()]
    assert found.splitlines()[2:] == ([] if not terminal else ["      within 500ms for 99 %"])


def test_a_screen_shows_what_there_is_room_for_and_says_what_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "5")
    monkeypatch.setenv("COLUMNS", "80")
    out = io.StringIO()
    with Screen(out) as screen:
        screen.draw([f"line {number}" for number in range(10)])
    said = out.getvalue()
    assert "line 2" in said
    assert "line 3" not in said
    assert "… and 7 more" in said


def test_a_screen_is_left_as_it_was_also_after_an_error() -> None:
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Screen(out):
        raise KeyboardInterrupt
    assert out.getvalue().endswith("\x1b[?25h\x1b[?1049l")
