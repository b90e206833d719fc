"""What a check finds, and how that is written. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from flyball_operator.cli.terminal import printable

_INDENT: Final = " " * 6


class Level(StrEnum):
    """How bad it is."""

    OK = "OK"
    """Nothing to do."""
    WARN = "WARN"
    """Worth a look; nothing is known to be broken."""
    SKIP = "SKIP"
    """Not checked, because it may not be read; the mend names the right."""
    FAIL = "FAIL"
    """Something does not work; the mend says what to do."""


@dataclass(frozen=True)
class Finding:
    """What one check says of one thing. `mend`: a command or a step; empty where nothing is to be done."""

    check: str
    level: Level
    message: str
    mend: str = ""


def ok(check: str, message: str) -> Finding:
    """Nothing to do."""
    return Finding(check, Level.OK, message)


def warn(check: str, message: str, mend: str) -> Finding:
    """Worth a look."""
    return Finding(check, Level.WARN, message, mend)


def fail(check: str, message: str, mend: str) -> Finding:
    """Something does not work."""
    return Finding(check, Level.FAIL, message, mend)


def skip(check: str, message: str, mend: str) -> Finding:
    """Not checked."""
    return Finding(check, Level.SKIP, message, mend)


def healthy(findings: Iterable[Finding]) -> bool:
    """Whether every check was made, and none failed."""
    return all(finding.level in (Level.OK, Level.WARN) for finding in findings)


def text_lines(finding: Finding, width: int) -> list[str]:
    """The level, the check and what it found, and below it the mend. A command is not broken into lines."""
    head = f"{finding.level.value:<4}  {finding.check}: "
    lines = textwrap.wrap(head + finding.message, width, subsequent_indent=_INDENT, break_on_hyphens=False)
    mend = f"mend: {finding.mend}"
    if finding.mend.startswith(("kubectl ", "helm ", "flyball ")):
        lines.append(_INDENT + mend)
    elif finding.mend:
        lines += textwrap.wrap(mend, width, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return list(map(printable, lines))


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The document of `-o json`."""
    return {
        "healthy": healthy(findings),
        "checks": [
            {"check": one.check, "level": one.level.value, "message": one.message, "mend": one.mend} for one in findings
        ],
    }
