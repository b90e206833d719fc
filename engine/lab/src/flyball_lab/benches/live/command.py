"""`hack/bench live` around its parts: what it refuses before any run, and the report it leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flyball_lab.benches.live.compare import SOURCES, ground_key, jobs, objectives_of
from flyball_lab.benches.live.goodput import LiveRun
from flyball_lab.benches.options import Options
from flyball_lab.benches.rows import KeptError, Rows

REPORT: Final = "live.html"
FIGURES: Final = "live.json"


def refusal(options: Options, parts: Sequence[str]) -> str | None:
    """Why it cannot be done as asked, None if it can."""
    del parts
    try:
        Rows(options.out, SOURCES)
    except KeptError as error:
        return str(error)
    return None


def write_report(folder: Path, said: Mapping[str, Any]) -> Path:
    """Figures as JSON and as a page, with what was kept of the runs; returns the page's path."""
    quick = said.get("quick", False)
    (folder / FIGURES).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    from flyball_lab.benches.live.page import PartRuns, page  # noqa: PLC0415 – its libraries are of the page alone

    rows = Rows(folder, SOURCES)
    ground = rows.get(ground_key(quick=quick))
    parts = {}
    for name, figures in said["figures"].items():
        runs: dict[str, list[LiveRun]] = {}
        for job in jobs(gate=name == "gated", quick=quick):
            if (row := rows.get(job.key)) is not None:
                runs.setdefault(job.variant.name, []).append(LiveRun.of(row))
        parts[name] = PartRuns(figures, runs)
    path = folder / REPORT
    objectives = None if ground is None else objectives_of(ground)
    path.write_text(page(parts, objectives, quick=quick, interrupted="interrupted" in said), encoding="utf-8")
    return path
