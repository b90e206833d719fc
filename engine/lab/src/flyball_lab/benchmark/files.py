"""Files of results: a line for each measured point, appended as soon as it is measured; the report beside it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from pydantic_core import from_json

from flyball_lab.benchmark.errors import FileError, why
from flyball_lab.benchmark.measurements import FORMAT, Measurement
from flyball_lab.benchmark.other_tools import ACCEPTED as OTHERS
from flyball_lab.benchmark.other_tools import measurements_of
from flyball_lab.benchmark.report import Report
from flyball_lab.benchmark.writing import write_all

RESULTS: Final = "results.jsonl"
REPORT: Final = "report.json"
PAGE: Final = "report.html"
GENERATOR_LOG: Final = "generator.log"
#: A point is some 2 KB; guidellm's file has every request's texts, unless it is told otherwise.
MOST_BYTES: Final = 64 * 2**20


def read(path: Path) -> list[Measurement]:
    """The points of a file; raises FileError naming the line. A last line that was cut off counts as not measured."""
    return _ours(path, _content(path))


def read_any(path: Path) -> list[Measurement]:
    """The points of a file, ours or another load generator's; raises FileError naming the line or field."""
    content = _content(path)
    try:
        document = from_json(content)
    except ValueError:  # several lines of ours are no document
        return _ours(path, content)
    if not isinstance(document, dict) or {"point", "knee_rule"} & document.keys():
        return _ours(path, content)
    try:
        found = measurements_of(document)
    except ValidationError as error:
        raise FileError(f"{path}: {_first(error)}; accepted: {OTHERS}") from error
    if found is None:
        raise FileError(f"{path} has no known results; accepted: a {RESULTS}, its folder, {OTHERS}")
    return found


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise FileError(
                f"{path}: larger than {MOST_BYTES // 2**20} MB; accepted: a smaller file (guidellm: sample_size=0)"
            )
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: {why(error)}; accepted: a {RESULTS}, or its folder") from error


def _ours(path: Path, content: bytes) -> list[Measurement]:
    if _is_report(content):
        raise FileError(f"{path} is a report; accepted: the {RESULTS} that it was made of, or its folder")
    try:
        lines = content.rpartition(b"\n")[0].decode().split("\n")  # a text may have other ends of lines in it
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is no text; accepted: a {RESULTS}, or its folder") from error
    return [_measurement(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _is_report(content: bytes) -> bool:
    """As `ResultsFile.write` writes one: over many lines. A file of results has a point in its first."""
    return content.startswith((b"{\n", b"<!DOCTYPE html>"))


def _measurement(path: Path, number: int, line: str) -> Measurement:
    try:
        return Measurement.model_validate_json(line)
    except ValidationError as error:
        raise FileError(
            f"{path}, line {number}: {_first(error)}; accepted: points as flyball-bench writes them, version {FORMAT}"
        ) from error


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'all of it'}: {first['msg']}"


class ResultsFile:
    """The file of results in a folder. One process at a time writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / RESULTS
        self._unwritten: list[Measurement] = []

    def load(self, *, fresh: bool) -> list[Measurement]:
        """What was measured before; with `fresh` that is put aside (`results.jsonl.old`) and nothing is.

        With it comes what this process measured and could not keep.
        """
        with _as_file_error(self._path):
            self.folder.mkdir(parents=True, exist_ok=True)
            if fresh and self._path.exists():
                self._path.replace(self._path.with_suffix(".jsonl.old"))
        return [*(read(self._path) if self._path.exists() else []), *self._unwritten]

    def append(self, one: Measurement) -> None:
        """Keep a point: one line, on the disk when this returns. Raises FileError; `load` has it all the same."""
        self._unwritten.append(one)
        with _as_file_error(self._path):
            self._drop_torn_line()
            with self._path.open("ab", buffering=0) as file:
                write_all(file, one.model_dump_json().encode() + b"\n")
                os.fsync(file.fileno())
        self._unwritten.remove(one)

    def _drop_torn_line(self) -> None:
        # Else the next line would be appended to half of one, and both be lost.
        if self._path.exists() and not (content := self._path.read_bytes()).endswith(b"\n"):
            os.truncate(self._path, content.rfind(b"\n") + 1)

    def write(self, report: Report) -> Path:
        """Write the report as JSON, whole or not at all, and return its path. Raises FileError."""
        return self._write(REPORT, report.model_dump_json(indent=1) + "\n")

    def write_page(self, text: str) -> Path:
        """Write the report's page, whole or not at all, and return its path. Raises FileError."""
        return self._write(PAGE, text)

    def _write(self, name: str, text: str) -> Path:
        path, partial = self.folder / name, self.folder / f"{name}.partial"
        with _as_file_error(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                partial.write_text(text, encoding="utf-8")
                partial.replace(path)
            except OSError:
                partial.unlink(missing_ok=True)
                raise
        return path


@contextlib.contextmanager
def _as_file_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(f"--out: {path}: {why(error)}; accepted: a folder that can be written to") from error
