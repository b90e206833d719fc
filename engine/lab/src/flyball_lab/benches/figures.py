"""What a run leaves in docs/figures: its tables, with the command, the date, the sources and the machine.

A part's module says by `tables` what its tables are, by the end of their names; without it there is one table of all
its figures.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from flyball_lab.pages.figures import FOLDER, Column, FigureFile, FigureTable, Measured, table
from flyball_lab.repository import ROOT

Figures = Mapping[str, Mapping[str, float]]
#: By the end of the table's name; the part's only or main table has none.
Tables = Mapping[str, FigureTable]
#: What of the checkout makes figures what they are.
SOURCES: Final = ("operator", "engine")
#: Instructions that change how fast vLLM is on a CPU, the best first: flag of the processor, and name.
INSTRUCTIONS: Final = (("avx512f", "AVX-512"), ("avx2", "AVX2"))


def tables(bench: str, part: str, module: object, figures: Figures) -> Iterator[tuple[str, FigureTable]]:
    """Each table of a part with its name in docs/figures."""
    made: Callable[[Figures], Tables] = getattr(module, "tables", _plain)
    name = bench if part == bench else f"{bench}.{part}"
    for end, one in made(figures).items():
        yield (f"{name}.{end}" if end else name), one


def keep(name: str, made: FigureTable, measured: Measured, *, root: Path = ROOT) -> Path:
    """Write a table into its file; returns the path."""
    path = root / FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FigureFile(measured=measured, table=made).text(), encoding="utf-8")
    return path


def of_today(command: str, *, gpu: str | None = None, note: str | None = None) -> Measured:
    """What is known of a run that ends now on this machine. `gpu`: the name of the one that it used."""
    today = dt.datetime.now(tz=dt.UTC).date()
    return Measured(command=command, date=today, sources=_sources(), machine=_machine(gpu), note=note)


def command_line(program: str, given: Mapping[str, Any], defaults: Callable[[str], Any]) -> str:
    """The command with the options that differ from their defaults. Of a path it has the last part alone."""
    words = [program]
    for option, value in given.items():
        if value == defaults(option):
            continue
        words.append(f"--{option.replace('_', '-')}")
        if value is not True:
            words += [_word(one) for one in (value if isinstance(value, list | tuple) else (value,))]
    return " ".join(words)


def _word(value: Any) -> str:
    text = value.name if isinstance(value, Path) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"'{text}'" if " " in text else text


def _sources() -> str:
    project = tomllib.loads((ROOT / "engine/lab/pyproject.toml").read_text(encoding="utf-8"))["project"]
    commit, changed = _git("rev-parse", "--short", "HEAD"), _git("status", "--porcelain", "--", *SOURCES)
    return f"{project['version']}{f' at {commit}' if commit else ''}{', changed' if changed else ''}"


def _git(*arguments: str) -> str:
    """What git says; empty where there is no git, or no repository."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _machine(gpu: str | None) -> str:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        flags = []
    best = next((name for flag, name in INSTRUCTIONS if flag in flags), None)
    return ", ".join(filter(None, (f"{os.cpu_count()} cores", best, gpu or "no GPU")))


def _plain(figures: Figures) -> Tables:
    """A row for each title, a column for each key."""
    keys = list(dict.fromkeys(key for values in figures.values() for key in values))
    rows = [(title, *(_finite(values.get(key)) for key in keys)) for title, values in figures.items()]
    return {"": table(("measured", *(Column(title=key, digits=4) for key in keys)), rows)}


def _finite(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
