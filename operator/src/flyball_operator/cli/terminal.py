"""What a terminal shows that a file does not: colours, as many columns as it has, and a screen that is drawn anew."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Final, Self, TextIO

#: Columns of what is not written to a terminal.
USUAL_COLUMNS: Final = 80
GREEN: Final = "32"
YELLOW: Final = "33"
RED: Final = "31"
_RESET: Final = "\x1b[0m"


def is_terminal() -> bool:
    """Whether people look at the output as it comes."""
    return sys.stdout is not None and sys.stdout.isatty()


def redraws() -> bool:
    """Whether the output can be drawn over: a terminal that knows how."""
    return is_terminal() and os.environ.get("TERM") != "dumb"


def coloured(text: str, colour: str) -> str:
    """The text in a colour, on a terminal; never where NO_COLOR is set (no-color.org)."""
    if not is_terminal() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{colour}m{text}{_RESET}"


def columns() -> int:
    """Columns of the terminal; as many as usual where there is none."""
    return shutil.get_terminal_size((USUAL_COLUMNS, 24)).columns if is_terminal() else USUAL_COLUMNS


def printable(text: str) -> str:
    """The text without what a terminal would obey: objects hold what others wrote."""
    return "".join(mark if mark.isprintable() else "\N{REPLACEMENT CHARACTER}" for mark in text)


def wrapped(text: str, *, hang: int = 0) -> str:
    """A paragraph in lines that fit; words such as names of objects stay whole. `hang`: columns before later lines."""
    return textwrap.fill(
        printable(text), columns(), subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False
    )


def fitting(text: str) -> str:
    """Lines that are wider than the terminal, broken between words; as they are where there is none."""
    if not is_terminal():
        return text
    lines = text.splitlines()
    hangs = (len(line) - len(line.lstrip()) + 4 for line in lines)
    return "\n".join(wrapped(line, hang=hang) for line, hang in zip(lines, hangs, strict=True))


#: The other screen of a terminal, without a cursor: what was there before comes back afterwards.
_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class Screen:
    """A terminal that is drawn over and over. After Ctrl-C and errors, too, the terminal is as before."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __enter__(self) -> Self:
        self._write(_ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        self._write(_LEAVE)

    @property
    def columns(self) -> int:
        """Columns that there are now."""
        return columns()

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, which fit, as many as there is room for; the last then says how many more there are."""
        height = max(2, shutil.get_terminal_size((USUAL_COLUMNS, 24)).lines - 1)
        if len(lines) > height:
            lines = [*lines[: height - 1], f"… and {len(lines) - height + 1} more"]
        self._write(_HOME + "".join(f"{line}{_REST_OF_LINE}\r\n" for line in lines) + _REST_OF_SCREEN)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
