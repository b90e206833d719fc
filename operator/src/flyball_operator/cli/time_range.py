"""The past times that `flyball replay` goes through, and the end of `flyball plan`'s, from what was typed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from flyball_engine.figures import figure, format_duration
from flyball_operator.api.quantities import DURATION_HINT, parse_duration

#: As long as the range is, without `--from`.
USUAL_SECONDS: Final = 3600.0
#: What the operator's tick may be, in seconds, and what it is unless it is set: `app.settings`.
LEAST_STEP: Final = 0.5
LARGEST_STEP: Final = 60.0
USUAL_STEP: Final = 5.0
#: A day at the usual step.
MOST_TICKS: Final = 17_280
_RFC_3339: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(.*)")
_TIME_HINT: Final = "a time such as 2026-11-22T08:00:00Z, or a duration before now such as 2h or 30m"


class TimeRangeError(ValueError):
    """What was typed names no times; the message names the option."""


@dataclass(frozen=True)
class TimeRange:
    """Times from `start` to `end`, both included where they fall on a step; milliseconds of Unix time."""

    start: int
    end: int
    step: int

    def times(self) -> Iterator[float]:
        """Unix seconds."""
        return (at / 1000 for at in range(self.start, self.end + 1, self.step))

    def __len__(self) -> int:
        return (self.end - self.start) // self.step + 1


def time_range(start: str | None, end: str | None, step: str | None, now: float) -> TimeRange:
    """The times that the options name; `now` in Unix seconds, of which whole ones count. Raises `TimeRangeError`."""
    until = range_end(end, now)
    since = until - USUAL_SECONDS if start is None else _time("--from", start, float(int(now)))
    seconds = USUAL_STEP if step is None else _step(step)
    if since >= until:
        raise TimeRangeError(f"--from: {rfc3339(since)} is not before --to, {rfc3339(until)}")
    found = TimeRange(*(round(1000 * value) for value in (since, until, seconds)))
    if len(found) > MOST_TICKS:
        needed = max(1.0, -(-(until - since) // (MOST_TICKS - 1)))
        remedy = f"a --step of {needed:g}s or more" if needed <= LARGEST_STEP else "a shorter span"
        wide = f"{figure((until - since) / 3600)} hours every {format_duration(seconds)} are {len(found):,} ticks"
        raise TimeRangeError(f"--from, --to and --step: {wide}, accepted: at most {MOST_TICKS:,}, so {remedy}")
    return found


def range_end(text: str | None, now: float) -> float:
    """What `--to` names, in Unix seconds, of `now` whole ones where it is counted from. Raises `TimeRangeError`."""
    whole = float(int(now))
    until = whole if text is None else _time("--to", text, whole)
    if until > now:
        raise TimeRangeError(f"--to: {rfc3339(until)} is not past yet")
    return until


def rfc3339(at: float) -> str:
    """A Unix time as people write it, in UTC, with milliseconds where there are any."""
    milliseconds = round(1000 * at)
    text = datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{milliseconds % 1000:03d}Z" if milliseconds % 1000 else f"{text}Z"


def _time(option: str, text: str, now: float) -> float:
    match = _RFC_3339.fullmatch(text.strip())
    if match is None:
        try:
            return now - float(parse_duration(text.strip()))
        except ValueError as error:
            raise TimeRangeError(f"{option}: {text!r:.60} is not {_TIME_HINT}") from error
    if not match[2]:
        raise TimeRangeError(f"{option}: {text!r} names no time zone; accepted: {text}Z, or an offset such as +02:00")
    try:
        return datetime.fromisoformat(text.strip().upper()).timestamp()
    except (ValueError, OverflowError) as error:
        raise TimeRangeError(f"{option}: {text!r:.60} is no time ({error}); accepted: {_TIME_HINT}") from error


def _step(text: str) -> float:
    accepted = f"what the operator's tick may be, {LEAST_STEP:g}s to {LARGEST_STEP:g}s"
    try:
        seconds = float(parse_duration(text.strip()))
    except ValueError as error:
        raise TimeRangeError(f"--step: {text!r:.60} is not {DURATION_HINT}; accepted: {accepted}") from error
    if not LEAST_STEP <= seconds <= LARGEST_STEP:
        raise TimeRangeError(f"--step: {text} is out of range; accepted: {accepted}")
    return seconds
