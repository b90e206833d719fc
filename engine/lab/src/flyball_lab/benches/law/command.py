"""`hack/bench law` around its parts: what it refuses before any run, and the report it leaves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flyball_lab.benches.law.ablation import ALL, CASES, INERT, names
from flyball_lab.benches.law.kept import Kept
from flyball_lab.benches.law.scenarios import SCENARIOS
from flyball_lab.benches.law.traffic import recorded
from flyball_lab.benches.options import Options
from flyball_lab.benches.rows import KeptError
from flyball_lab.simulator.workload import TraceError

REPORT: Final = "law.html"
FIGURES: Final = "law.json"


def refusal(options: Options, parts: Sequence[str]) -> str | None:
    """Why it cannot be done as asked, None if it can."""
    if "trace" in parts and options.trace is None:
        return "the part trace needs --trace FILE"
    if options.trace is None and (options.rate is not None or options.minutes is not None):
        return "--rate and --minutes are of a trace: name it with --trace FILE"
    if options.scenarios and not set(parts) <= {"open", "gated", "ablate"}:
        return "--scenario is of the parts open, gated and ablate: name them with --part"
    if (unknown := _unknown(options, parts)) is not None:
        return unknown
    try:
        Kept(options.out)
        if options.trace is not None:
            recorded(options.trace, options.preset, rate=options.rate, minutes=options.minutes)
    except (KeptError, TraceError) as error:
        return str(error)
    return None


def _unknown(options: Options, parts: Sequence[str]) -> str | None:
    """What is named that is not there, or that no run can measure."""
    if options.ablate and (list(parts) != ["ablate"] or options.trace is not None):
        return "--ablate goes with no other part and no trace"
    cases = CASES if list(parts) == ["ablate"] else SCENARIOS
    for what, given, known in (
        ("constant", options.ablate, (ALL, *names(), *INERT)),
        ("scenario", options.scenarios, tuple(case.name for case in cases)),
    ):
        if unknown := set(given).difference(known):
            return f"no {what} {_listed(sorted(unknown))}: there are {_listed(known)}"
    if inert := [f"no goodput hangs on {name}: {INERT[name]}" for name in options.ablate if name in INERT]:
        return "; ".join(inert)
    return None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def write_report(folder: Path, said: Mapping[str, Any]) -> Path:
    """Figures as JSON and as a page; returns the page's path."""
    (folder / FIGURES).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    from flyball_lab.benches.law.page import page  # noqa: PLC0415 – its libraries are of the page alone

    path = folder / REPORT
    path.write_text(page(said["figures"], interrupted="interrupted" in said), encoding="utf-8")
    return path
