"""Results of runs that have ended, kept in a file, so that an interrupted bench goes on where it was.

One line of JSON for each run, written as it ends: a line that was cut off is no result. A result is taken up only if
the sources that it depends on are the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

FILE: Final = "runs.jsonl"


class KeptError(Exception):
    """Results cannot be kept; the message names the folder and says why."""


class Rows:
    """What there is in a folder, by run; without a folder nothing is kept."""

    def __init__(self, folder: Path | None, sources: Sequence[Path]) -> None:
        """Raises KeptError. `sources`: files, and folders of files, that make a run what it is."""
        self._path = None if folder is None else folder / FILE
        self._found: dict[str, Mapping[str, Any]] = {}
        if folder is None or self._path is None:
            return
        self._sources = _fingerprint(sources)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Whatever comes is on a line of its own, even behind one that was cut off.
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n" if file.tell() else "")
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise KeptError(f"cannot keep results in {folder}: {error.strerror}") from error
        for line in filter(None, lines):
            self._take(line)

    def get(self, run: str) -> Mapping[str, Any] | None:
        """What came of a run, if it is known."""
        return self._found.get(run)

    def add(self, run: str, row: Mapping[str, Any]) -> None:
        """A run ended."""
        if self._path is None:
            return
        line = json.dumps({"sources": self._sources, "run": run, **row})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _take(self, line: str) -> None:
        try:
            said = json.loads(line)
            sources, run = said.pop("sources"), said.pop("run")
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        if sources == self._sources:
            self._found[run] = said


def _fingerprint(sources: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
