"""The law in trouble, over itself without: goodput, changes a minute, and how far S swings.

What befalls engines costs whoever drives them, so there limits that never move stand beside it, over their own
undisturbed run. Limits are checked after every decision: they must be inside the envelope, whatever was said.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flyball_engine.contract import Limits
from flyball_lab.benches.figures import Tables
from flyball_lab.benches.interrupted import InterruptedPart
from flyball_lab.benches.intervals import WIDTH, half_width, quotients
from flyball_lab.benches.law.comparison import Figures
from flyball_lab.benches.law.contenders import RunFigures
from flyball_lab.benches.law.kept import Kept
from flyball_lab.benches.law.runs import finish
from flyball_lab.benches.law.scenarios import SCENARIOS, Case
from flyball_lab.benches.law.troubles import NONE, TROUBLES, Trouble, play_fixed, play_law
from flyball_lab.benches.options import Options
from flyball_lab.pages.figures import table

#: Loads on which limits matter; the first is enough for the impatient.
_NAMES: Final = ("h100 mix shift", "h100 load steps", "a100 code")
CASES: Final = tuple(one for name in _NAMES for one in SCENARIOS if one.name == name)
#: vLLM's default on a GPU.
FIXED: Final = (256, 8192)
LAW: Final = "the law"
BY_HAND: Final = "{}/{}".format(*FIXED)
OVER: Final = " over the undisturbed"
#: Of the law's decisions.
OUTSIDE: Final = "limits outside the envelope"
RAISED: Final = "decisions that raised"


@dataclass(frozen=True)
class _Job:
    case: Case
    trouble: Trouble
    seed: int
    gate: bool
    law: bool

    @property
    def key(self) -> str:
        """Troubles are known by their names, too."""
        who, gated = LAW if self.law else "fixed", "gated" if self.gate else "open"
        return f"{self.case.identity} | {who}, {self.trouble.name} | {gated} | seed {self.seed}"

    def play(self) -> RunFigures:
        """The run."""
        if self.law:
            return play_law(self.case, self.trouble, self.seed, gate=self.gate)
        limits = Limits(max_num_active_seqs=FIXED[0], max_num_scheduled_tokens=FIXED[1])
        return play_fixed(self.case, limits, self.trouble, self.seed, gate=self.gate)


def measure(options: Options) -> Figures:
    """By scenario, gate and trouble. Raises InterruptedPart with what was finished."""
    cases, chosen = CASES[:1] if options.quick else CASES, options.played
    groups = [
        (case, gate, trouble, law)
        for case in cases
        for gate in (False, True)
        for trouble in (NONE, *TROUBLES)
        for law in (True, False)
        if law or trouble is NONE or trouble.befalls_engines
    ]
    jobs = {group: [_Job(group[0], group[2], seed, group[1], group[3]) for seed in chosen] for group in groups}
    found, whole = finish([job for some in jobs.values() for job in some], Kept(options.out))
    came = {
        group: [found[job.key] for job in some] for group, some in jobs.items() if all(job.key in found for job in some)
    }
    figures: Figures = {}
    for group, outcomes in came.items():
        case, gate, trouble, law = group
        calm = came.get((case, gate, NONE, law))
        if calm is not None:
            title = f"{case.name}, {'gated' if gate else 'open'}: {trouble.name}"
            figures.setdefault(title, {}).update(_figures(outcomes, calm, trouble, law=law))
    if not whole:
        raise InterruptedPart(figures)
    return figures


def tables(figures: Figures) -> Tables:
    """By trouble, the law over itself undisturbed: least and most of the scenarios; in brackets, fixed limits."""

    def ratios(trouble: Trouble, gate: str, who: str) -> str:
        found = [
            values[who + OVER]
            for title, values in figures.items()
            if title.endswith(f", {gate}: {trouble.name}") and who + OVER in values
        ]
        return f"{min(found):.2f}-{max(found):.2f}" if found else ""

    def cell(trouble: Trouble, gate: str) -> str:
        fixed = ratios(trouble, gate, BY_HAND)
        return ratios(trouble, gate, LAW) + (f" ({fixed})" if fixed else "")

    rows = [(one.name, cell(one, "open"), cell(one, "gated")) for one in TROUBLES]
    for what in (OUTSIDE, RAISED):
        waits, refused = (
            sum(values[what] for title, values in figures.items() if f", {gate}: " in title)
            for gate in ("open", "gated")
        )
        rows.append((what, f"{waits:g}", f"{refused:g}"))
    return {"": table((f"disturbance (fixed {BY_HAND})", "all wait", "gated"), rows)}


def _figures(
    outcomes: Sequence[RunFigures], calm: Sequence[RunFigures], trouble: Trouble, *, law: bool
) -> dict[str, float]:
    who = LAW if law else BY_HAND
    figures = {}
    if trouble is NONE:
        figures[f"{who}, goodput"] = statistics.fmean(one.goodput for one in outcomes)
    else:
        shares = quotients([one.goodput for one in outcomes], [one.goodput for one in calm])
        figures[who + OVER] = statistics.fmean(shares)
        if (width := half_width(shares)) is not None:
            figures[who + OVER + WIDTH] = width
    if law:
        figures["changes a minute"] = max(one.changes for one in outcomes)
        figures["S varies by"] = max(one.swing for one in outcomes)
        figures[OUTSIDE] = sum(one.outside for one in outcomes)
        figures[RAISED] = sum(one.raised for one in outcomes)
    return figures
