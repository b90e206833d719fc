"""Results of runs that have ended, kept in a file, so that an interrupted bench goes on where it was.

One line of JSON for each run, written as it ends: a line that was cut off is no result. A result is taken up only if
the sources that it depends on are the same: runs are a function of them, of their names and of nothing else.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

import flyball_engine
import flyball_operator
from bench.policies import Outcome

FILE: Final = "runs.jsonl"
_HERE: Final = Path(__file__).parent
#: What makes a run what it is: folders and files of sources.
_SOURCES: Final = (
    *(_HERE / name for name in ("closed_loop.py", "fleet.py", "options.py", "plays.py", "policies.py")),
    *(_HERE / name for name in ("disturbances.py", "rivals", "robust.py", "scenarios.py", "traffic.py")),
    *(Path(flyball_engine.__path__[0]) / name for name in ("batching", "simulator", "contract.py", "model.py")),
    Path(flyball_operator.__path__[0]) / "governor",
)


class KeptError(Exception):
    """Results cannot be kept; the message names the folder and says why."""


class Kept:
    """The results in a folder; without one nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        """Raises KeptError."""
        self._path = None if folder is None else folder / FILE
        self._found: dict[str, Outcome] = {}
        if folder is None or self._path is None:
            return
        self._sources = _fingerprint()
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

    def get(self, run: str) -> Outcome | None:
        """What came of a run, if it is known."""
        return self._found.get(run)

    def add(self, run: str, outcome: Outcome) -> None:
        """A run ended."""
        if self._path is None:
            return
        line = json.dumps({"sources": self._sources, "run": run, **asdict(outcome)})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _take(self, line: str) -> None:
        try:
            said = json.loads(line)
            sources, run = said.pop("sources"), said.pop("run")
            outcome = Outcome(**said)
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        if sources == self._sources:
            self._found[run] = outcome


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for source in _SOURCES:
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
