"""What Prometheus answered for one service, kept in a file and read from it again: JSON lines, one for each time.

The first line says what the file is of. The others hold the answers for one time, each under a hash of its query, so
that a version that asks otherwise finds no answer instead of a wrong one. Labels that are the service's identity are in
the first line alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from flyball_operator.prometheus.queries import NAMESPACE, UID
from flyball_operator.prometheus.reader import Source
from flyball_operator.prometheus.vector import BadVectorError, Vector, vector_of
from flyball_operator.tuning.observe.signals import Identity

#: Of the format, not of Flyball.
VERSION: Final = 1
#: Characters of a line: some hundred times what one service's answers have.
MOST_CHARACTERS: Final = 8_000_000
_KEY: Final = "flyball_recorded"


class RecordError(Exception):
    """A file is no recording of answers, or one that cannot be used; the message says why."""


@dataclass(frozen=True)
class Header:
    """What a recording is of: a service as the API server shows it, and the seconds between its times."""

    service: Mapping[str, Any]
    step: float


class RecordingSource:
    """A source that keeps what another answers (implements `Source`). `kept` is called when a time has its answers.

    Raises `OSError` where the file cannot be written.
    """

    def __init__(self, source: Source, file: TextIO, header: Header) -> None:
        self._source, self._file = source, file
        self._answers: dict[str, list[Any]] = {}
        self._answered = False
        try:
            self._write({_KEY: VERSION, "step": header.step, "service": header.service})
        except OSError:
            self.close()
            raise

    def query(self, text: str, at: float | None = None) -> Vector:
        """As `Source` has it."""
        found = [*self._source.query(text, at)]
        self._answers[_hash(text)] = [[_unnamed(sample.metric), sample.value[1]] for sample in found]
        return found

    def kept(self, at: float) -> None:
        """Write the answers for one time."""
        self._write({"at": at, "answers": self._answers})
        self._answered = self._answered or any(self._answers.values())
        self._answers = {}

    def close(self) -> None:
        """Close the file and the source; a file without answers goes, or it would be in the way of the next try."""
        # What could not be written was raised when it was; closing tries it once more.
        with suppress(OSError):
            self._file.close()
        if not self._answered:
            Path(self._file.name).unlink(missing_ok=True)
        self._source.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")
        # Line by line: a full disk is told at the time it filled at, and what was kept before is whole.
        self._file.flush()


class RecordedSource:
    """A source of answers out of a file (implements `Source`); times come in the order they were recorded in.

    Raises `RecordError`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open(encoding="utf-8")
        except OSError as error:
            raise RecordError(f"{path}: {error.strerror or error}") from error
        try:
            self.header = self._header()
        except BaseException:
            self.close()
            raise
        self._identity: Identity | None = None
        self._at = 0.0
        self._answers: Mapping[str, Any] = {}

    def times(self, identity: Identity, most: int) -> Iterator[float]:
        """The times there are answers for, `most` at most, each becoming the present one."""
        self._identity = identity
        number = 1
        while (line := self._line(number := number + 1)) is not None:
            if number - 1 > most:
                raise RecordError(f"{self._path}: more than {most:,} times, accepted: at most so many")
            at, answers = line.get("at"), line.get("answers")
            if not isinstance(at, int | float) or not isinstance(answers, Mapping):
                raise self._wrong(number, "has no time with answers")
            if at <= self._at:
                raise self._wrong(number, "is not later than the one before")
            self._at, self._answers = float(at), answers
            yield self._at

    def query(self, text: str, at: float | None = None) -> Vector:
        """As `Source` has it, of the present time."""
        found = self._answers.get(_hash(text)) if at == self._at else None
        if not isinstance(found, list) or self._identity is None:
            raise RecordError(f"{self._path}: this version asks what was not recorded: record it anew")
        named = dict(zip((NAMESPACE, UID), self._identity, strict=True))
        try:
            return vector_of([{"metric": labels | named, "value": [at, value]} for labels, value in found])
        except (BadVectorError, TypeError, ValueError) as error:
            raise RecordError(f"{self._path}: the answers for {at:.3f} are none") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _header(self) -> Header:
        first = self._line(1)
        if first is None or _KEY not in first:
            raise RecordError(f"{self._path}: no recording; accepted: a file that --record wrote")
        if first[_KEY] != VERSION:
            raise RecordError(f"{self._path}: a recording of version {first[_KEY]!r:.20}, accepted: {VERSION}")
        service, step = first.get("service"), first.get("step")
        if not isinstance(service, Mapping) or not isinstance(step, int | float):
            raise self._wrong(1, "names no service or no step")
        return Header(service, float(step))

    def _line(self, number: int) -> Mapping[str, Any] | None:
        """The next line, None at the end."""
        try:
            text = self._file.readline(MOST_CHARACTERS + 1)
            if not text:
                return None
            line = json.loads(text) if len(text) <= MOST_CHARACTERS else None
        except (OSError, ValueError, RecursionError) as error:
            raise self._wrong(number, "is no JSON: the file was cut off, or is another one") from error
        if not isinstance(line, Mapping):
            raise self._wrong(number, f"is no JSON object of {MOST_CHARACTERS:,} characters at most")
        return line

    def _wrong(self, number: int, what: str) -> RecordError:
        return RecordError(f"{self._path}: line {number} {what}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _unnamed(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name not in (NAMESPACE, UID)}
